//! Listing the names of an image.

use std::fmt::Write as _;

use redwarfs_format::metadata::{FileType, Stat, mode_string};
use redwarfs_reader::{Image, WalkEntry};

use super::output::{Failures, Form, Output, shown};
use super::tree;
use crate::common::Result;
use crate::common::json::JsonWriter;
use crate::common::time::LocalTime;

/// Prints one name per line, with `long` also mode, owner, size and time, in columns, and the root; in
/// JSON always with all attributes.
pub(super) fn print(
    image: &Image,
    long: bool,
    form: Form,
    failures: &mut Failures<'_>,
    out: &mut Output,
) -> Result<()> {
    let widths = (long && form != Form::Json).then(|| widths(image));
    let mut head = String::new();
    for item in image.walk() {
        let item = match item {
            Ok(item) => item,
            Err(e) => {
                failures.add("cannot list an entry", None, &e);
                continue;
            }
        };
        if item.path.is_empty() && !long {
            continue;
        }
        if form == Form::Json {
            object(image, &item, failures, out)?;
            continue;
        }
        head.clear();
        let mut target = None;
        if let Some(widths) = widths {
            match image.metadata().entry_stat(item.entry) {
                Ok(stat) => attributes(&mut head, &stat, widths),
                Err(e) => {
                    failures.add("cannot list", Some(&item.path), &e);
                    continue;
                }
            }
            if image.metadata().file_type(item.inode).ok() == Some(FileType::Symlink) {
                match image.read_link(item.inode) {
                    Ok(text) => target = Some(text),
                    Err(e) => failures.add("cannot read link", Some(&item.path), &e),
                }
            }
        }
        line(&head, &item, target.as_deref(), form, out)?;
    }
    Ok(())
}

/// An object on a separate line.
fn object(
    image: &Image,
    item: &WalkEntry,
    failures: &mut Failures<'_>,
    out: &mut Output,
) -> Result<()> {
    match tree::Shown::of(image.metadata(), item) {
        Ok(shown) => {
            let done = shown.line(path(item), &mut JsonWriter::compact(&mut *out));
            failures.absorb("cannot list an entry", done)?;
            out.bytes(b"\n")
        }
        Err(e) => {
            failures.add("cannot list", Some(&item.path), &e);
            Ok(())
        }
    }
}

/// The path of an entry; the root, which has none, is `.`.
fn path(item: &WalkEntry) -> &[u8] {
    if item.path.is_empty() {
        b"."
    } else {
        &item.path
    }
}

fn line(
    head: &str,
    item: &WalkEntry,
    target: Option<&[u8]>,
    form: Form,
    out: &mut Output,
) -> Result<()> {
    let null = form == Form::Null;
    let put = |bytes: &[u8], out: &mut Output| {
        if null {
            out.bytes(bytes)
        } else {
            out.bytes(shown(bytes).as_bytes())
        }
    };
    out.bytes(head.as_bytes())?;
    put(path(item), out)?;
    if let Some(target) = target {
        out.bytes(b" -> ")?;
        put(target, out)?;
    }
    out.bytes(if null { b"\0" } else { b"\n" })
}

/// Digits of the largest owner, group and size.
fn widths(image: &Image) -> (usize, usize, usize) {
    let (mut uid, mut gid, mut size) = (0, 0, 0);
    // The error is reported when the entry is listed.
    for item in image.walk().flatten() {
        if let Ok(stat) = image.metadata().entry_stat(item.entry) {
            uid = uid.max(stat.uid);
            gid = gid.max(stat.gid);
            size = size.max(stat.size);
        }
    }
    let width = |n: u64| n.to_string().len();
    (width(uid.into()), width(gid.into()), width(size))
}

fn attributes(line: &mut String, stat: &Stat, (uid, gid, size): (usize, usize, usize)) {
    let t = LocalTime::from_unix(stat.mtime.sec);
    // Writing to a string cannot fail.
    let _ = write!(
        line,
        "{} {:>uid$}/{:>gid$} {:>size$} {:04}-{:02}-{:02} {:02}:{:02} ",
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
