//! Archives, recognised by their first bytes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::rc::Rc;

use crate::Format;
use crate::ar;
use crate::cpio::is_cpio;
use crate::decompress::filter_of;
use crate::error::Fault;
use crate::rpm;
use crate::stream::Stream;
use crate::tar::{BLOCK, is_header};

/// An archive that begins with this many zeros is no tar archive: ISO images have them in front.
const EMPTY: usize = 32 << 10;

/// Where the first descriptor of an ISO image begins with `\x01CD001`.
const ISO: u64 = 32 << 10;

/// The format of a stream, if it is one that this crate reads itself.
pub(crate) fn format_of(stream: &mut Stream<'_>) -> Result<Option<Format>, Fault> {
    let start = stream.peek(BLOCK)?;
    if is_cpio(start) {
        return Ok(Some(Format::Cpio));
    }
    if start.starts_with(rpm::MAGIC) {
        return Ok(Some(Format::Rpm));
    }
    if let Some(rest) = start.strip_prefix(ar::MAGIC) {
        // Of a package, the first member is the version of the format.
        return Ok(Some(match rest.starts_with(b"debian-binary") {
            true => Format::Deb,
            false => Format::Ar,
        }));
    }
    let block = start.first_chunk::<BLOCK>();
    // An ISO image begins with zeros, too, but an empty tar archive has nothing else.
    let is_tar = match block {
        Some(block) if block.iter().all(|&b| b == 0) => {
            let more = stream.peek(EMPTY)?;
            more.iter().all(|&b| b == 0) && more.len() < EMPTY
        }
        block => block.is_some_and(is_header),
    };
    Ok(is_tar.then_some(Format::Tar))
}

/// Whether a file is an archive, or compressed, by its first bytes. `false` if it cannot be read.
///
/// An archive can have an image as a member, which a search for images finds.
#[must_use]
pub fn is_archive(path: &Path) -> bool {
    let Ok(mut file) = File::open(path) else {
        return false;
    };
    let mut descriptor = [0; 6];
    let at = file.seek(SeekFrom::Start(ISO));
    let is_iso =
        at.is_ok() && file.read_exact(&mut descriptor).is_ok() && descriptor == *b"\x01CD001";
    if is_iso || file.rewind().is_err() {
        return is_iso;
    }
    let mut stream = Stream::new(Box::new(file), None, Rc::default());
    let foreign = |start: &[u8]| {
        let magics: [&[u8]; 6] = [
            b"PK\x03\x04",
            b"7z\xbc\xaf\x27\x1c",
            b"Rar!\x1a\x07",
            b"xar!",
            b"MSCF",
            b"WARC/",
        ];
        filter_of(start).is_some() || magics.iter().any(|magic| start.starts_with(magic))
    };
    stream.peek(BLOCK).is_ok_and(foreign) || matches!(format_of(&mut stream), Ok(Some(_)))
}
