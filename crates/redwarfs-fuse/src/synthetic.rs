//! Directories that no image has: the directory of snapshots, the root of a mount of several images, and the place of
//! an image that cannot be opened.

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

/// Takes `(node id, position behind it, name)`. Returns whether there is no room for more.
pub(crate) type AddEntry<'a> = &'a mut dyn FnMut(u64, u64, &[u8]) -> bool;

/// A directory that no image has. Its entries are directories.
pub(crate) trait Synthetic: std::fmt::Debug {
    /// Its attributes.
    fn attr(&self, mount: &MountState) -> Result<Attr, Errno>;

    /// The attributes of its parent.
    fn parent(&self, mount: &MountState) -> Result<Attr, Errno>;

    /// Lists the entries behind a position, which is at least [`DOTS`].
    fn list(&self, position: u64, add: AddEntry<'_>);

    /// How long attributes and missing names are valid.
    fn validity(&self, mount: &MountState) -> Validity {
        mount.settings.attributes
    }

    /// An attribute that says more about it.
    fn xattr(&self, _mount: &MountState, _name: &[u8]) -> Option<Value> {
        None
    }

    /// The names of these attributes, each ended by a zero byte.
    fn xattr_names(&self) -> &'static [u8] {
        b""
    }
}

/// Carries out a request for such a directory. Names other than `.` and `..` that get here do not exist.
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
                _ => Attr::default(),
            };
            attr.put_entry(settings.names.min(valid), valid, out);
            Ok(Answer::Reply)
        }
        op::GETATTR => {
            directory.attr(mount)?.put_attr(valid, out);
            Ok(Answer::Reply)
        }
        op::STATX => {
            directory.attr(mount)?.put_statx(None, valid, out);
            Ok(Answer::Reply)
        }
        op::OPENDIR => opendir::answer(settings, agreed, header, out),
        op::READDIR | op::READDIRPLUS => {
            let (position, room) = listing::part(&mut body)?;
            let plus = header.opcode == op::READDIRPLUS;
            list(directory, mount, plus, position, room, out)
        }
        op::ACCESS => Ok(Answer::Reply),
        op::GETXATTR | op::LISTXATTR if !settings.xattrs => Err(Errno::NOSYS),
        op::GETXATTR => {
            let size = body.u32().ok_or(Errno::IO)?;
            body.u32();
            let name = body.name().ok_or(Errno::IO)?;
            match directory.xattr(mount, name) {
                Some(value) => put_value(size, &value.bytes, value.announced, out),
                None => Err(Errno::NODATA),
            }
        }
        op::LISTXATTR => {
            let names = match settings.list_xattrs {
                true => directory.xattr_names(),
                false => b"",
            };
            put_value(body.u32().ok_or(Errno::IO)?, names, names.len(), out)
        }
        op::OPEN | op::READ => Err(Errno::ISDIR),
        op::READLINK | op::LSEEK => Err(Errno::INVAL),
        _ => Err(Errno::ROFS),
    }
}

/// Lists the entries. With `plus`, they have no attributes: the kernel asks for those that it needs, so that
/// a listing opens nothing.
fn list(
    directory: &dyn Synthetic,
    mount: &MountState,
    plus: bool,
    position: u64,
    room: usize,
    out: &mut Vec<u8>,
) -> Outcome {
    let mut add = |node: u64, next: u64, name: &[u8]| {
        if out.len() + dirent_size(name, plus) > room {
            return true;
        }
        if plus {
            Attr::default().put_entry(0, 0, out);
        }
        put_dirent(node, next, DIRECTORY_MODE, name, out);
        false
    };
    if position == 0 && add(directory.attr(mount)?.node, 1, b".") {
        return Ok(Answer::Reply);
    }
    if position <= 1 && add(directory.parent(mount)?.node, DOTS, b"..") {
        return Ok(Answer::Reply);
    }
    directory.list(position.max(DOTS), &mut add);
    Ok(Answer::Reply)
}
