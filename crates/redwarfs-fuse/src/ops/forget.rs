//! FORGET and BATCH_FORGET: the kernel forgets inodes.

use crate::attr::inode_no;
use crate::ops::answer::{Answer, Outcome};
use crate::proto::Body;
use crate::push::Pusher;

/// Notes that the kernel forgets one inode.
pub(crate) fn one(pusher: Option<&Pusher>, node: u64) -> Outcome {
    if let Some(pusher) = pusher
        && let Some(inode) = inode_no(node)
    {
        pusher.forgets(inode);
    }
    Ok(Answer::NoReply)
}

/// Notes that the kernel forgets the inodes of a list.
pub(crate) fn many(pusher: Option<&Pusher>, mut body: Body<'_>) -> Outcome {
    // Number of items and padding; each is a node and how many lookups it had.
    body.u64();
    while let (Some(node), Some(_)) = (body.u64(), body.u64()) {
        one(pusher, node)?;
    }
    Ok(Answer::NoReply)
}
