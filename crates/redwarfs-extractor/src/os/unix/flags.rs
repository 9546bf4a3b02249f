//! File flags: what `chattr` sets.

use std::os::fd::OwnedFd;

use redwarfs_format::metadata::STORED_FLAGS;
use rustix::fs::{self, IFlags, Mode, OFlags};
use rustix::io::Errno;

use super::target::Target;
use crate::Progress;
use crate::error::{Result, cause, target};
use crate::flags::letters;

/// Flags that only count for data that is written later: compression, and no copy on write.
const FIRST: u32 = 0x4 | 0x80_0000;
/// The flags that lock an entry, in the order in which they are set.
const LOCKS: [u32; 2] = [0x20, 0x10];

/// Gives a new file those flags that must come before its data. The file gets all flags at the end, and
/// then it is said which are missing.
pub(crate) fn set_first_flags(file: &OwnedFd, flags: u32) {
    if flags & FIRST != 0 {
        let _ = add_flags(file, flags & FIRST);
    }
}

/// Sets flags: all at once or, if this fails, one after the other. Errors have the missing ones and the
/// reason for the first of them.
fn add_flags(fd: &OwnedFd, wanted: u32) -> Result<(), (u32, Errno)> {
    let get = || fs::ioctl_getflags(fd).map(|flags| flags.bits());
    let set = |flags| fs::ioctl_setflags(fd, IFlags::from_bits_retain(flags));
    let found = get().map_err(|e| (wanted, e))?;
    let all = found & !STORED_FLAGS | wanted;
    if all == found {
        return Ok(());
    }
    let mut reason = match set(all) {
        // Some file systems pass over flags that they do not have.
        Ok(()) => Errno::OPNOTSUPP,
        Err(e) => e,
    };
    if get() == Ok(all) {
        return Ok(());
    }
    let bits = (0..u32::BITS).map(|bit| 1 << bit);
    let bits = bits.filter(|bit| wanted & bit != 0 && !LOCKS.contains(bit));
    let mut missing = 0;
    for bit in bits.chain(LOCKS.into_iter().filter(|bit| wanted & bit != 0)) {
        let now = get().map_err(|e| (wanted, e))?;
        let result = set(now | bit);
        if get().is_ok_and(|now| now & bit != 0) {
            continue;
        }
        if missing == 0 {
            reason = result.err().unwrap_or(Errno::OPNOTSUPP);
        }
        missing |= bit;
    }
    match missing {
        0 => Ok(()),
        _ => Err((missing, reason)),
    }
}

impl Target {
    /// Sets the flags of a file or directory that the extraction made. A link is not followed.
    pub(crate) fn set_flags_at(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        is_dir: bool,
        flags: u32,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        let kind = match is_dir {
            true => OFlags::DIRECTORY,
            // Something else may have taken the place of the file meanwhile.
            false => OFlags::NONBLOCK | OFlags::NOCTTY,
        };
        let open = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | kind;
        match fs::openat(dir, name, open, Mode::empty()) {
            Ok(fd) => self.flags_result(&fd, flags, shown, progress),
            // Without privilege, for entries that their owner may not read.
            Err(e @ (Errno::ACCESS | Errno::PERM)) => {
                self.note_flags(flags, e, shown, progress);
                Ok(())
            }
            Err(e) => Err(target("cannot set file flags", shown(), e)),
        }
    }

    /// Sets the flags of the target itself.
    pub(crate) fn set_root_flags(&self, flags: u32, progress: &dyn Progress) -> Result<()> {
        let shown = || ".".to_owned();
        let fd = self
            .open_root()
            .map_err(|e| target("cannot open output directory", shown(), e))?;
        self.flags_result(&fd, flags, &shown, progress)
    }

    fn flags_result(
        &self,
        fd: &OwnedFd,
        flags: u32,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        if let Err((missing, e)) = add_flags(fd, flags) {
            self.note_flags(missing, e, shown, progress);
        }
        Ok(())
    }

    fn note_flags(
        &self,
        missing: u32,
        e: Errno,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) {
        self.flags.note(|| {
            let (path, letters) = (shown(), letters(missing));
            let cause = match e {
                // The answer of file systems without flags.
                Errno::NOTTY => "the file system has no flags".to_owned(),
                e => cause(&e.into()),
            };
            progress.warn(&format!(
                "cannot set file flags '{letters}': {path}: {cause} (said once)"
            ));
        });
    }
}
