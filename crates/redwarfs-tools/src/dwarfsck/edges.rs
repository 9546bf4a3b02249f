//! What is around an image in its file, whether its end is certain, and which bytes of the file no
//! check covers.
//!
//! The headers of sections say where an image ends, and damage can make them say something else: a
//! section that seems to start another image, or an end that was cut off between two sections. So
//! bytes behind an image are an error unless they are declared or cannot have been part of it, and an
//! image without section index is complete only if its history says that it was written so.

use redwarfs_format::Result;
use redwarfs_format::section::Container;
use redwarfs_io::Source;
use redwarfs_reader::{Image, ImageOffset, VerifyMode};

use super::finding::{Finding, Kind};
use super::scan::{Index, Scan};
use super::verdict::counted;

/// Piece in which what follows an image is read.
const PIECE: usize = 1 << 20;
/// Length of the SHA-512/256 digest in a section header.
const DIGEST: u64 = 32;
/// First minor version with an index.
const INDEX_MINOR: u8 = 4;
/// The option of `mkdwarfs` that leaves the index away.
const WITHOUT_INDEX: &str = "--no-section-index";

/// Why bytes are not covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// They precede the image.
    Before,
    /// They follow the image and are declared not to belong to it.
    Behind,
    /// They are the digests of the section headers, which are not verified.
    Digests,
    /// The format has no checksums.
    NoChecksums,
    /// Not bytes that are there, but sections that may be missing at the end.
    End,
}

/// Bytes of a file that no check covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uncovered {
    pub(crate) reason: Reason,
    /// Where they are in the file, if they are in one place.
    pub(crate) offset: Option<u64>,
    pub(crate) bytes: u64,
}

impl Uncovered {
    /// The reason for programs.
    pub(crate) fn name(&self) -> &'static str {
        match self.reason {
            Reason::Before => "before",
            Reason::Behind => "behind",
            Reason::Digests => "digests",
            Reason::NoChecksums => "no_checksums",
            Reason::End => "end",
        }
    }

    /// What is not covered, for people.
    pub(crate) fn text(&self) -> String {
        let bytes = counted(self.bytes, "byte");
        match self.reason {
            Reason::Before => format!("{bytes} before the image"),
            Reason::Behind => format!("{bytes} behind the image"),
            Reason::Digests => format!("{bytes} of digests (see --check-integrity)"),
            Reason::NoChecksums => format!("{bytes} of a format without checksums"),
            Reason::End => "a missing end (there is no section index)".to_owned(),
        }
    }
}

/// What was said about the image on the command line, and what it lies on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Declared {
    pub(crate) offset: ImageOffset,
    pub(crate) size: Option<u64>,
    /// Devices are larger than the images that they hold.
    pub(crate) device: bool,
}

/// What is known about the surroundings of an image.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    pub(crate) findings: Vec<Finding>,
    pub(crate) uncovered: Vec<Uncovered>,
}

/// What follows an image.
enum Behind {
    Nothing,
    Zeros,
    /// Another image, which starts here.
    Image(u64),
    Other,
}

/// Looks at what surrounds an image whose sections were listed and verified in `mode`.
///
/// # Errors
/// `Io` if what follows the image cannot be read.
pub(crate) fn look(
    image: &Image,
    scan: &Scan,
    mode: VerifyMode,
    declared: Declared,
) -> Result<Edges> {
    let container = image.container();
    let mut edges = Edges::default();
    edges.not_covered(Reason::Before, Some(0), container.offset);
    if !scan.has_hashes() {
        edges.not_covered(Reason::NoChecksums, Some(container.offset), container.size);
    } else if mode == VerifyMode::Fast {
        let digests = (scan.sections.len() as u64).saturating_mul(DIGEST);
        edges.not_covered(Reason::Digests, None, digests);
    }

    let end = container.offset.saturating_add(container.size);
    let following = image.trailing_bytes();
    // Up to format 2.3 the metadata comes last, and nothing that opens is without.
    let has_index = scan.index == Index::Valid;
    let mut certain = scan.version.minor < INDEX_MINOR || has_index;
    if declared.size.is_some() || (declared.device && has_index) {
        edges.not_covered(Reason::Behind, Some(end), following);
        return Ok(edges);
    }
    let size = container.size;
    let undeclared = |what: String| Finding::new(Kind::Trailing, what);
    match behind(image.source().as_ref(), end, end.saturating_add(following))? {
        Behind::Nothing | Behind::Zeros => {}
        Behind::Image(_) if matches!(declared.offset, ImageOffset::Nth(_)) => {
            edges.not_covered(Reason::Behind, Some(end), following);
            // Where the next image starts, this one has its end.
            certain = true;
        }
        Behind::Image(at) => edges.findings.push(undeclared(format!(
            "{} behind the image, another image at offset {at} among them: choose one \
             with --image-offset=auto:N",
            counted(following, "byte")
        ))),
        Behind::Other => edges.findings.push(undeclared(format!(
            "{} at offset {end} behind the image: they are damaged sections, or do not \
             belong to it (then say so with --image-size={size})",
            counted(following, "byte")
        ))),
    }
    let absent = scan.index == Index::Absent;
    if absent && !certain && edges.findings.is_empty() && !says_without_index(image) {
        // Zeros may be what is left of a section.
        if mode == VerifyMode::Integrity || following > 0 {
            edges.findings.push(Finding::new(
                Kind::End,
                format!(
                    "there is no section index, so the end of the image may be missing: if it has \
                     been written without, say so with --image-size={size}"
                ),
            ));
        } else {
            edges.uncovered.push(Uncovered {
                reason: Reason::End,
                offset: Some(end),
                bytes: 0,
            });
        }
    }
    Ok(edges)
}

impl Edges {
    fn not_covered(&mut self, reason: Reason, offset: Option<u64>, bytes: u64) {
        if bytes > 0 {
            self.uncovered.push(Uncovered {
                reason,
                offset,
                bytes,
            });
        }
    }
}

/// Whether the history says that the image was last written without an index.
fn says_without_index(image: &Image) -> bool {
    let history = image.history().ok();
    let last = history.and_then(|mut history| history.entries.pop());
    let arguments = last.and_then(|entry| entry.arguments).unwrap_or_default();
    arguments.iter().any(|argument| argument == WITHOUT_INDEX)
}

/// What is in `at..size`.
fn behind(source: &dyn Source, at: u64, size: u64) -> Result<Behind> {
    if at >= size {
        return Ok(Behind::Nothing);
    }
    let Some(first) = first_of_something(source, at, size)? else {
        return Ok(Behind::Zeros);
    };
    let read = |at, buf: &mut [u8]| source.read_exact_at(at, buf);
    match Container::open(&read, size, first, None) {
        Ok(_) => Ok(Behind::Image(first)),
        Err(redwarfs_format::Error::Io(e)) => Err(e.into()),
        Err(_) => Ok(Behind::Other),
    }
}

/// The first byte in `at..size` that is not 0.
fn first_of_something(source: &dyn Source, mut at: u64, size: u64) -> Result<Option<u64>> {
    let mut buffer = vec![0; PIECE];
    loop {
        at = source.next_data(at)?.max(at);
        if at >= size {
            return Ok(None);
        }
        let n = usize::try_from(size - at).map_or(PIECE, |left| left.min(PIECE));
        let part = buffer.get_mut(..n).unwrap_or_default();
        source.read_exact_at(at, part)?;
        if let Some(i) = part.iter().position(|byte| *byte != 0) {
            return Ok(Some(at.saturating_add(i as u64)));
        }
        at = at.saturating_add(n as u64);
    }
}
