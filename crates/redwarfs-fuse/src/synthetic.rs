//! Directories that no image has as such: the directory of snapshots, the root of a mount of several images, the place of
//! an image that cannot be opened, and directories of a union.

use redwarfs_format::metadata::Timestamp;
use rustix::io::Errno;

use crate::mount_state::MountState;
use crate::ops::answer::{Answer, Outcome};
use crate::ops::init::Agreed;
use crate::ops::listing::{self, DOTS};
use crate::ops::opendir;
use crate::ops::xattr_value::put_value;
use crate::proto::{Attr, Body, Header, Validity, dirent_size, op, put_dirent};
use crate::xattr::Value;

pub(crate) const DIRECTORY_MODE: u32 = 0o040_555;

/// An entry of a listing.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    /// Inode number for programs.
    pub(crate) number: u64,
    /// Type, as in a mode.
    pub(crate) mode: u32,
    /// The position behind it.
    pub(crate) next: u64,
    pub(crate) name: &'a [u8],
    /// None if the kernel has to ask for them before a program uses the entry.
    pub(crate) attr: Option<&'a Attr>,
}

/// Takes an entry. Returns whether there is no room for more.
pub(crate) type AddEntry<'a> = &'a mut dyn FnMut(&Listed<'_>) -> bool;

/// A directory that no image has as such.
pub(crate) trait Synthetic: std::fmt::Debug {
    /// Its attributes.
    fn attr(&self, mount: &MountState) -> Result<Attr, Errno>;

    /// The attributes of its parent.
    fn parent(&self, mount: &MountState) -> Result<Attr, Errno>;

    /// When it was made.
    fn birth(&self) -> Result<Option<Timestamp>, Errno> {
        Ok(None)
    }

    /// The attributes of the entry with a name other than `.` and `..`; those of no node if there is none.
    fn find(&self, _name: &[u8]) -> Result<Attr, Errno> {
        Ok(Attr::default())
    }

    /// Lists the entries behind a position, which is at least [`DOTS`]. Without `plus`, attributes are not needed.
    fn list(
        &self,
        mount: &MountState,
        position: u64,
        plus: bool,
        add: AddEntry<'_>,
    ) -> Result<(), Errno>;

    /// How long attributes and missing names are valid.
    fn validity(&self, mount: &MountState) -> Validity {
        mount.settings.attributes
    }

    /// How long names are valid.
    fn validity_of_names(&self, mount: &MountState) -> Validity {
        mount.settings.names.min(self.validity(mount))
    }

    /// Answers ACCESS.
    fn access(&self, _header: &Header, _body: Body<'_>) -> Outcome {
        Ok(Answer::Reply)
    }

    /// An attribute that says more about it.
    fn xattr(&self, _mount: &MountState, _name: &[u8]) -> Option<Value> {
        None
    }

    /// The names of these attributes, each ended by a zero byte.
    fn xattr_names(&self) -> &'static [u8] {
        b""
    }

    /// Answers GETXATTR.
    fn get_xattr(
        &self,
        mount: &MountState,
        _header: &Header,
        mut body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let size = body.u32().ok_or(Errno::IO)?;
        body.u32();
        let name = body.name().ok_or(Errno::IO)?;
        match self.xattr(mount, name) {
            Some(value) => put_value(size, &value.bytes, value.announced, out),
            None => Err(Errno::NODATA),
        }
    }

    /// Answers LISTXATTR.
    fn list_xattrs(
        &self,
        mount: &MountState,
        _header: &Header,
        mut body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let names = match mount.settings.list_xattrs {
            true => self.xattr_names(),
            false => b"",
        };
        put_value(body.u32().ok_or(Errno::IO)?, names, names.len(), out)
    }
}

/// Carries out a request for such a directory.
pub(crate) fn answer(
    directory: &dyn Synthetic,
    mount: &MountState,
    agreed: Agreed,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let settings = &mount.settings;
    let valid = directory.validity(mount);
    match header.opcode {
        op::LOOKUP => {
            let attr = match body.name().ok_or(Errno::IO)? {
                b"." => directory.attr(mount)?,
                b".." => directory.parent(mount)?,
                name => directory.find(name)?,
            };
            attr.put_entry(directory.validity_of_names(mount), valid, out);
            Ok(Answer::Reply)
        }
        op::GETATTR => {
            directory.attr(mount)?.put_attr(valid, out);
            Ok(Answer::Reply)
        }
        op::STATX => {
            let birth = directory.birth()?;
            directory.attr(mount)?.put_statx(birth, valid, out);
            Ok(Answer::Reply)
        }
        op::OPENDIR => opendir::answer(settings, agreed, header, out),
        op::READDIR | op::READDIRPLUS => {
            let (position, room) = listing::part(&mut body)?;
            let plus = header.opcode == op::READDIRPLUS;
            list(directory, mount, plus, position, room, out)
        }
        op::ACCESS => directory.access(header, body),
        op::GETXATTR | op::LISTXATTR if !settings.xattrs => Err(Errno::NOSYS),
        op::GETXATTR => directory.get_xattr(mount, header, body, out),
        op::LISTXATTR => directory.list_xattrs(mount, header, body, out),
        op::OPEN | op::READ => Err(Errno::ISDIR),
        op::READLINK | op::LSEEK => Err(Errno::INVAL),
        _ => Err(Errno::ROFS),
    }
}

/// Lists the entries.
fn list(
    directory: &dyn Synthetic,
    mount: &MountState,
    plus: bool,
    position: u64,
    room: usize,
    out: &mut Vec<u8>,
) -> Outcome {
    let settings = &mount.settings;
    let mut add = |entry: &Listed<'_>| {
        if out.len() + dirent_size(entry.name, plus) > room {
            return true;
        }
        if plus {
            match entry.attr {
                Some(attr) => attr.put_entry(settings.names, settings.attributes, out),
                None => Attr::default().put_entry(0, 0, out),
            }
        }
        put_dirent(entry.number, entry.next, entry.mode, entry.name, out);
        false
    };
    // The kernel ignores the attributes of these two but shows their numbers.
    let dot = |attr: &Attr, next, name| Listed {
        number: attr.number,
        mode: DIRECTORY_MODE,
        next,
        name,
        attr: None,
    };
    if position == 0 && add(&dot(&directory.attr(mount)?, 1, b".")) {
        return Ok(Answer::Reply);
    }
    if position <= 1 && add(&dot(&directory.parent(mount)?, DOTS, b"..")) {
        return Ok(Answer::Reply);
    }
    directory.list(mount, position.max(DOTS), plus, &mut add)?;
    Ok(Answer::Reply)
}
