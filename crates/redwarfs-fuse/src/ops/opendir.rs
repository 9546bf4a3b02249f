//! OPENDIR: whether the kernel keeps the listing of a directory.

use rustix::io::Errno;

use crate::ops::answer::{Answer, Outcome, log_op};
use crate::ops::init::Agreed;
use crate::proto::{Header, opened, put_opened};
use crate::settings::Settings;

pub(crate) fn answer(
    settings: &Settings,
    agreed: Agreed,
    header: &Header,
    out: &mut Vec<u8>,
) -> Outcome {
    log_op!(header, "op_opendir({})", header.node);
    if agreed.no_opendir {
        return Err(Errno::NOSYS);
    }
    // A listing in the kernel's cache could be read without asking us.
    put_opened(
        if settings.only_for.is_some() {
            0
        } else {
            opened::KEEP_CACHE | opened::CACHE_DIR
        },
        out,
    );
    Ok(Answer::Reply)
}
