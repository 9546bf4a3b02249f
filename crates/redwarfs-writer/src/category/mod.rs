//! Cutting files into fragments of categories.
//!
//! A categorizer looks at the bytes (or the path) of a file and says what its parts are. Every
//! kind of part goes to a stream of its own, with its own order, segmenter, codec and blocks
//! (format/07). Files are read through bounded windows, and what their headers say is believed
//! only as far as the file holds it.

mod audio;
mod binary;
mod fits;
mod hotness;
mod incompressible;
mod names;
mod probe;
mod stored;

pub use hotness::{HotPaths, HotPathsError};
pub use incompressible::Incompressible;
pub use names::{BadCategoryName, Category, CategoryName, UnknownCategory};
pub(crate) use names::{Kind, StreamKey};
pub(crate) use probe::{Input, Probe};
pub(crate) use stored::{StoredCategories, describe};

use std::io;

use crate::error::{Error, Result};
use crate::options::BuildOptions;
use crate::progress::Level;

/// Finds out what files are.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Categorizer {
    /// FITS images with two dimensions and 16 bits per pixel.
    Fits,
    /// Integer PCM audio in AIFF, AIFF-C, CAF, WAV, RF64 and Sony Wave64 files.
    PcmAudio,
    /// Programs and libraries: ELF, PE and Mach-O files.
    Binary,
    /// Data that does not get smaller.
    Incompressible(Incompressible),
    /// Files from a list.
    Hotness(HotPaths),
}

impl Categorizer {
    /// Names of all categorizers, in alphabetical order.
    pub const NAMES: [&'static str; 5] =
        ["binary", "fits", "hotness", "incompressible", "pcmaudio"];

    /// The name of this one.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::Fits => "fits",
            Self::Hotness(_) => "hotness",
            Self::Incompressible(_) => "incompressible",
            Self::PcmAudio => "pcmaudio",
        }
    }

    /// Whether it reads files front to back instead of looking at places.
    fn is_sequential(&self) -> bool {
        matches!(self, Self::Incompressible(_))
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Incompressible(options) => options.check(),
            _ => Ok(()),
        }
    }
}

/// A part of a file. The parts of a file follow each other without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) key: StreamKey,
    pub(crate) size: u64,
}

/// Collects the pieces of a file: empty ones are left out, neighbours of one kind are joined.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    fn push(&mut self, key: StreamKey, size: u64) {
        match self.0.last_mut() {
            _ if size == 0 => {}
            Some(last) if last.key == key => last.size += size,
            _ => self.0.push(Piece { key, size }),
        }
    }
}

impl std::ops::Deref for Pieces {
    type Target = [Piece];

    fn deref(&self) -> &[Piece] {
        &self.0
    }
}

/// Why a file that looked like one of a category is not taken for one.
#[derive(Debug)]
pub(crate) struct Complaint {
    pub(crate) level: Level,
    pub(crate) what: String,
}

impl Complaint {
    fn warn(what: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            what: what.into(),
        }
    }

    fn info(what: impl Into<String>) -> Self {
        Self {
            level: Level::Info,
            what: what.into(),
        }
    }
}

impl From<io::Error> for Complaint {
    fn from(error: io::Error) -> Self {
        // Storing the file meets the same error and reports it.
        Self {
            level: Level::Verbose,
            what: format!("cannot be categorized: {error}"),
        }
    }
}

type Found<T = Pieces> = Result<Option<T>, Complaint>;

/// What categorizing a file came to.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// At least one; none means that the file is of no category.
    pub(crate) pieces: Pieces,
    /// To be logged.
    pub(crate) complaints: Vec<Complaint>,
}

impl Verdict {
    /// A file that was said to be of a category as a whole.
    pub(crate) fn whole(category: Category, size: u64) -> Self {
        let mut verdict = Self::default();
        verdict.pieces.push(StreamKey::plain(category), size);
        verdict
    }
}

/// The categorizers of a build, applied to one file after the other.
pub(crate) struct Judge<'a> {
    options: &'a BuildOptions,
    sequential: incompressible::Tester,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(options: &'a BuildOptions) -> Self {
        Self {
            options,
            sequential: incompressible::Tester::default(),
        }
    }

    /// Cuts a file into pieces. `hot` says whether it is on the list of hot files.
    ///
    /// The first categorizer that looks at places and finds something wins. Those that read the
    /// whole file get their chance only if they stand before it in the list.
    pub(crate) fn file(&mut self, probe: &Probe<'_>, hot: bool) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        if probe.size() == 0 {
            return Ok(verdict);
        }
        let list = &self.options.categorizers;
        let mut winner = list.len();
        for (at, categorizer) in list.iter().enumerate() {
            let found = match categorizer {
                Categorizer::Fits => fits::categorize(probe),
                Categorizer::PcmAudio => audio::categorize(probe),
                Categorizer::Binary => binary::categorize(probe),
                Categorizer::Hotness(_) => {
                    let whole = || Verdict::whole(Category::Hotness, probe.size());
                    Ok(hot.then(|| whole().pieces))
                }
                Categorizer::Incompressible(_) => continue,
            };
            match found.and_then(|found| self.acceptable(probe, found)) {
                Ok(Some(pieces)) => {
                    verdict.pieces = pieces;
                    winner = at;
                    break;
                }
                Ok(None) => {}
                Err(complaint) => verdict.complaints.push(complaint),
            }
            probe.check_stop()?;
        }
        let before = list.iter().take(winner);
        for categorizer in before.filter(|c| c.is_sequential()) {
            let Categorizer::Incompressible(options) = categorizer else {
                continue;
            };
            match self.sequential.categorize(options, probe) {
                Ok(Some(pieces)) => {
                    verdict.pieces = pieces;
                    break;
                }
                Ok(None) => {}
                Err(complaint) => verdict.complaints.push(complaint),
            }
            probe.check_stop()?;
        }
        Ok(verdict)
    }

    /// The pieces, if they make up the file and the codecs of their categories take them.
    fn acceptable(&self, probe: &Probe<'_>, found: Option<Pieces>) -> Found {
        let Some(pieces) = found else {
            return Ok(None);
        };
        let total: u64 = pieces.iter().map(|piece| piece.size).sum();
        if total != probe.size() {
            return Err(Complaint::warn("its parts do not make up the file"));
        }
        for piece in pieces.iter() {
            let codec = self.options.codec_of(piece.key.category);
            if !codec.accepts(&piece.key.content()) {
                return Err(Complaint::warn(format!(
                    "compression '{codec}' of category '{}' does not take {}",
                    piece.key.category,
                    piece.key.json().unwrap_or_default()
                )));
            }
            if piece.size % piece.key.granularity() != 0 {
                return Err(Complaint::warn("its data does not consist of whole units"));
            }
        }
        Ok(Some(pieces))
    }
}

/// Verifies what the options say about categories.
pub(crate) fn check(options: &BuildOptions) -> Result<()> {
    let bad = |what: String| Err(Error::InvalidOption(what));
    let mut seen = Vec::new();
    for categorizer in &options.categorizers {
        categorizer.check()?;
        if seen.contains(&categorizer.name()) {
            return bad(format!("categorizer given twice: {}", categorizer.name()));
        }
        seen.push(categorizer.name());
    }
    let kind = options.compression.requires();
    if kind != redwarfs_codec::ContentKind::Bytes {
        return bad(format!(
            "compression '{}' cannot be used without a category: it takes {kind} only",
            options.compression
        ));
    }
    for (category, own) in &options.categories {
        if let Some(codec) = &own.compression {
            let kind = codec.requires();
            if kind != redwarfs_codec::ContentKind::Bytes && kind != category.content_kind() {
                return bad(format!(
                    "compression '{codec}' cannot be used for category '{category}': it takes {kind} only"
                ));
            }
        }
    }
    Ok(())
}
