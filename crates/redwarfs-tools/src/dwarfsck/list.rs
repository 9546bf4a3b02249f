//! Listing the names of an image.

use std::fmt::Write as _;

use redwarfs_format::metadata::{FileType, Stat, mode_string};
use redwarfs_reader::Image;

use super::Output;
use crate::common::Result;
use crate::common::time::LocalTime;

/// Prints one path per line.
pub(crate) fn short(image: &Image, out: &mut Output) -> Result<()> {
    for item in image.walk() {
        let item = item?;
        if !item.path.is_empty() {
            out.line(&String::from_utf8_lossy(&item.path))?;
        }
    }
    Ok(())
}

/// Prints mode, owner, size, time and path, in columns.
pub(crate) fn long(image: &Image, out: &mut Output) -> Result<()> {
    let (mut uid, mut gid, mut size) = (0, 0, 0);
    for item in image.walk() {
        let stat = image.stat(item?.inode)?;
        uid = uid.max(stat.uid);
        gid = gid.max(stat.gid);
        size = size.max(stat.size);
    }
    let width = |n: u64| n.to_string().len();
    let widths = (width(uid.into()), width(gid.into()), width(size));
    let mut line = String::new();
    for item in image.walk() {
        let item = item?;
        let stat = image.stat(item.inode)?;
        line.clear();
        attributes(&mut line, &stat, widths);
        if item.path.is_empty() {
            line.push('.');
        } else {
            line.push_str(&String::from_utf8_lossy(&item.path));
        }
        if stat.file_type() == Some(FileType::Symlink) {
            line.push_str(" -> ");
            line.push_str(&String::from_utf8_lossy(&image.read_link(item.inode)?));
        }
        out.line(&line)?;
    }
    Ok(())
}

fn attributes(line: &mut String, stat: &Stat, (uid, gid, size): (usize, usize, usize)) {
    let t = LocalTime::from_unix(stat.mtime.sec);
    // Writing to a string cannot fail.
    let _ = write!(
        line,
        "{} {:>uid$}/{:<gid$} {:>size$} {:04}-{:02}-{:02} {:02}:{:02} ",
        mode_string(stat.mode),
        stat.uid,
        stat.gid,
        stat.size,
        t.year,
        t.month,
        t.day,
        t.hour,
        t.minute
    );
}
