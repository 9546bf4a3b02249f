//! INTERRUPT: a program that waits for an answer got a signal.

use rustix::io::Errno;
use tracing::debug;

use crate::mount_state::MountState;
use crate::ops::answer::{Answer, Outcome};
use crate::proto::Body;

pub(crate) fn answer(state: &MountState, mut body: Body<'_>) -> Outcome {
    let unique = body.u64().ok_or(Errno::IO)?;
    debug!("interrupt({unique})");
    if state.shared.pending_reads.interrupt(unique) {
        Ok(Answer::NoReply)
    } else {
        // Either the request just got its reply, and the kernel ignores this one. Or another thread has
        // not registered it yet, and the kernel sends the interrupt again.
        Err(Errno::AGAIN)
    }
}
