//! INIT: what kernel and driver agree on for the whole connection.

use rustix::param::page_size;

use crate::mount_state::{MountState, Root};
use crate::ops::answer::log_op;
use crate::proto::{Header, InitIn, InitOut, MAX_REQUEST, init};

/// Requests on their way that no program waits for.
const MAX_BACKGROUND: u16 = 64;
/// The same for several images: those of images that do not answer must leave room for the others.
const MAX_BACKGROUND_OF_SEVERAL: u16 = 1024;

/// Features that save requests of the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Agreed {
    /// The kernel takes ENOSYS for "never send OPEN again".
    pub(crate) no_open: bool,
    /// As `no_open`, for OPENDIR.
    pub(crate) no_opendir: bool,
}

/// Appends the answer to INIT. With `over_ring`, requests come over io_uring, which the kernel must
/// have offered. Its value is the largest number of requests for which no process waits.
pub(crate) fn answer(
    state: &MountState,
    header: &Header,
    kernel: &InitIn,
    over_ring: Option<u16>,
    out: &mut Vec<u8>,
) -> Agreed {
    let _timer = state.init.start();
    log_op!(header, "op_init()");
    // With EXPLICIT_INVAL_DATA, the kernel does not drop cached data because of changed attributes.
    // READDIRPLUS_AUTO is left out, because it falls back to one request per entry. EXPORT_SUPPORT: `.`
    // and `..` can be looked up, which NFS needs. ASYNC_DIO is left out because a reader with O_DIRECT
    // could then not be killed while the image stalls.
    let mut wanted = init::ASYNC_READ
        | init::EXPORT_SUPPORT
        | init::DO_READDIRPLUS
        | init::PARALLEL_DIROPS
        | init::MAX_PAGES
        | init::CACHE_SYMLINKS
        | init::EXPLICIT_INVAL_DATA;
    if !state.settings.ask_opendir {
        wanted |= init::NO_OPENDIR_SUPPORT;
    }
    if state.settings.lists {
        // The kernel then checks all permissions itself, which it does in any case here.
        wanted |= init::POSIX_ACL;
    }
    let sees_openings = state.settings.only_for.is_some()
        || state.main().is_some_and(|main| main.analysis.is_some());
    if state.settings.keep_cache && state.settings.cache_sparse && !sees_openings {
        wanted |= init::NO_OPEN_SUPPORT;
    }
    let mut flags = wanted & kernel.flags;
    let mut flags2 = 0;
    let mut max_background = match state.root {
        Root::Image(_) => MAX_BACKGROUND,
        Root::Images(_) | Root::Union(_) => MAX_BACKGROUND_OF_SEVERAL,
    };
    if let Some(most) = over_ring {
        flags |= init::INIT_EXT;
        flags2 = init::OVER_IO_URING;
        max_background = most;
    }
    let answer = InitOut {
        max_readahead: kernel.max_readahead,
        flags,
        flags2,
        max_background,
        congestion_threshold: max_background / 4 * 3,
        // Nothing is written.
        max_write: 4096,
        max_pages: (MAX_REQUEST as usize / page_size()) as u16,
    };
    answer.put(kernel.minor, out);
    Agreed {
        no_open: flags & init::NO_OPEN_SUPPORT != 0,
        no_opendir: flags & init::NO_OPENDIR_SUPPORT != 0,
    }
}
