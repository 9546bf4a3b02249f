//! Extended attributes that describe the driver and the inodes.
//!
//! They are answered by name. Listed they would end up in copies: programs that copy attributes, and
//! overlay file systems, take every name of the list.

use std::fmt::Write as _;

use redwarfs_format::ids::InodeNo;
use redwarfs_format::metadata::{Extent, FileType, mode_string};
use redwarfs_format::{Error, Result};
use redwarfs_reader::Image;
use redwarfs_reader::perfmon::PerfMonitor;

use crate::policy::Policy;

const PID: &[u8] = b"user.dwarfs.driver.pid";
const PERFMON: &[u8] = b"user.dwarfs.driver.perfmon";
const INODE_INFO: &[u8] = b"user.dwarfs.inodeinfo";

/// On the root of an image in a slot: the number of the slot, and what the image is.
pub(crate) const SLOT: &[u8] = b"user.dwarfs.slot";
pub(crate) const SOURCE: &[u8] = b"user.dwarfs.source";
pub(crate) const NAMES_OF_SLOT: &[u8] = b"user.dwarfs.slot\0user.dwarfs.source\0";
/// On the directory in whose place an image would be: why it is not there.
pub(crate) const ERROR: &[u8] = b"user.dwarfs.error";
pub(crate) const NAMES_OF_FAILED: &[u8] =
    b"user.dwarfs.slot\0user.dwarfs.source\0user.dwarfs.error\0";
/// On the root of a mount of several images: its control socket.
pub(crate) const CONTROL: &[u8] = b"user.dwarfs.driver.ctl";
pub(crate) const NAMES_OF_ROOT: &[u8] = b"user.dwarfs.driver.pid\0user.dwarfs.driver.perfmon\0";

/// Chunks that are listed one by one; more are only counted.
const MAX_CHUNKS: usize = 8;
/// Said in addition to the length of a text that grows.
const GROWTH: usize = 4096;
/// Largest value that the system passes on.
pub(crate) const LARGEST: usize = 1 << 16;
/// What the names of the driver begin with.
pub(crate) const OWN: &[u8] = b"user.dwarfs.";

/// The names of the attributes that an inode of this type has, each ended by a zero byte. The system
/// refuses `user.` attributes of anything but files and directories, so others have none.
pub(crate) fn names(inode: InodeNo, ty: FileType) -> &'static [u8] {
    match ty {
        FileType::Directory if inode == InodeNo::ROOT => {
            b"user.dwarfs.driver.pid\0user.dwarfs.driver.perfmon\0user.dwarfs.inodeinfo\0"
        }
        FileType::Directory | FileType::Regular => b"user.dwarfs.inodeinfo\0",
        _ => b"",
    }
}

/// The value of an attribute.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    /// What to say about its size.
    pub(crate) announced: usize,
}

impl Value {
    pub(crate) fn fixed(text: String) -> Self {
        Self::of_bytes(text.into_bytes())
    }

    pub(crate) fn of_bytes(bytes: Vec<u8>) -> Self {
        Self {
            announced: bytes.len(),
            bytes,
        }
    }
}

/// Describes inodes.
#[derive(Debug)]
pub(crate) struct Describer {
    /// Names of the categories as JSON strings.
    categories: Vec<String>,
}

/// The value of an attribute of the driver itself.
pub(crate) fn of_driver(monitor: &PerfMonitor, name: &[u8]) -> Option<Value> {
    match name {
        PID => Some(Value::fixed(std::process::id().to_string())),
        PERFMON => Some(perfmon(monitor)),
        _ => None,
    }
}

impl Describer {
    /// Decodes the names of the categories.
    pub(crate) fn new(image: &Image) -> Self {
        // Damaged names are no reason to do without the rest.
        let names = image.metadata().category_names().ok().flatten();
        Self {
            categories: names
                .unwrap_or_default()
                .iter()
                .map(|name| json_string(name))
                .collect(),
        }
    }

    /// The value of one attribute; none if the inode does not have it.
    ///
    /// # Errors
    /// The metadata of the inode is corrupt.
    pub(crate) fn value(
        &self,
        image: &Image,
        policy: &Policy,
        inode: InodeNo,
        name: &[u8],
    ) -> Result<Option<Value>> {
        let root = inode == InodeNo::ROOT;
        Ok(if name == INODE_INFO {
            Some(Value::fixed(self.inode_info(image, policy, inode)?))
        } else if root {
            of_driver(image.perfmon(), name)
        } else {
            None
        })
    }

    /// One line of JSON: chunks, owner and mode of an inode.
    fn inode_info(&self, image: &Image, policy: &Policy, inode: InodeNo) -> Result<String> {
        let meta = image.metadata();
        let stat = meta.stat(inode)?;
        let mut out = String::from("{");
        if meta.file_type(inode)? == FileType::Regular {
            self.chunks(image, inode, &mut out)?;
        }
        let mode = policy.mode(&stat);
        write!(
            out,
            "\"gid\":{},\"mode\":{mode},\"modestring\":\"{}\",\"uid\":{}}}",
            policy.gid(&stat),
            mode_string(mode),
            policy.uid(&stat)
        )
        .map_err(no_room)?;
        out.push('\n');
        Ok(out)
    }

    fn chunks(&self, image: &Image, inode: InodeNo, out: &mut String) -> Result<()> {
        let meta = image.metadata();
        let extents = meta.extents(inode)?;
        let count = extents.len();
        if count == 0 {
            return Ok(());
        }
        if count > MAX_CHUNKS {
            return write!(out, "\"chunks\":\"too many chunks ({count})\",").map_err(no_room);
        }
        out.push_str("\"chunks\":[");
        for (n, extent) in extents.enumerate() {
            if n > 0 {
                out.push(',');
            }
            match extent? {
                Extent::Hole { size } => write!(out, "{{\"kind\":\"hole\",\"size\":{size}}}"),
                Extent::Data {
                    block,
                    offset,
                    size,
                } => {
                    write!(out, "{{\"block\":{},", block.0).map_err(no_room)?;
                    // A block without a category in a damaged table is shown without one.
                    let category = meta.block_category(block).ok().flatten();
                    if let Some(name) = category.and_then(|id| self.categories.get(id.index())) {
                        write!(out, "\"category\":{name},").map_err(no_room)?;
                    }
                    write!(
                        out,
                        "\"kind\":\"data\",\"offset\":{offset},\"size\":{size}}}"
                    )
                }
            }
            .map_err(no_room)?;
        }
        out.push_str("],");
        Ok(())
    }
}

fn no_room(_: std::fmt::Error) -> Error {
    Error::Limit(String::from("attribute text"))
}

/// The times of monitored operations. The text grows with every call, also between asking for its
/// size and asking for itself.
fn perfmon(monitor: &PerfMonitor) -> Value {
    match monitor.summary() {
        None => Value::fixed(String::from("performance monitor is disabled\n")),
        Some(mut text) => {
            if text.is_empty() {
                text.push('\n');
            }
            let mut bytes = text.into_bytes();
            bytes.truncate(LARGEST);
            Value {
                announced: bytes.len().saturating_add(GROWTH).min(LARGEST),
                bytes,
            }
        }
    }
}

/// A JSON string; bytes that are no UTF-8 become replacement characters.
fn json_string(text: &[u8]) -> String {
    let mut out = String::from('"');
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_strings() {
        assert_eq!(
            json_string(b"a\"\\\n<x>\xff\x7f"),
            "\"a\\\"\\\\\\u000a<x>\u{fffd}\\u007f\""
        );
    }
}
