//! Looks at what surrounds an image in its file, whether its end is certain, and which bytes of the
//! file no check covers.
//!
//! The section headers say where an image ends. Damage can change that: a section may look like the start
//! of another image, or sections may be missing at the end. So bytes after an image are an error, unless
//! the caller says that they do not belong to the image, or they cannot be a section of it. An image
//! without section index counts as complete only if its history shows that it was written without one.

use redwarfs_format::Result;
use redwarfs_format::section::{Container, IndexState};
use redwarfs_io::Source;

use super::finding::{Declaration, Finding, FindingKind};
use super::options::VerifyMode;
use super::scanner::{HEADER, INDEX_MINOR};
use super::sections::{ListedSection, SectionList};
use crate::image::Image;
use crate::options::ImageOffset;
use crate::payload::PIECE;

/// Length of the SHA-512/256 digest in a section header.
pub(super) const DIGEST: u64 = 32;
/// The option of `mkdwarfs` that leaves the index away, as the history has it.
const WITHOUT_INDEX: &str = "--no-section-index";

/// Why no check covers some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UncoveredReason {
    /// They precede the image.
    Before,
    /// They follow the image and are declared not to belong to it.
    Behind,
    /// They are the digests of the section headers, which are not verified.
    Digests,
    /// The format has no checksums.
    NoChecksums,
    /// They are sections that only older snapshots need, or hidden ones that are no trailers.
    Older,
    /// No snapshot needs them, and they are in no section with a checksum that counts. Only a check of all generations
    /// knows.
    Unused,
    /// Not bytes that are there, but sections that may be missing at the end.
    End,
}

/// Bytes of a file that no check covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uncovered {
    /// The reason.
    pub reason: UncoveredReason,
    /// Where they are in the file, if they are in one place.
    pub offset: Option<u64>,
    /// Their number.
    pub bytes: u64,
}

impl UncoveredReason {
    /// The name in JSON, such as `behind`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Behind => "behind",
            Self::Digests => "digests",
            Self::NoChecksums => "no_checksums",
            Self::Older => "older",
            Self::Unused => "unused",
            Self::End => "end",
        }
    }
}

/// The declarations of the caller about the image, and the kind of its file.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeclaredImage {
    /// How the image was chosen.
    pub offset: ImageOffset,
    /// The size that the caller says the image has.
    pub size: Option<u64>,
    /// Whether the file is a device. Devices are larger than the images that they hold.
    pub device: bool,
}

/// The known surroundings of an image.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    pub(super) findings: Vec<Finding>,
    pub(super) uncovered: Vec<Uncovered>,
}

/// The data after an image.
enum Behind {
    Nothing,
    Zeros,
    /// Another image, which starts here.
    Image(u64),
    Other,
}

/// The bytes of an image with long headers that are in none of the sections of a list. 0 if headers are lost: then nobody
/// knows where their sections end.
fn unlisted(list: &SectionList, container: &Container) -> u64 {
    let listed = |sum: u64, listed: &ListedSection| {
        let length = HEADER.saturating_add(listed.section.length);
        (!listed.lost).then(|| sum.saturating_add(length))
    };
    let listed = list.sections.iter().try_fold(0, listed);
    listed.map_or(0, |listed| container.size.saturating_sub(listed))
}

/// Looks at what surrounds an image whose sections are listed and checked in `mode`.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) if the data after the image cannot be read.
pub(super) fn look(
    image: &Image,
    list: &SectionList,
    mode: VerifyMode,
    declared: DeclaredImage,
) -> Result<Surroundings> {
    let container = image.container();
    let mut found = Surroundings::default();
    found.not_covered(UncoveredReason::Before, Some(0), container.offset);
    if !list.has_hashes() {
        let reason = UncoveredReason::NoChecksums;
        found.not_covered(reason, Some(container.offset), container.size);
    } else if mode == VerifyMode::Fast {
        let digests = (list.sections.len() as u64).saturating_mul(DIGEST);
        found.not_covered(UncoveredReason::Digests, None, digests);
    }

    if list.has_hashes() {
        found.not_covered(UncoveredReason::Older, None, unlisted(list, container));
    }

    let end = container.offset.saturating_add(container.size);
    let following = image.trailing_bytes();
    // Up to format 2.3 the metadata comes last, and no image opens without it.
    let has_index = list.index == IndexState::Valid;
    let mut certain = list.version.minor < INDEX_MINOR || has_index;
    if declared.size.is_some() || (declared.device && has_index) {
        found.not_covered(UncoveredReason::Behind, Some(end), following);
        return Ok(found);
    }
    let bytes = if following == 1 { "byte" } else { "bytes" };
    let trailing = |what, declaration| Finding {
        unless_declared: Some(declaration),
        ..Finding::new(FindingKind::Trailing, what)
    };
    let size = Declaration::ImageSize(container.size);
    if container.unused_tail > 0 {
        found.findings.push(trailing(
            format!(
                "unused tail of {following} bytes at offset {end}: an append that was not finished, \
                 or other data"
            ),
            size,
        ));
        return Ok(found);
    }
    match behind(image.source().as_ref(), end, end.saturating_add(following))? {
        Behind::Nothing | Behind::Zeros => {}
        Behind::Image(_) if matches!(declared.offset, ImageOffset::Nth(_)) => {
            found.not_covered(UncoveredReason::Behind, Some(end), following);
            // The start of the next image is the end of this one.
            certain = true;
        }
        Behind::Image(at) => found.findings.push(trailing(
            format!(
                "{following} {bytes} behind the image, another image at offset {at} among them"
            ),
            Declaration::ImageNumber,
        )),
        Behind::Other => found.findings.push(trailing(
            format!(
                "{following} {bytes} at offset {end} behind the image: they are damaged sections, \
                 or do not belong to it"
            ),
            size,
        )),
    }
    let absent = list.index == IndexState::Absent;
    if absent && !certain && found.findings.is_empty() && !says_without_index(image) {
        // Zeros may be the remains of a section.
        if mode == VerifyMode::Integrity || following > 0 {
            found.findings.push(Finding {
                unless_declared: Some(size),
                ..Finding::new(
                    FindingKind::End,
                    "there is no section index, so the end of the image may be missing",
                )
            });
        } else {
            found.uncovered.push(Uncovered {
                reason: UncoveredReason::End,
                offset: Some(end),
                bytes: 0,
            });
        }
    }
    Ok(found)
}

impl Surroundings {
    fn not_covered(&mut self, reason: UncoveredReason, offset: Option<u64>, bytes: u64) {
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

/// The kind of data in `at..size`.
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
