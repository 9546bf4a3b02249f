//! The header before an image, and checks that a search finds the image after it, and that a runtime there
//! reads it.

use std::env;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use redwarfs_format::section::{
    CompressionId, Container, ReadAt, SectionHeader, SectionType, locate_image,
};
use redwarfs_io::{FileSource, Source};
use redwarfs_reader::Image;
use redwarfs_rewrite::Leading;

use super::args::Args;
use crate::common::error::{cause_at, display_path};
use crate::common::os::is_executable;
use crate::common::program::{Program, clear_signature, reader, signature};
use crate::common::{Logger, Result, ToolError};

/// The value of `--header` that stands for the program in front of self-mounting files.
const RUNTIME: &str = "runtime";
/// Its file.
const RUNTIME_FILE: &str = "dwarfs-runtime";
/// Variable of the environment that names another file.
const RUNTIME_VARIABLE: &str = "REDWARFS_RUNTIME";

/// What the runtime starts, in the root of the image.
const PROGRAM: &str = "AppRun";

/// By which launchers recognise an AppImage of type 2, in bytes of the ELF header that nothing else uses.
const APPIMAGE_MAGIC: [u8; 3] = *b"AI\x02";
const APPIMAGE_MAGIC_AT: usize = 8;

/// By which a runtime names each codec that it reads; the name follows, and a zero.
const RUNTIME_READS: &[u8] = b"redwarfs-runtime reads ";
/// Those names, and what they stand for in an image.
const CODECS: [(&[u8], &[CompressionId]); 6] = [
    (b"zstd", &[CompressionId::ZSTD]),
    (b"lzma", &[CompressionId::LZMA]),
    (b"lz4", &[CompressionId::LZ4, CompressionId::LZ4HC]),
    (b"brotli", &[CompressionId::BROTLI]),
    (b"ricepp", &[CompressionId::RICEPP]),
    (b"flac", &[CompressionId::FLAC]),
];
/// Bytes of a header in which a runtime is looked for.
const LARGEST_RUNTIME: u64 = 64 << 20;

/// Whether the value of `--header` makes the output a program.
pub(super) fn is_runtime(header: &Path) -> bool {
    header.as_os_str() == RUNTIME
}

/// The header of an image, for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// Its length in bytes.
    pub(super) length: u64,
    /// What it is.
    pub(super) what: String,
    /// Whether it is something that a system can start.
    pub(super) runs: bool,
}

impl Header {
    /// What `--header` names, whose bytes were read.
    pub(super) fn new(header: &Path, bytes: &[u8]) -> Self {
        let path = match is_runtime(header) {
            true => runtime().unwrap_or_default(),
            false => header.to_owned(),
        };
        let program = Program::of(bytes);
        let kind = match program {
            Some(Program::Elf(Some(machine))) => machine,
            Some(Program::Elf(None)) => "for a processor that is not known here",
            Some(Program::Script) => "a script",
            None => "no program",
        };
        Self {
            length: bytes.len() as u64,
            what: format!("{} ({kind})", display_path(&path)),
            runs: program.is_some(),
        }
    }

    /// What is in front of an image that is rewritten.
    fn kept(length: u64) -> Self {
        Self {
            length,
            what: "as it was".to_owned(),
            runs: false,
        }
    }

    /// Says if a system cannot start the file.
    pub(super) fn warn_if_no_program(&self, header: &Path, logger: &Logger) {
        if self.runs {
            return;
        }
        let what = match self.length {
            0 => "it is empty",
            _ => "it is neither an ELF file nor a script that begins with #!",
        };
        logger.warn(format_args!(
            "the output will not run: {}: {what}",
            display_path(header)
        ));
    }
}

/// What will be in front of an image that is made from another one.
#[derive(Debug, Default)]
pub(super) struct Front {
    pub(super) header: Option<Header>,
    /// Its length in bytes.
    pub(super) length: u64,
    /// Whether whoever may read the output may execute it: what is in front is a program, or was one.
    pub(super) runs: bool,
}

impl Front {
    /// Follows from what the user wants to be in front, and from what is in front of the `old` image in the file
    /// `path`. A signature that would be kept is left out.
    pub(super) fn settle(
        leading: &mut Leading,
        args: &Args,
        old: &Image,
        path: &Path,
        logger: &Logger,
    ) -> Result<Self> {
        let length = old.container().offset;
        let ran = length > 0 && std::fs::metadata(path).is_ok_and(|file| is_executable(&file));
        let header = match (&*leading, &args.header) {
            (Leading::Replace(bytes), Some(header)) => {
                let front = Header::new(header, bytes);
                front.warn_if_no_program(header, logger);
                Some(front)
            }
            (Leading::Remove, _) => None,
            _ if length == 0 => None,
            _ => {
                if let Some(bytes) = without_signature(old)? {
                    warn_of_signature("front of the image", logger);
                    *leading = Leading::Replace(bytes);
                }
                Some(Header::kept(length))
            }
        };
        Ok(Self {
            length: header.as_ref().map_or(0, |header| header.length),
            runs: header.as_ref().is_some_and(|header| header.runs || ran),
            header,
        })
    }
}

/// Takes a signature of the old file out of the program in front of an image: it does not fit a new image. None if
/// there is none.
///
/// # Errors
/// If the program cannot be read.
fn without_signature(image: &Image) -> redwarfs_format::Result<Option<Vec<u8>>> {
    let source = image.source();
    let read = |at: u64, out: &mut [u8]| source.read_exact_at(at, out);
    if signature(&read, image.container().offset).is_empty() {
        return Ok(None);
    }
    let mut bytes = image.header_bytes()?;
    clear_signature(&mut bytes);
    Ok(Some(bytes))
}

/// Says that the output has no signature.
fn warn_of_signature(place: impl Display, logger: &Logger) {
    logger.warn(format_args!(
        "the signature in {place} is left out, it does not fit the new file: sign it again"
    ));
}

/// Reads what `--header` names: a file, or the runtime. A signature in it is left out.
///
/// # Errors
/// If it cannot be read, or holds something that a search for the image would find first.
pub(super) fn read(header: &Path, logger: &Logger) -> Result<Vec<u8>> {
    if is_runtime(header) {
        let mut bytes = read_file(&runtime()?)?;
        let place = APPIMAGE_MAGIC_AT..APPIMAGE_MAGIC_AT + APPIMAGE_MAGIC.len();
        if bytes.starts_with(b"\x7fELF")
            && let Some(place) = bytes.get_mut(place)
        {
            place.copy_from_slice(&APPIMAGE_MAGIC);
        }
        return Ok(bytes);
    }
    let mut bytes = read_file(header)?;
    if clear_signature(&mut bytes) {
        warn_of_signature(display_path(header), logger);
    }
    Ok(bytes)
}

/// Says if an input lacks the program that the runtime starts. The build goes on: the user may want to mount
/// the file only.
pub(super) fn warn_without_program(root: &Path, logger: &Logger) {
    let program = root.join(PROGRAM);
    let problem = match std::fs::metadata(&program) {
        Err(error) => cause_at(&program, &error),
        Ok(file) if file.is_file() && is_executable(&file) => return,
        Ok(_) => "not an executable file".to_owned(),
    };
    let instead = app_dir_below(root).map_or_else(String::new, |below| {
        format!(" (did you mean -i {}?)", display_path(&below))
    });
    logger.warn(format_args!(
        "the runtime will have nothing to start: {}: {problem}{instead}",
        display_path(&program)
    ));
}

/// The only directory in a directory, if it has the program.
fn app_dir_below(root: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(root).ok()?;
    let mut with_program = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|below| below.join(PROGRAM).symlink_metadata().is_ok());
    let first = with_program.next();
    first.filter(|_| with_program.next().is_none())
}

/// Finds the runtime: where the environment says, beside this program, or in `../lib/redwarfs`.
fn runtime() -> Result<PathBuf> {
    if let Some(path) = env::var_os(RUNTIME_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let program = env::current_exe().unwrap_or_default();
    let directory = program.parent().unwrap_or(Path::new("/"));
    let places = [
        directory.join(RUNTIME_FILE),
        directory.join("../lib/redwarfs").join(RUNTIME_FILE),
    ];
    let found = places.into_iter().find(|place| place.is_file());
    found.ok_or_else(|| {
        ToolError::new("cannot find the runtime")
            .path(directory.join(RUNTIME_FILE))
            .cause("no such file, nor is it in ../lib/redwarfs")
            .hint(format!(
                "set {RUNTIME_VARIABLE} to its path, or give --header=./{RUNTIME} for a file of that name"
            ))
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let header = std::fs::read(path)
        .map_err(|e| ToolError::new("cannot open header file").path(path).io(&e))?;
    match image_in(&header) {
        None => Ok(header),
        Some(at) => Err(ToolError::new("cannot use header file")
            .path(path)
            .cause(format!(
                "what looks like an image at byte {at} would be found in place of the new image"
            ))),
    }
}

/// Where a search finds an image in a header that an image follows.
fn image_in(header: &[u8]) -> Option<u64> {
    let first = SectionHeader::seal(0, SectionType::BLOCK, CompressionId::NONE, &[]).encode();
    let mut file = header.to_vec();
    file.extend_from_slice(&first);
    // A search wants a section header to be followed by something.
    file.push(0);
    locate_image(file.len() as u64, &reader(&file)).ok()
}

/// What the runtime in a header reads, `None` if there is no runtime that says so.
fn codecs_of_runtime(header: &[u8]) -> Option<Vec<CompressionId>> {
    let mut found: Option<Vec<CompressionId>> = None;
    let mut rest = header;
    while let Some(at) = rest
        .windows(RUNTIME_READS.len())
        .position(|w| w == RUNTIME_READS)
    {
        rest = rest.get(at + RUNTIME_READS.len()..).unwrap_or_default();
        let name = rest.split(|&byte| byte == 0).next();
        if let Some((_, ids)) = CODECS.iter().find(|(known, _)| Some(*known) == name) {
            found
                .get_or_insert_with(|| vec![CompressionId::NONE])
                .extend_from_slice(ids);
        }
    }
    found
}

/// Makes sure that a runtime in front of an image can read all of it.
fn check_codecs(container: &Container, read: &ReadAt<'_>) -> io::Result<()> {
    let length = container.offset.min(LARGEST_RUNTIME);
    let mut header = vec![0; usize::try_from(length).unwrap_or_default()];
    read(0, &mut header)?;
    let Some(codecs) = codecs_of_runtime(&header) else {
        return Ok(());
    };
    for position in 0..container.sections.len() as u32 {
        let section = container
            .load_header(read, position)
            .map_err(io::Error::other)?;
        if let Some(used) = section.compression.filter(|used| !codecs.contains(used)) {
            return Err(io::Error::other(format!(
                "the runtime in front does not read {used}, which section {position} needs: choose \
                 another codec with --compression, or a runtime with this one"
            )));
        }
    }
    Ok(())
}

/// Makes sure that a finished image is found where it starts, and reaches to the end of the file. A runtime
/// in front of it must read all of its codecs.
///
/// # Errors
/// What a reader would make of it.
pub(super) fn check_found(file: &FileSource, start: u64) -> io::Result<()> {
    let size = file.len()?;
    let read = |at: u64, buf: &mut [u8]| file.read_exact_at(at, buf);
    let found = locate_image(size, &read).map_err(io::Error::other)?;
    if found != start {
        return Err(io::Error::other(format!(
            "a search for the image finds byte {found} of what is in front of it"
        )));
    }
    let container = Container::open(&read, size, start, None).map_err(io::Error::other)?;
    if container.size != size - start {
        return Err(io::Error::other("the image ends before its file"));
    }
    if start > 0 {
        check_codecs(&container, &read)?;
    }
    Ok(())
}
