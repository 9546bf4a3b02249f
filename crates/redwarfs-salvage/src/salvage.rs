//! What was found in a file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_format::BlockNo;
use redwarfs_format::section::SectionType;
use redwarfs_io::Source;
use redwarfs_reader::{Image, OpenOptions};

use crate::chosen::Chosen;
use crate::error::{Error, Result};
use crate::find::{Finder, FoundSection};
use crate::generation::generations;
use crate::tolerant::Tolerant;

/// What was found in a file of which anything may be damaged.
#[derive(Debug)]
pub struct Salvage {
    pub(crate) source: Arc<Tolerant>,
    sections: Vec<FoundSection>,
    tree: Option<Tree>,
    passed_over: Vec<String>,
    is_chosen: bool,
}

#[derive(Debug)]
struct Tree {
    image: Image,
    lost: BTreeSet<BlockNo>,
    indexed: bool,
    at: u64,
}

impl Salvage {
    /// Searches a whole file. `options` say how the tree is opened, except for its place. With a snapshot, its tree is the one
    /// that an intact table of snapshots names. `done` gets the number of bytes after each piece.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if there is no intact table, or the tree of the snapshot is not intact; [`Error::Nothing`] if there is no section at all, [`Error::Io`] if the length of the file is not known,
    /// [`Error::Interrupted`] if `stop` is set. Bytes that cannot be read count as damaged.
    pub fn of(
        source: Arc<dyn Source>,
        options: &OpenOptions,
        done: &dyn Fn(u64),
        stop: &AtomicBool,
    ) -> Result<Self> {
        let source = Arc::new(Tolerant::new(source));
        let len = source.len()?;
        let finder = Finder {
            source: source.as_ref(),
            len,
            done,
            stop,
        };
        let sections = finder.all()?;
        if sections.is_empty() {
            return Err(Error::Nothing);
        }
        let mut options = options.clone();
        // Whoever uses the tree checks what it uses; blocks may be fewer than the tree needs.
        options.check = false;
        options.lazy_metadata = false;
        let choice = options.snapshot.take();
        let chosen = choice.map(|choice| Chosen::of(&choice, source.as_ref(), &sections));
        let chosen = chosen.transpose()?;
        let mut tree = None;
        let mut passed_over = Vec::new();
        for generation in generations(source.as_ref(), &sections)? {
            let container = generation.container(len);
            let reader: Arc<dyn Source> = Arc::clone(&source) as Arc<dyn Source>;
            match Image::from_container(reader, container, &options) {
                Ok(image) if chosen.as_ref().is_some_and(|chosen| !chosen.is(&image)) => {}
                Ok(image) => {
                    tree = Some(Tree {
                        image,
                        lost: generation.lost().collect(),
                        indexed: generation.indexed,
                        at: generation.at(),
                    });
                    break;
                }
                Err(_) if chosen.is_some() => {}
                Err(error) => passed_over.push(format!(
                    "the tree at offset {} cannot be used: {error}",
                    generation.at()
                )),
            }
        }
        if let (Some(chosen), None) = (&chosen, &tree) {
            return Err(chosen.lost());
        }
        Ok(Self {
            source,
            sections,
            tree,
            passed_over,
            is_chosen: chosen.is_some(),
        })
    }

    /// The tree, if there is one. What needs a lost block cannot be read.
    #[must_use]
    pub fn image(&self) -> Option<&Image> {
        self.tree.as_ref().map(|tree| &tree.image)
    }

    /// All sections that were found, in the order of the file.
    #[must_use]
    pub fn sections(&self) -> &[FoundSection] {
        &self.sections
    }

    /// Blocks of the tree that are lost.
    #[must_use]
    pub fn lost_blocks(&self) -> Option<&BTreeSet<BlockNo>> {
        self.tree.as_ref().map(|tree| &tree.lost)
    }

    /// Whether an index says which blocks the tree has; otherwise their numbers say so.
    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.tree.as_ref().is_some_and(|tree| tree.indexed)
    }

    /// Offset of the schema of the tree in the file.
    #[must_use]
    pub fn tree_at(&self) -> Option<u64> {
        self.tree.as_ref().map(|tree| tree.at)
    }

    /// Newer trees that cannot be used, and why.
    #[must_use]
    pub fn passed_over(&self) -> &[String] {
        &self.passed_over
    }

    /// Offsets of metadata behind the tree that is damaged: what the tree shows is older. None if the tree is that of a chosen
    /// snapshot.
    pub fn newer_damaged(&self) -> impl Iterator<Item = u64> {
        let at = self.tree_at().filter(|_| !self.is_chosen);
        self.sections
            .iter()
            .filter(move |section| at.is_some_and(|at| section.at > at))
            .filter(|section| section.header.ty == SectionType::METADATA_V2 && !section.intact)
            .map(|section| section.at)
    }

    /// Bytes that could not be read, each time that they were asked for.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.source.unreadable()
    }
}
