//! STATFS: the size of the file system.

use crate::mount_state::MountState;
use crate::ops::answer::{Answer, Outcome, log_op};
use crate::proto::{Header, Put};

pub(crate) fn answer(state: &MountState, header: &Header, out: &mut Vec<u8>) -> Outcome {
    let _timer = state.timers.statfs.start();
    log_op!(header, "op_statfs({})", header.node);
    out.put64(state.image.metadata().totals().allocated);
    // Free and available blocks.
    out.put64(0);
    out.put64(0);
    out.put64(u64::from(state.inodes));
    // Free inodes.
    out.put64(0);
    // Block size, longest name, fragment size, padding.
    for value in [1, 4096, 1, 0] {
        out.put32(value);
    }
    out.extend_from_slice(&[0; 6 * 4]);
    Ok(Answer::Reply)
}
