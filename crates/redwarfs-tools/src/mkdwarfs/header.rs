//! The header before an image, and checks that a search finds the image after it, and that a runtime there
//! reads it.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use redwarfs_format::section::{
    CompressionId, Container, ReadAt, SectionHeader, SectionType, locate_image,
};
use redwarfs_io::{FileSource, Source};

use crate::common::error::{cause_at, display_path};
use crate::common::os::is_executable;
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

/// Reads what `--header` names: a file, or the runtime.
///
/// # Errors
/// If it cannot be read, or holds something that a search for the image would find first.
pub(super) fn read(header: &Path) -> Result<Vec<u8>> {
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
    read_file(header)
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
    logger.warn(format_args!(
        "the runtime will have nothing to start: {}: {problem}",
        display_path(&program)
    ));
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
    let read = |at: u64, buf: &mut [u8]| {
        let rest = usize::try_from(at).ok().and_then(|at| file.get(at..));
        let bytes = rest.and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    locate_image(file.len() as u64, &read).ok()
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
