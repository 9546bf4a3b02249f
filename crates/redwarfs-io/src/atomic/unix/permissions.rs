//! Permissions that a new file takes from other files.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid, XattrFlags};

use super::super::with_path;

const ACL: &str = "system.posix_acl_access";
/// More than the kernel allows for the value of an attribute.
const MAX_ACL: usize = 1 << 16;

/// Who may do what with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Permissions {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) acl: Option<Vec<u8>>,
}

impl Permissions {
    /// With the access list of the file at `path`.
    pub(super) fn with_acl(mode: u32, uid: u32, gid: u32, path: &Path) -> Self {
        let mut acl = vec![0; MAX_ACL];
        let length = rustix::fs::lgetxattr(path, ACL, &mut acl[..]).ok();
        Self {
            mode,
            uid,
            gid,
            acl: length.map(|length| acl[..length].to_vec()),
        }
    }

    /// The mode for a file of another group: rights of a group must not become rights of another one, and who is in that
    /// group may have less than others.
    fn others_only(&self) -> u32 {
        let all = self.mode & (self.mode >> 3) & 0o7;
        (self.mode & 0o700) | (all << 3) | all
    }

    /// Gives `new` the owner and the group, and removes what its directory has added. Returns whether it has the owner,
    /// and the group.
    fn hand_over(&self, new: &File) -> io::Result<(bool, bool)> {
        let now = rustix::fs::fstat(new)?;
        let (mut owner, mut group) = (now.st_uid == self.uid, now.st_gid == self.gid);
        if !owner || !group {
            let (to_user, to_group) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            owner = rustix::fs::fchown(new, Some(to_user), Some(to_group)).is_ok();
            group = owner || group || rustix::fs::fchown(new, None, Some(to_group)).is_ok();
        }
        if self.acl.is_none() {
            // The default ACL of the directory could let in more users than the old file.
            let _ = rustix::fs::fremovexattr(new, ACL);
        }
        Ok((owner, group))
    }

    /// Gives `new` owner, permissions and ACL of this file, as writing into it would have kept them.
    /// Returns whether the owner and the group could be kept.
    ///
    /// Set-id bits belong to the old contents. Writing into a file also clears them.
    pub(super) fn bequeath(&self, new: &File) -> io::Result<bool> {
        let (owner, group) = self.hand_over(new)?;
        // With an ACL the bits of the group are those of its mask.
        let careful = self.acl.is_some() || !group;
        let bits = match careful {
            true => self.others_only(),
            false => self.mode & 0o777,
        };
        rustix::fs::fchmod(new, Mode::from_raw_mode(bits))?;
        if let Some(acl) = self.acl.as_ref().filter(|_| group) {
            // Without it the file has the narrower permissions set above.
            let _ = rustix::fs::fsetxattr(new, ACL, acl, XattrFlags::empty());
        }
        Ok(owner && group)
    }
}

/// Who may read the files that a new file is made from: nobody else may read the new one.
///
/// A new file gets their owner, group and ACL, as far as the process may set them, and their rights to read and write, as
/// far as its directory and the umask grant them. Its owner may always read and write it. If the files differ, a
/// user needs the right to all of them.
#[derive(Debug, Clone)]
pub struct Origin(Permissions);

impl Origin {
    /// Of the file, or the device, that a path leads to.
    ///
    /// # Errors
    /// Its attributes cannot be read. The error names the path.
    pub fn of(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let found = || {
            let found = std::fs::metadata(path)?;
            let resolved = std::fs::canonicalize(path);
            let acl_of = resolved.as_deref().unwrap_or(path);
            let mode = (found.mode() & 0o666) | 0o600;
            Ok(Self(Permissions::with_acl(
                mode,
                found.uid(),
                found.gid(),
                acl_of,
            )))
        };
        found().map_err(|e| with_path(path, &e))
    }

    /// Of these files and another one.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        let (one, other) = (self.0, &other.0);
        let same =
            |a: &Permissions, b: &Permissions| (a.uid, a.gid, &a.acl) == (b.uid, b.gid, &b.acl);
        let alike = same(&one, other);
        let mode = match alike {
            true => one.mode & other.mode,
            // An ACL may shut out some users.
            false if one.acl.is_some() || other.acl.is_some() => 0o600,
            false if one.gid == other.gid => one.mode & other.mode,
            false => one.others_only() & other.others_only(),
        };
        let own = (rustix::process::geteuid(), rustix::process::getegid());
        let pick = |a: u32, b: u32, own: u32| if a == b { a } else { own };
        Self(Permissions {
            mode: mode | 0o600,
            uid: pick(one.uid, other.uid, own.0.as_raw()),
            gid: pick(one.gid, other.gid, own.1.as_raw()),
            acl: one.acl.filter(|_| alike),
        })
    }

    /// Mode of a new file that others can see from the first moment on.
    pub(super) fn first_mode(&self) -> Mode {
        let bits = match self.0.acl {
            Some(_) => 0o600,
            None => self.0.others_only(),
        };
        Mode::from_raw_mode(bits)
    }

    /// Narrows the permissions of `new`, which is as the system has made it.
    pub(super) fn restrict(&self, new: &File) -> io::Result<()> {
        let granted = rustix::fs::fstat(new)?.st_mode;
        self.restrict_to(new, self.0.mode, granted)
    }

    fn restrict_to(&self, new: &File, wanted: u32, granted: u32) -> io::Result<()> {
        let (_, group) = self.0.hand_over(new)?;
        let set = |bits: u32| rustix::fs::fchmod(new, Mode::from_raw_mode(bits & granted & 0o777));
        let wide = Permissions {
            mode: wanted,
            ..self.0.clone()
        };
        set(match (&self.0.acl, group) {
            // It may shut out users who belong to the others.
            (Some(_), _) => wanted & 0o700,
            (None, true) => wanted,
            (None, false) => wide.others_only(),
        })?;
        if let Some(acl) = self.0.acl.as_ref().filter(|_| group)
            && rustix::fs::fsetxattr(new, ACL, acl, XattrFlags::empty()).is_ok()
        {
            set(rustix::fs::fstat(new)?.st_mode & wanted)?;
        }
        Ok(())
    }

    /// Makes a directory that only those can enter who may read the files.
    ///
    /// # Errors
    /// Every error names the path. [`io::ErrorKind::AlreadyExists`] if there is an entry of this name.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let make = || {
            let read = self.0.mode & 0o444;
            let wanted = self.0.mode | (read >> 2);
            // The group may be another one at first.
            let wide = Permissions {
                mode: wanted,
                ..self.0.clone()
            };
            let first = match self.0.acl {
                Some(_) => 0o700,
                None => wide.others_only(),
            };
            std::fs::DirBuilder::new().mode(first).create(path)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = File::from(rustix::fs::open(path, flags, Mode::empty())?);
            let granted = rustix::fs::fstat(&dir)?.st_mode;
            self.restrict_to(&dir, wanted, granted)
        };
        make().map_err(|e| with_path(path, &e))
    }
}
