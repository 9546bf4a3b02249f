//! Extended attributes that describe the driver and the inodes.

use std::fmt::Write as _;

use redwarfs_format::ids::InodeNo;
use redwarfs_format::metadata::{Extent, FileType, mode_string};
use redwarfs_format::{Error, Result};
use redwarfs_reader::Image;

use crate::attr::Policy;

const PID: &[u8] = b"user.dwarfs.driver.pid";
const PERFMON: &[u8] = b"user.dwarfs.driver.perfmon";
const INODE_INFO: &[u8] = b"user.dwarfs.inodeinfo";

/// Chunks that are listed one by one; more are only counted.
const MAX_CHUNKS: usize = 8;

/// The names of an inode's attributes, each ended by a zero byte.
pub(crate) fn names(inode: InodeNo) -> &'static [u8] {
    if inode == InodeNo::ROOT {
        b"user.dwarfs.driver.pid\0user.dwarfs.driver.perfmon\0user.dwarfs.inodeinfo\0"
    } else {
        b"user.dwarfs.inodeinfo\0"
    }
}

/// The value of one attribute; none if the inode does not have it.
pub(crate) fn value(
    image: &Image,
    policy: &Policy,
    inode: InodeNo,
    name: &[u8],
) -> Result<Option<Vec<u8>>> {
    let root = inode == InodeNo::ROOT;
    Ok(if name == INODE_INFO {
        Some(inode_info(image, policy, inode)?.into_bytes())
    } else if root && name == PID {
        Some(std::process::id().to_string().into_bytes())
    } else if root && name == PERFMON {
        Some(b"performance monitor is disabled\n".to_vec())
    } else {
        None
    })
}

/// One line of JSON: chunks, owner and mode of an inode.
fn inode_info(image: &Image, policy: &Policy, inode: InodeNo) -> Result<String> {
    let meta = image.metadata();
    let ty = meta.file_type(inode)?;
    let stat = meta.stat(inode)?;
    let mut out = String::from("{");
    if ty == FileType::Regular {
        chunks(image, inode, &mut out)?;
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

fn no_room(_: std::fmt::Error) -> Error {
    Error::Limit(String::from("attribute text"))
}

fn chunks(image: &Image, inode: InodeNo, out: &mut String) -> Result<()> {
    let meta = image.metadata();
    let count = meta.extents(inode)?.count();
    if count == 0 {
        return Ok(());
    }
    if count > MAX_CHUNKS {
        return write!(out, "\"chunks\":\"too many chunks ({count})\",").map_err(no_room);
    }
    let names = meta.category_names()?;
    out.push_str("\"chunks\":[");
    for (n, extent) in meta.extents(inode)?.enumerate() {
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
                let category = meta.block_category(block)?;
                if let Some(name) = category.and_then(|id| names.as_ref()?.get(id.index())) {
                    out.push_str("\"category\":");
                    json_string(name, out)?;
                    out.push(',');
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

/// A JSON string; bytes that are no UTF-8 become replacement characters.
fn json_string(text: &[u8], out: &mut String) -> Result<()> {
    out.push('"');
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() && c.is_ascii() => {
                write!(out, "\\u{:04x}", u32::from(c)).map_err(no_room)?;
            }
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_strings() {
        let mut out = String::new();
        json_string(b"a\"\\\n<x>\xff", &mut out).expect("a string takes everything");
        assert_eq!(out, "\"a\\\"\\\\\\u000a<x>\u{fffd}\"");
    }
}
