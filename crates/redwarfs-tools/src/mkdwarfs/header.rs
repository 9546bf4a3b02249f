//! The header before an image, and a check that a search finds the image after it.

use std::io;
use std::path::Path;

use redwarfs_format::section::{
    CompressionId, Container, SectionHeader, SectionType, locate_image,
};
use redwarfs_io::{FileSource, Source};

use crate::common::{Result, ToolError};

/// Reads the file of `--header`.
///
/// # Errors
/// If it cannot be read, or holds something that a search for the image would find first.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
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
