//! The contents of one file.

use std::io::Write;

use redwarfs_format::metadata::FileType;
use redwarfs_reader::Image;

use crate::Progress;
use crate::archive::end_in_block;
use crate::error::{Error, Result, display_path};

/// Contents are copied in pieces of this size.
const PIECE: usize = 1 << 20;

/// Copies the contents of the regular file at `path` to `out`, holes as zeros; returns their size.
///
/// `path` is relative to the image root; leading and repeated slashes are ignored.
///
/// # Errors
/// [`Error::NotAFile`] if there is no such file, or if the entry is no regular file. A symbolic link is
/// not followed: the error has its target. [`Error::Content`] if the file cannot be read,
/// [`Error::Output`] if writing to `out` fails. The contents before an unreadable piece are written.
pub fn extract_file(
    image: &Image,
    path: &[u8],
    out: &mut dyn Write,
    progress: &dyn Progress,
) -> Result<u64> {
    let shown = || display_path(path);
    let not_a_file = |reason: String| Error::NotAFile {
        path: shown(),
        reason,
    };
    let ino = image
        .find_path(path)?
        .ok_or_else(|| not_a_file("no such file in the image".to_owned()))?;
    match image.metadata().file_type(ino)? {
        FileType::Regular => {}
        FileType::Directory => return Err(not_a_file("is a directory".to_owned())),
        FileType::Symlink => {
            let to = display_path(&image.read_link(ino)?);
            return Err(not_a_file(format!("is a symbolic link to {to}")));
        }
        _ => return Err(not_a_file("is not a regular file".to_owned())),
    }
    if path.ends_with(b"/") {
        return Err(not_a_file("is not a directory".to_owned()));
    }
    let size = image.stat(ino)?.size;
    progress.total(size);
    progress.file(&shown, size);
    let fail = |source| Error::Content {
        path: shown(),
        source,
    };
    let extents = image.metadata().extents(ino).map_err(fail)?;
    let _plan = image.plan_reads(extents.map_while(Result::ok).filter_map(end_in_block));
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < size {
        let wanted = usize::try_from(size - at).unwrap_or(PIECE).min(PIECE);
        let n = image
            .read_at(ino, at, &mut buffer[..wanted])
            .map_err(fail)?;
        if n == 0 {
            return Err(fail(redwarfs_format::Error::corrupt(
                "file is shorter than its size",
            )));
        }
        out.write_all(&buffer[..n]).map_err(Error::Output)?;
        at += n as u64;
        progress.advance(n as u64);
    }
    out.flush().map_err(Error::Output)?;
    Ok(size)
}
