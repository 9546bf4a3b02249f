//! The header before an image, and a check that a search finds the image after it.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use redwarfs_format::section::{
    CompressionId, Container, SectionHeader, SectionType, locate_image,
};
use redwarfs_io::{FileSource, Source};

use crate::common::{Result, ToolError};

/// The value of `--header` that stands for the program in front of self-mounting files.
const RUNTIME: &str = "runtime";
/// Its file.
const RUNTIME_FILE: &str = "dwarfs-runtime";
/// Variable of the environment that names another file.
const RUNTIME_VARIABLE: &str = "REDWARFS_RUNTIME";

/// By which launchers recognise an AppImage of type 2, in bytes of the ELF header that nothing else uses.
const APPIMAGE_MAGIC: [u8; 3] = *b"AI\x02";
const APPIMAGE_MAGIC_AT: usize = 8;

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

/// Makes sure that a finished image is found where it starts, and reaches to the end of the file.
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
    Ok(())
}
