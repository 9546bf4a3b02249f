//! GETXATTR: an extended attribute of the image, or one that describes the driver or an inode.

use redwarfs_format::ids::InodeNo;
use redwarfs_reader::Image;
use rustix::io::Errno;

use crate::image_state::ImageState;
use crate::ops::answer::{Outcome, log_op, timed};
use crate::ops::xattr_value::put_value;
use crate::proto::{Body, Header};
use crate::xattr;

pub(crate) fn answer(
    state: &ImageState,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let _timer = timed(&state.timers.getxattr, header);
    let size = body.u32().ok_or(Errno::IO)?;
    body.u32();
    let name = body.name().ok_or(Errno::IO)?;
    log_op!(
        header,
        "op_getxattr({}, {}, {size})",
        header.node,
        String::from_utf8_lossy(name)
    );
    if !state.settings.xattrs {
        // The kernel asks for no further ones.
        return Err(Errno::NOSYS);
    }
    let inode = state.inode(header.node)?;
    let image = &state.image;
    if state.settings.stored_xattrs && !name.starts_with(xattr::OWN) {
        return match stored(image, inode, name, size, out) {
            Ok(outcome) => outcome,
            Err(cause) => Err(state.fail("read an extended attribute of", inode, &cause)),
        };
    }
    match state
        .describer
        .value(image, &state.settings.policy, inode, name)
    {
        Ok(Some(value)) => put_value(size, &value.bytes, value.announced, out),
        Ok(None) => match state.about(inode, name) {
            Some(text) => put_value(size, text.as_bytes(), text.len(), out),
            None => Err(Errno::NODATA),
        },
        Err(cause) => Err(state.fail("describe", inode, &cause)),
    }
}

/// An attribute of the image. A value in blocks is decoded in this thread: such values are longer than
/// the limits of most file systems, and the cache keeps their blocks.
fn stored(
    image: &Image,
    inode: InodeNo,
    name: &[u8],
    room: u32,
    out: &mut Vec<u8>,
) -> redwarfs_reader::Result<Outcome> {
    let Some(found) = image.xattrs(inode)?.find(name)? else {
        return Ok(Err(Errno::NODATA));
    };
    let size = usize::try_from(found.size()?).unwrap_or(usize::MAX);
    if size > xattr::LARGEST {
        return Ok(Err(Errno::TOOBIG));
    }
    if room == 0 {
        return Ok(put_value(0, b"", size, out));
    }
    let value = image.xattr_value(&found)?;
    Ok(put_value(room, &value, value.len(), out))
}
