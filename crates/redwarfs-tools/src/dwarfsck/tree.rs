//! The tree of directories with everything in it, one entry after another.

use std::borrow::Cow;
use std::io::Write;

use redwarfs_extractor::display_path;
use redwarfs_format::metadata::{Extent, FileType, MetadataView, Stat, Timestamp, mode_string};
use redwarfs_format::{InodeNo, Result};
use redwarfs_reader::{Image, WalkEntry};

use super::output::Failures;
use crate::common::json::JsonWriter;

/// Levels that are indented; a tree may be thousands of levels deep.
const MOST_INDENTED: usize = 256;

/// Writes the tree, with `chunks` also the pieces of every file.
///
/// # Errors
/// `Io` if writing failed. Entries that cannot be shown go to `failures`.
pub(super) fn text(
    image: &Image,
    chunks: bool,
    failures: &mut Failures<'_>,
    out: &mut dyn Write,
) -> Result<()> {
    for item in image.walk() {
        let shown = item.and_then(|item| Ok((describe(image.metadata(), &item)?, item)));
        match shown {
            Ok((line, item)) => {
                let indent = indent(item.depth);
                writeln!(out, "{indent}{line}")?;
                if chunks && image.metadata().file_type(item.inode).ok() == Some(FileType::Regular)
                {
                    chunk_lines(image.metadata(), item.inode, &indent, failures, out)?;
                }
            }
            Err(e) => failures.add("cannot show an entry", None, &e),
        }
    }
    Ok(())
}

fn indent(depth: u32) -> String {
    "  ".repeat((depth as usize).min(MOST_INDENTED))
}

/// The line of an entry.
fn describe(view: &MetadataView, item: &WalkEntry) -> Result<String> {
    let stat = view.entry_stat(item.entry)?;
    let name = view.entry_name(item.entry)?;
    let mut line = format!("<inode:{}> {}", item.inode, mode_string(stat.mode));
    if !name.is_empty() {
        line.push(' ');
        line.push_str(&display_path(&name));
    }
    line.push_str(&match view.file_type(item.inode)? {
        FileType::Directory => {
            let parent = view.self_entry(view.parent(item.inode)?)?;
            format!(" ({} entries, parent={parent})", stat.size)
        }
        FileType::Regular => {
            let content = view.content_id(item.inode)?;
            let mut text = format!(
                " [{}, {}] {}",
                view.first_chunk(content)?,
                view.first_chunk(content.saturating_add(1))?,
                stat.size
            );
            if stat.allocated != stat.size {
                text.push_str(&format!(" (allocated: {})", stat.allocated));
            }
            text
        }
        FileType::Symlink => format!(" -> {}", display_path(&view.symlink(item.inode)?)),
        FileType::BlockDevice => format!(" (block device: {})", stat.rdev),
        FileType::CharDevice => format!(" (char device: {})", stat.rdev),
        FileType::Fifo => " (named pipe)".to_owned(),
        FileType::Socket => " (socket)".to_owned(),
    });
    Ok(line)
}

fn chunk_lines(
    view: &MetadataView,
    inode: InodeNo,
    indent: &str,
    failures: &mut Failures<'_>,
    out: &mut dyn Write,
) -> Result<()> {
    let extents = match view.extents(inode) {
        Ok(extents) => extents,
        Err(e) => {
            failures.add("cannot show the chunks of an entry", None, &e);
            return Ok(());
        }
    };
    writeln!(out, "{indent}  {} chunks in inode {inode}", extents.len())?;
    for (i, extent) in extents.enumerate() {
        match extent {
            Ok(Extent::Data {
                block,
                offset,
                size,
            }) => writeln!(
                out,
                "{indent}      [{i}] -> DATA (block={block}, offset={offset}, size={size})"
            )?,
            Ok(Extent::Hole { size }) => {
                writeln!(out, "{indent}      [{i}] -> HOLE (size={size})")?;
            }
            Err(e) => failures.add("cannot show a chunk", None, &e),
        }
    }
    Ok(())
}

/// The name of a type in JSON.
fn type_name(ty: FileType) -> &'static str {
    match ty {
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::Regular => "file",
        FileType::CharDevice => "chardev",
        FileType::BlockDevice => "blockdev",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// Writes the tree as an object, `chunks` as above.
///
/// # Errors
/// As for [`text`].
pub(super) fn json<W: Write>(
    image: &Image,
    chunks: bool,
    failures: &mut Failures<'_>,
    json: &mut JsonWriter<W>,
) -> Result<()> {
    let view = image.metadata();
    // The directories whose entries are being written, by depth.
    let mut open: Vec<(u32, Shown<'_>)> = Vec::new();
    // Depth of a directory that could not be shown. Its entries are left out, too.
    let mut hidden: Option<u32> = None;
    for item in image.walk() {
        let item = match item {
            Ok(item) => item,
            Err(e) => {
                failures.add("cannot show an entry", None, &e);
                continue;
            }
        };
        if hidden.is_some_and(|depth| item.depth > depth) {
            continue;
        }
        hidden = None;
        let shown = match Shown::of(view, &item) {
            Ok(shown) => shown,
            Err(e) => {
                failures.add("cannot show an entry", Some(&item.path), &e);
                hidden = Some(item.depth);
                continue;
            }
        };
        while open.last().is_some_and(|(depth, ..)| *depth >= item.depth) {
            if let Some((_, directory)) = open.pop() {
                json.end_array()?;
                directory.rest(None, json)?;
            }
        }
        json.begin_object()?;
        shown.head(json, |json| {
            if chunks && shown.ty == FileType::Regular {
                chunk_list(view, item.inode, failures, json)?;
            }
            Ok(())
        })?;
        if shown.ty == FileType::Directory {
            json.key("inodes")?;
            json.begin_array()?;
            open.push((item.depth, shown));
        } else {
            shown.rest(None, json)?;
        }
    }
    if hidden == Some(0) {
        json.null()?;
    }
    while let Some((_, directory)) = open.pop() {
        json.end_array()?;
        directory.rest(None, json)?;
    }
    Ok(())
}

/// Extended attributes of an entry that are shown. Linux allows no more than a list of 64 KiB names.
const MOST_XATTRS: usize = 1 << 15;

/// What JSON says of an entry, whether in the tree or in a list.
pub(super) struct Shown<'a> {
    stat: Stat,
    ty: FileType,
    name: Cow<'a, [u8]>,
    target: Option<Cow<'a, [u8]>>,
    birth: Option<Timestamp>,
    flags: u32,
    /// Names of extended attributes, and sizes of their values.
    xattrs: Vec<(Cow<'a, [u8]>, u64)>,
}

impl<'a> Shown<'a> {
    /// Everything that may fail about an entry, before anything of it is written.
    pub(super) fn of(view: &'a MetadataView, item: &WalkEntry) -> Result<Self> {
        let ty = view.file_type(item.inode)?;
        Ok(Self {
            stat: view.entry_stat(item.entry)?,
            ty,
            name: view.entry_name(item.entry)?,
            target: match ty {
                FileType::Symlink => Some(view.symlink(item.inode)?),
                _ => None,
            },
            birth: view.birth_time(item.inode)?,
            flags: view.file_flags(item.inode)?,
            xattrs: view
                .xattrs(item.inode)?
                .take(MOST_XATTRS)
                .map(|xattr| Ok((xattr.name()?, xattr.size()?)))
                .collect::<Result<_>>()?,
        })
    }

    /// An object that names the entry by its path.
    pub(super) fn line<W: Write>(&self, path: &[u8], json: &mut JsonWriter<W>) -> Result<()> {
        json.begin_object()?;
        self.head(json, |_| Ok(()))?;
        self.rest(Some(path), json)
    }

    /// The members that come before `inodes`; `chunks` writes the chunks at their place among them.
    fn head<W: Write>(
        &self,
        json: &mut JsonWriter<W>,
        chunks: impl FnOnce(&mut JsonWriter<W>) -> Result<()>,
    ) -> Result<()> {
        let stat = &self.stat;
        if self.ty == FileType::Regular && stat.allocated != stat.size {
            json.number_at("allocated_size", stat.allocated)?;
        }
        time("atime", stat.atime, json)?;
        if let Some(birth) = self.birth {
            time("btime", birth, json)?;
        }
        chunks(json)?;
        time("ctime", stat.ctime, json)?;
        if self.is_device() {
            json.number_at("device_id", stat.rdev)?;
        }
        if self.flags != 0 {
            json.number_at("flags", self.flags)?;
        }
        json.number_at("gid", stat.gid)?;
        json.number_at("inode", stat.ino.0)?;
        Ok(())
    }

    /// The members that come after `inodes`, and the end.
    fn rest<W: Write>(&self, path: Option<&[u8]>, json: &mut JsonWriter<W>) -> Result<()> {
        let stat = &self.stat;
        json.number_at("mode", stat.mode)?;
        json.string_at("modestring", &mode_string(stat.mode))?;
        time("mtime", stat.mtime, json)?;
        if path.is_none() && !self.name.is_empty() {
            json.name("name", &self.name)?;
        }
        json.number_at("nlink", stat.nlink)?;
        if let Some(path) = path {
            json.name("path", path)?;
        }
        if self.is_device() {
            json.key("rdev")?;
            json.begin_object()?;
            json.number_at("major", redwarfs_format::device::major(stat.rdev))?;
            json.number_at("minor", redwarfs_format::device::minor(stat.rdev))?;
            json.end_object()?;
        }
        if matches!(self.ty, FileType::Regular | FileType::Symlink) {
            json.number_at("size", stat.size)?;
        }
        if let Some(target) = &self.target {
            json.name("target", target)?;
        }
        json.string_at("type", type_name(self.ty))?;
        json.number_at("uid", stat.uid)?;
        if !self.xattrs.is_empty() {
            json.key("xattrs")?;
            json.begin_array()?;
            for (name, size) in &self.xattrs {
                json.begin_object()?;
                json.name("name", name)?;
                json.number_at("size", *size)?;
                json.end_object()?;
            }
            json.end_array()?;
        }
        json.end_object()?;
        Ok(())
    }

    fn is_device(&self) -> bool {
        matches!(self.ty, FileType::BlockDevice | FileType::CharDevice)
    }
}

/// A point in time, in whole numbers.
fn time<W: Write>(key: &str, time: Timestamp, json: &mut JsonWriter<W>) -> Result<()> {
    json.key(key)?;
    json.begin_object()?;
    json.number_at("nsec", time.nsec)?;
    json.number_at("sec", time.sec)?;
    json.end_object()?;
    Ok(())
}

fn chunk_list<W: Write>(
    view: &MetadataView,
    inode: InodeNo,
    failures: &mut Failures<'_>,
    json: &mut JsonWriter<W>,
) -> Result<()> {
    json.key("chunks")?;
    json.begin_array()?;
    match view.extents(inode) {
        Ok(extents) => {
            for extent in extents {
                match extent {
                    Ok(Extent::Data {
                        block,
                        offset,
                        size,
                    }) => {
                        json.begin_object()?;
                        json.number_at("block", block.0)?;
                        json.number_at("offset", offset)?;
                        json.number_at("size", size)?;
                        json.string_at("type", "data")?;
                        json.end_object()?;
                    }
                    Ok(Extent::Hole { size }) => {
                        json.begin_object()?;
                        json.number_at("size", size)?;
                        json.string_at("type", "hole")?;
                        json.end_object()?;
                    }
                    Err(e) => failures.add("cannot show a chunk", None, &e),
                }
            }
        }
        Err(e) => failures.add("cannot show the chunks of an entry", None, &e),
    }
    json.end_array()?;
    Ok(())
}
