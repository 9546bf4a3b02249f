//! Requests for extended attributes, and whether something may be opened.

use rustix::io::Errno;

use super::{Answer, Driver, Outcome, timed};
use crate::attr::opens;
use crate::proto::{Body, Header, Put};
use crate::xattr;

impl Driver {
    pub(super) fn getxattr(
        &self,
        header: &Header,
        mut body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let _timer = timed(&self.shared.timers.getxattr, header);
        let size = body.u32().ok_or(Errno::IO)?;
        body.u32();
        let name = body.name().ok_or(Errno::IO)?;
        log_op!(
            header,
            "op_getxattr({}, {}, {size})",
            header.node,
            String::from_utf8_lossy(name)
        );
        let inode = self.inode(header.node)?;
        let image = &self.shared.image;
        match self.describer.value(image, &self.policy, inode, name) {
            Ok(Some(value)) => put_xattr(size, &value.bytes, value.announced, out),
            Ok(None) => Err(Errno::NODATA),
            Err(cause) => Err(self.fail("describe", inode, &cause)),
        }
    }

    pub(super) fn listxattr(
        &self,
        header: &Header,
        mut body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let _timer = timed(&self.shared.timers.listxattr, header);
        let size = body.u32().ok_or(Errno::IO)?;
        log_op!(header, "op_listxattr({}, {size})", header.node);
        let inode = self.inode(header.node)?;
        let names = if self.list_xattrs {
            match self.shared.image.metadata().file_type(inode) {
                Ok(ty) => xattr::names(inode, ty),
                Err(cause) => return Err(self.fail("stat", inode, &cause)),
            }
        } else {
            b""
        };
        put_xattr(size, names, names.len(), out)
    }

    /// Says what opening would do. The kernel asks only if it does not check permissions itself.
    pub(super) fn access(&self, header: &Header, mut body: Body<'_>) -> Outcome {
        let wanted = body.u32().ok_or(Errno::IO)?;
        log_op!(header, "op_access({}, {wanted})", header.node);
        let inode = self.inode(header.node)?;
        match self.shared.image.metadata().stat(inode) {
            Ok(stat) if opens(self.policy.mode(&stat), wanted) => Ok(Answer::Reply),
            Ok(_) => Err(Errno::ACCESS),
            Err(cause) => Err(self.fail("stat", inode, &cause)),
        }
    }
}

/// Answers with a value, or with its size if that was asked for.
fn put_xattr(room: u32, value: &[u8], announced: usize, out: &mut Vec<u8>) -> Outcome {
    if room == 0 {
        out.put32(u32::try_from(announced).map_err(|_| Errno::TOOBIG)?);
        out.put32(0);
    } else if value.len() <= room as usize {
        out.extend_from_slice(value);
    } else {
        return Err(Errno::RANGE);
    }
    Ok(Answer::Reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_sizes() {
        let ask = |room| {
            let mut out = Vec::new();
            put_xattr(room, b"12345", 4101, &mut out).map(|_| out)
        };
        assert_eq!(ask(0), Ok([4101u32.to_ne_bytes(), [0; 4]].concat()));
        assert_eq!(ask(4), Err(Errno::RANGE));
        assert_eq!(ask(5), Ok(b"12345".to_vec()));
    }
}
