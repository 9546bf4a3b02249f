//! From archives to a tree with contents.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redwarfs_writer::{LayerName, Level, Phase, Progress, log_spilled};

use crate::ar::Ar;
use crate::cpio::Cpio;
use crate::decompress::decompressed;
use crate::detect::format_of;
use crate::error::{ArchivePosition, Error, Fault, Result};
use crate::image::ImageArchive;
use crate::inode::Data;
use crate::library::Library;
use crate::member::{Kind, Member, Members, Part};
use crate::source::ArchiveSource;
use crate::store::{InPlace, SpoolWriter, StoreNumber, Stores};
use crate::stream::{Failed, Plain, Raw, Stream};
use crate::tar::Tar;
use crate::tree::{Placed, Tree};
use crate::{Archive, ArchiveOptions, Format, Whiteouts, rpm};

/// Bytes that are copied at a time.
const COPY: usize = 256 << 10;

/// A tree that takes more than this part of the memory limit goes to a temporary file.
const SPILLED_FROM: u64 = 16;

/// Bytes of a path that messages show.
const MOST_SHOWN: usize = 4096;

/// Reads archives, one after the other, each once.
struct Reader<'a> {
    options: &'a ArchiveOptions,
    progress: &'a dyn Progress,
    stop: &'a AtomicBool,
    tree: Tree,
    spool: Option<SpoolWriter>,
    archives: Vec<InPlace>,
    buffer: Vec<u8>,
}

/// What is known while an archive is read.
#[derive(Default)]
struct ReadProgress {
    entries: u64,
    entry: Option<String>,
    absolute: u64,
    /// What a container image has at its root, and its layers.
    manifest: bool,
    layers: bool,
}

impl ReadProgress {
    fn place(&self, offset: u64, missing: u64) -> ArchivePosition {
        ArchivePosition {
            offset,
            entry: self.entry.clone(),
            missing,
            entries: self.entries.saturating_sub(u64::from(missing > 0)),
        }
    }

    /// Notes what makes a container image.
    fn note(&mut self, path: &[u8]) {
        let path = path.strip_prefix(b"./").unwrap_or(path);
        self.manifest |= matches!(path, b"manifest.json" | b"oci-layout");
        self.layers |= path.starts_with(b"blobs/sha256/") || path.ends_with(b"/layer.tar");
    }
}

/// Bytes that come from elsewhere than a file.
type Given<'a> = Option<Box<dyn Read + 'a>>;

pub(crate) fn read(
    archives: &[Archive],
    given: Given<'_>,
    options: &ArchiveOptions,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<ArchiveSource> {
    progress.phase(Phase::Reading);
    let mut reader = Reader {
        options,
        progress,
        stop,
        tree: Tree::new(),
        spool: None,
        archives: Vec::new(),
        buffer: vec![0; COPY],
    };
    let mut given = given;
    for archive in archives {
        reader.archive(archive, given.take())?;
    }
    let spool = reader.spool.map(SpoolWriter::finish).transpose();
    let spool = spool.map_err(|source| Error::Spool {
        directory: options.spool.clone(),
        source,
    })?;
    if let Some(spool) = &spool {
        let size = spool.size();
        progress.log(
            Level::Verbose,
            &format!("contents wait in a temporary file of {size} bytes"),
        );
    }
    let mut tree = reader.tree.finish();
    let limit = options.memory_limit.unwrap_or(u64::MAX);
    if tree.memory() > limit / SPILLED_FROM {
        let moved = tree.spill(&options.spool, stop);
        match moved {
            Err(_) if stop.load(Ordering::Relaxed) => return Err(Error::Interrupted),
            Err(source) if tree.memory() > limit => {
                return Err(Error::Spool {
                    directory: options.spool.clone(),
                    source,
                });
            }
            moved => log_spilled("entries", &options.spool, &moved, progress),
        }
    }
    let stores = Stores {
        spool,
        archives: reader.archives,
    };
    let label = match archives {
        [only] if only.path != Path::new("-") => only.path.display().to_string(),
        _ => String::new(),
    };
    Ok(ArchiveSource::new(tree, stores, label))
}

/// Bytes of a path for messages.
fn shown(path: &[u8]) -> String {
    let mut line = String::new();
    let start = path.get(..MOST_SHOWN.min(path.len())).unwrap_or_default();
    for c in String::from_utf8_lossy(start).chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    if start.len() < path.len() {
        line.push_str("...");
    }
    line
}

/// An archive that was opened.
struct Input<'a> {
    stream: Stream<'a>,
    /// If contents can stay in it.
    store: Option<InPlace>,
    is_regular: bool,
}

impl<'a> Reader<'a> {
    fn raw<'b>(
        &self,
        inner: Box<dyn Read + 'b>,
        count: &'b AtomicU64,
        failed: &Rc<Cell<Failed>>,
    ) -> Raw<'b>
    where
        'a: 'b,
    {
        Raw {
            inner,
            count,
            stop: self.stop,
            failed: Rc::clone(failed),
        }
    }

    /// Opens an archive. What is read of it counts in `count`.
    fn input<'b>(
        &self,
        archive: &Archive,
        given: Given<'b>,
        count: &'b AtomicU64,
    ) -> io::Result<Input<'b>>
    where
        'a: 'b,
    {
        let failed = Rc::<Cell<Failed>>::default();
        let stream = |inner: Box<dyn Read + 'b>, plain: Option<Plain<'b>>| {
            let raw = self.raw(inner, count, &failed);
            Stream::new(Box::new(raw), plain, Rc::clone(&failed))
        };
        if let Some(given) = given {
            return Ok(Input {
                stream: stream(given, None),
                store: None,
                is_regular: false,
            });
        }
        if archive.path == Path::new("-") {
            return Ok(Input {
                stream: stream(Box::new(io::stdin()), None),
                store: None,
                is_regular: false,
            });
        }
        let mut file = File::open(&archive.path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || file.stream_position().is_err() {
            return Ok(Input {
                stream: stream(Box::new(file), None),
                store: None,
                is_regular: false,
            });
        }
        let mut shared = file.try_clone()?;
        let plain = Plain {
            seek: Box::new(move |to| shared.seek(SeekFrom::Start(to)).map(drop)),
            len: metadata.len(),
            count,
        };
        let store = InPlace::new(file.try_clone()?, &archive.path)?;
        Ok(Input {
            stream: stream(Box::new(file), Some(plain)),
            store: Some(store),
            is_regular: true,
        })
    }

    fn archive(&mut self, archive: &Archive, given: Given<'_>) -> Result<()> {
        let failed = |source| Error::Read {
            path: archive.path.clone(),
            source,
        };
        if self.options.format == Format::Oci {
            return self.image(archive, given);
        }
        let counters = self.progress.counters();
        let input = self.input(archive, given, &counters.archive_bytes);
        let Input {
            stream,
            store,
            is_regular,
        } = input.map_err(failed)?;
        if let Some(store) = &store {
            let size = &counters.archive_size;
            size.fetch_add(store.len(), Ordering::Relaxed);
        }
        let regular = is_regular.then_some(archive.path.as_path());
        let mut state = ReadProgress::default();
        let at = |fault: Fault, place| fault.at(&archive.path, place, self.options);
        let mut members =
            open(stream, regular, self.options).map_err(|fault| at(fault, state.place(0, 0)))?;
        let base = archive.name.as_deref().unwrap_or_default();
        self.tree
            .begin(base)
            .map_err(|what| at(Fault::unsupported(what), state.place(0, 0)))?;
        let number = self.archives.len() as StoreNumber + 1;
        let mut used = false;
        let options = self.options;
        let done = self.members(&mut *members, number, &mut used, &mut state);
        if let Err(fault) = done {
            let place = state.place(members.position(), members.left());
            return Err(fault.at(&archive.path, place, options));
        }
        if used {
            self.archives.extend(store);
        }
        self.last_words(archive, &*members, done.unwrap_or_default(), &state);
        Ok(())
    }

    /// Reads a container image: the layers in it, the lowest first.
    fn image(&mut self, archive: &Archive, given: Given<'_>) -> Result<()> {
        let options = self.options;
        let nowhere = || ArchivePosition {
            offset: 0,
            entry: None,
            missing: 0,
            entries: 0,
        };
        let at = |fault: Fault| fault.at(&archive.path, nowhere(), options);
        let images = self.open_image(archive, given).map_err(at)?;
        let layers = images.layers(self.stop).map_err(at)?;
        let counters = self.progress.counters();
        let size = layers.iter().map(|layer| layer.blob.1).sum();
        counters.archive_size.fetch_add(size, Ordering::Relaxed);
        let number = self.archives.len() as StoreNumber + 1;
        let mut used = false;
        // An image can have a layer several times.
        let mut verified = HashSet::new();
        for layer in &layers {
            if verified.insert((layer.blob, layer.digest.clone()))
                && !images.verify(layer, self.stop).map_err(at)?
            {
                let message = format!(
                    "{}: the layer '{}' has no digest to compare",
                    archive.path.display(),
                    layer.path
                );
                self.progress.log(Level::Verbose, &message);
            }
            let (start, size) = layer.blob;
            let section = images.store().section(start, size);
            let section = section.map_err(Fault::Read).map_err(at)?;
            let next = Rc::clone(&section.next);
            let plain = Plain {
                seek: Box::new(move |to| {
                    next.set(to);
                    Ok(())
                }),
                len: start.saturating_add(size),
                count: &counters.archive_bytes,
            };
            let failed = Rc::default();
            let raw = self.raw(Box::new(section), &counters.archive_bytes, &failed);
            let stream = Stream::new(Box::new(raw), Some(plain), failed).starting_at(start);
            let mut stream = decompressed(stream).map_err(at)?;
            if format_of(&mut stream).map_err(at)? != Some(Format::Tar) {
                let what = format!("the layer '{}' is no tar archive", layer.path);
                return Err(at(Fault::unsupported(what)));
            }
            let mut members = Tar::new(stream, &options.accounts);
            let base = archive.name.as_deref().unwrap_or_default();
            let begun = self.tree.begin(base).map_err(Fault::unsupported);
            begun.map_err(at)?;
            let mut state = ReadProgress::default();
            let done = self.members(&mut members, number, &mut used, &mut state);
            let more = done.map_err(|fault| {
                let place = state.place(members.position(), members.left());
                let fault = match fault {
                    Fault::Damaged(what) => {
                        Fault::damaged(format!("the layer '{}': {what}", layer.path))
                    }
                    other => other,
                };
                fault.at(&archive.path, place, options)
            })?;
            self.last_words(archive, &members, more, &state);
        }
        let count = layers.len();
        let name = archive.path.display();
        self.progress.log(
            Level::Verbose,
            &format!("{name}: a container image with {count} layers"),
        );
        if used {
            self.archives.push(images.into_store());
        }
        Ok(())
    }

    /// Lists an archive with a container image. If it is compressed or comes from a pipe, it is copied to a
    /// temporary file first.
    fn open_image(&self, archive: &Archive, given: Given<'_>) -> Result<ImageArchive, Fault> {
        // Listing reads only the headers.
        let count = AtomicU64::new(0);
        let input = self.input(archive, given, &count).map_err(Fault::Read)?;
        let mut stream = decompressed(input.stream)?;
        if let Some(store) = input.store.filter(|_| stream.is_plain()) {
            return ImageArchive::new(&mut Tar::new(stream, &self.options.accounts), store);
        }
        let file = copied(&mut stream, self.options)?;
        let mut shared = file.try_clone().map_err(Fault::Spool)?;
        let store = InPlace::new(file.try_clone().map_err(Fault::Spool)?, &archive.path);
        let store = store.map_err(Fault::Spool)?;
        let plain = Plain {
            seek: Box::new(move |to| shared.seek(SeekFrom::Start(to)).map(drop)),
            len: store.len(),
            count: &count,
        };
        let stream = Stream::new(Box::new(file), Some(plain), Rc::default());
        ImageArchive::new(&mut Tar::new(stream, &self.options.accounts), store)
    }

    /// What there is to say about an archive that was read to its end.
    fn last_words(
        &mut self,
        archive: &Archive,
        members: &dyn Members,
        more: u64,
        state: &ReadProgress,
    ) {
        let name = archive.path.display();
        let progress = self.progress;
        if more > 0 {
            progress.log(
                Level::Warn,
                &format!("{name}: {more} bytes after the end of the archive are ignored"),
            );
        }
        if !members.is_marked() {
            progress.log(
                Level::Warn,
                &format!("{name}: the end of the archive is not marked, it may be incomplete"),
            );
        }
        if state.absolute > 0 {
            let count = state.absolute;
            progress.log(
                Level::Info,
                &format!("{name}: removed the '/' at the beginning of {count} names"),
            );
        }
        if state.manifest && state.layers && self.options.format != Format::Oci {
            progress.log(
                Level::Warn,
                &format!(
                    "{name}: a container image; --input-format=oci takes the files of its layers instead"
                ),
            );
        }
        for path in self.tree.end() {
            self.problem(
                &path,
                "its other name, to which it is a hard link, is not in the archive",
            );
        }
    }

    /// An entry that is left out.
    fn problem(&self, path: &[u8], what: &str) {
        let errors = &self.progress.counters().errors;
        errors.fetch_add(1, Ordering::Relaxed);
        let path = shown(path);
        self.progress
            .log(Level::Error, &format!("leaving out '{path}': {what}"));
    }

    /// Reads all members. Returns how many bytes follow the archive.
    fn members(
        &mut self,
        members: &mut dyn Members,
        number: StoreNumber,
        in_place: &mut bool,
        state: &mut ReadProgress,
    ) -> Result<u64, Fault> {
        while let Some(member) = members.next()? {
            state.entries += 1;
            state.entry = Some(shown(&member.path));
            state.absolute += u64::from(member.path.starts_with(b"/"));
            state.note(&member.path);
            self.progress.counters().set_current(&member.path);
            if self.stop.load(Ordering::Relaxed) {
                return Err(Fault::Interrupted);
            }
            if let Some(remark) = &member.remark {
                let path = shown(&member.path);
                self.progress
                    .log(Level::Warn, &format!("'{path}': {remark}"));
            }
            let placed = match self.whiteout(&member) {
                Some(done) => done.map(|()| Placed::Done),
                None => self.tree.add(&member),
            };
            match placed {
                Ok(Placed::Done) => {}
                Ok(Placed::Inode(inode)) => {
                    self.contents(members, &member, inode, number, in_place)?;
                }
                Err(what) => self.problem(&member.path, what),
            }
            // One entry may have megabytes of attributes.
            let limit = self.options.memory_limit.unwrap_or(u64::MAX);
            if self.tree.memory() > limit {
                return Err(Fault::Memory);
            }
        }
        state.entry = None;
        members.finish()
    }

    /// Handles a whiteout, if the member is one.
    fn whiteout(&mut self, member: &Member) -> Option<Result<(), &'static str>> {
        if self.options.whiteouts == Whiteouts::Keep {
            return None;
        }
        let path = member.path.strip_suffix(b"/").unwrap_or(&member.path);
        let start = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        let (above, name) = path.split_at_checked(start)?;
        let meaning = LayerName::of(name);
        let removed = match meaning {
            LayerName::Entry => return None,
            LayerName::Whiteout(rest) => [above, rest].concat(),
            LayerName::Opaque | LayerName::Internal => Vec::new(),
        };
        Some(match (meaning, self.options.whiteouts) {
            (LayerName::Whiteout(b""), _) => Err("it is a whiteout without a name"),
            (LayerName::Opaque, Whiteouts::Overlay) => self.tree.make_opaque_there(above),
            (LayerName::Opaque, _) => self.tree.make_opaque(above),
            (LayerName::Internal, _) => {
                let path = shown(path);
                self.progress.log(
                    Level::Verbose,
                    &format!("ignoring '{path}', which is for AUFS"),
                );
                Ok(())
            }
            (_, Whiteouts::Overlay) => {
                let device = Member {
                    path: removed,
                    kind: Kind::CharDevice(0),
                    mtime: member.mtime,
                    ..Member::default()
                };
                self.tree.add_whiteout(&device)
            }
            _ => match self.tree.white_out(&removed) {
                Ok(false) => {
                    let path = shown(path);
                    self.progress
                        .log(Level::Verbose, &format!("nothing to remove for '{path}'"));
                    Ok(())
                }
                done => done.map(drop),
            },
        })
    }

    /// Stores the contents of a member.
    fn contents(
        &mut self,
        members: &mut dyn Members,
        member: &Member,
        inode: u32,
        number: StoreNumber,
        in_place: &mut bool,
    ) -> Result<(), Fault> {
        let (store, parts) = match members.in_place() {
            Some(parts) => {
                *in_place |= !parts.is_empty();
                (number, parts)
            }
            None => (0, self.copy(members)?),
        };
        let end = parts.last().map_or(0, |part| part.offset + part.size);
        let size = member.size.unwrap_or(end).max(end);
        // Only sparse files and hard links may have less.
        if end < size && member.map.is_none() && member.kind == Kind::Regular {
            let missing = size - end;
            return Err(Fault::damaged(format!(
                "its contents are {missing} bytes shorter than its size"
            )));
        }
        let data = match parts[..] {
            [] if size == 0 => Data::Empty,
            [part] if part.offset == 0 && part.size == size => Data::Whole { store, at: part.at },
            _ => Data::Parts {
                store,
                parts: parts.into(),
            },
        };
        self.tree.set_contents(inode, size, data);
        Ok(())
    }

    /// Copies contents to the temporary file.
    fn copy(&mut self, members: &mut dyn Members) -> Result<Vec<Part>, Fault> {
        let mut parts: Vec<Part> = Vec::new();
        while let Some((offset, size)) = members.data(&mut self.buffer)? {
            let spool = match &mut self.spool {
                Some(spool) => spool,
                None => self
                    .spool
                    .insert(SpoolWriter::new(&self.options.spool).map_err(Fault::Spool)?),
            };
            let at = spool.position();
            let bytes = self.buffer.get(..size).unwrap_or_default();
            spool.write(bytes).map_err(Fault::Spool)?;
            let size = size as u64;
            match parts.last_mut() {
                Some(last) if last.offset + last.size == offset => last.size += size,
                Some(last) if last.offset + last.size > offset => {
                    return Err(Fault::damaged("the data of a file overlaps"));
                }
                _ => parts.push(Part { offset, size, at }),
            }
        }
        Ok(parts)
    }
}

/// Finds out about the format of a stream. `path` is the file that it comes from, if this is a regular
/// one.
fn open<'a>(
    stream: Stream<'a>,
    path: Option<&Path>,
    options: &ArchiveOptions,
) -> Result<Box<dyn Members + 'a>, Fault> {
    let format = options.format;
    if let Format::Library(_) = format {
        return library(stream, path, options);
    }
    let mut stream = decompressed(stream)?;
    let found = match format {
        Format::Auto => format_of(&mut stream)?,
        format => Some(format),
    };
    let Some(format) = found else {
        return library(stream, path, options);
    };
    Ok(match format {
        Format::Cpio => Box::new(Cpio::new(stream)),
        Format::Ar => Box::new(Ar::new(stream)),
        Format::Deb => {
            let data = decompressed(Ar::new(stream).data_of_package()?)?;
            Box::new(Tar::new(data, &options.accounts))
        }
        Format::Rpm => {
            rpm::skip_headers(&mut stream)?;
            Box::new(Cpio::new(decompressed(stream)?))
        }
        Format::Tar | Format::Auto | Format::Oci | Format::Library(_) => {
            Box::new(Tar::new(stream, &options.accounts))
        }
    })
}

/// A copy of a stream in a temporary file, which can be read at any offset.
fn copied(stream: &mut Stream<'_>, options: &ArchiveOptions) -> Result<File, Fault> {
    let file = redwarfs_io::temporary_file(&options.spool);
    let mut file = file.map_err(Fault::Spool)?;
    let mut buffer = vec![0; COPY];
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            n => {
                let bytes = buffer.get(..n).unwrap_or_default();
                file.write_all(bytes).map_err(Fault::Spool)?;
            }
        }
    }
    file.rewind().map_err(Fault::Spool)?;
    Ok(file)
}

/// Has libarchive read an archive. Some of its formats need a file that can be read at any offset.
fn library<'a>(
    mut stream: Stream<'a>,
    path: Option<&Path>,
    options: &ArchiveOptions,
) -> Result<Box<dyn Members + 'a>, Fault> {
    let file = match path {
        Some(path) => File::open(path).map_err(Fault::Read)?,
        None => copied(&mut stream, options)?,
    };
    let process = options.library.as_ref();
    Ok(Box::new(Library::open(file, options.format, process)?))
}
