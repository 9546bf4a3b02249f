//! The tree of a snapshot that the caller names.

use std::collections::BTreeMap;

use redwarfs_format::GenerationNo;
use redwarfs_format::frozen::FrozenBytes;
use redwarfs_format::section::{MetadataId, SectionType, Snapshot, SnapshotTable};
use redwarfs_io::Source;
use redwarfs_reader::{Image, SnapshotChoice};

use crate::error::{Error, Result};
use crate::find::FoundSection;

/// Longest table that is read (256 MiB).
const LONGEST: u64 = 256 << 20;
/// Most snapshots that are remembered.
const MOST: usize = 1 << 20;

/// A snapshot, as an intact table describes it.
pub(crate) struct Chosen {
    name: String,
    snapshot: Snapshot,
}

impl Chosen {
    /// Finds it in the tables among the sections. What a later table says of a snapshot counts.
    pub(crate) fn of(
        choice: &SnapshotChoice,
        source: &dyn Source,
        found: &[FoundSection],
    ) -> Result<Self> {
        let name = choice.to_string();
        let refused = |why: &str| Error::Snapshot {
            name: name.clone(),
            why: why.to_owned(),
        };
        let mut known: BTreeMap<GenerationNo, Snapshot> = BTreeMap::new();
        let tables = found.iter().filter(|section| {
            let header = &section.header;
            section.intact && header.ty == SectionType::SNAPSHOTS && header.length <= LONGEST
        });
        for section in tables {
            let mut payload = vec![0; usize::try_from(section.header.length).unwrap_or(0)];
            source.read_exact_at(section.payload_at(), &mut payload)?;
            let Ok(table) = SnapshotTable::parse(&payload, None) else {
                continue;
            };
            let new = table.snapshots.into_iter().map(|one| (one.number, one));
            known.extend(new.take(MOST.saturating_sub(known.len())));
        }
        if known.is_empty() {
            return Err(refused("no table of snapshots is intact"));
        }
        let table = SnapshotTable {
            snapshots: known.into_values().collect(),
            previous: None,
        };
        let snapshot = choice.find(&table)?.clone();
        match snapshot.directory() {
            Some(directory) => Err(refused(&format!(
                "it is in an archive, of which all trees come out together; its tree is the directory '{directory}'"
            ))),
            None => Ok(Self { name, snapshot }),
        }
    }

    /// Whether a tree is that of the snapshot.
    pub(crate) fn is(&self, image: &Image) -> bool {
        let mut schemas = image
            .container()
            .section_of_type(SectionType::METADATA_V2_SCHEMA);
        let schema = schemas.next().map(|schema| image.decode_section(schema));
        match (schema, image.metadata().bytes()) {
            (Some(Ok(schema)), FrozenBytes::Whole(bytes)) => {
                MetadataId::of(&schema, bytes) == self.snapshot.tree
            }
            _ => false,
        }
    }

    /// The error if no tree is.
    pub(crate) fn lost(&self) -> Error {
        Error::Snapshot {
            name: self.name.clone(),
            why: "its metadata is damaged".to_owned(),
        }
    }
}
