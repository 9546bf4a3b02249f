//! Changes of the table of snapshots, and going back to an older generation.

use std::sync::Arc;

use redwarfs_format::GenerationNo;
use redwarfs_format::section::{
    Container, IndexState, Opening, SectionType, SnapshotTable, snapshot_name_error,
};
use redwarfs_io::{Append, Medium, Source};
use redwarfs_reader::{Image, ImageOffset, OpenOptions, SnapshotChoice};

use crate::error::{Error, Result};

/// A change of one entry of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableChange {
    /// Gives it another name.
    Rename(GenerationNo, String),
    /// Keeps it from being deleted, or not any longer.
    Pin(GenerationNo, bool),
    /// Hides it, so that its space can be given back.
    Delete(GenerationNo),
}

impl TableChange {
    /// Makes the change in a table in memory.
    ///
    /// # Errors
    /// Those of [`change`] that are not about the file. The table may be used no further then.
    pub fn apply(&self, table: &mut SnapshotTable) -> Result<()> {
        let newest = table.snapshots.last().map(|last| last.number);
        if let Self::Rename(number, name) = self {
            if let Some(why) = snapshot_name_error(name) {
                let name = name.clone();
                return Err(Error::Name { name, why });
            }
            if table
                .named(name)
                .is_some_and(|other| other.number != *number)
            {
                return Err(Error::Exists(name.clone()));
            }
        }
        let (Self::Rename(number, _) | Self::Pin(number, _) | Self::Delete(number)) = self;
        let mut all = table.snapshots.iter_mut();
        let found = all
            .find(|snapshot| snapshot.number == *number && !snapshot.deleted)
            .ok_or(Error::Unfit("there is no snapshot with this number"))?;
        match self {
            Self::Rename(_, name) => found.name.clone_from(name),
            Self::Pin(_, pinned) => found.pinned = *pinned,
            Self::Delete(number) if newest == Some(*number) => {
                return Err(Error::Newest(found.name.clone()));
            }
            Self::Delete(_) if found.pinned => return Err(Error::Pinned(found.name.clone())),
            Self::Delete(_) => {
                found.deleted = true;
                let (is_archived, index) = (found.archived, found.index);
                // What an archive has added is said by the first one that is left of it.
                if is_archived {
                    let added = std::mem::take(&mut found.added);
                    let mut all = table.snapshots.iter_mut();
                    let heir = all.find(|one| one.archived && !one.deleted && one.index == index);
                    if let Some(heir) = heir {
                        heir.added = heir.added.saturating_add(added);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Opens the newest generation of a file that ends with its image.
pub(crate) fn open(file: &Arc<dyn Medium>, offset: ImageOffset) -> Result<Image> {
    let source: Arc<dyn Source> = Arc::new(Arc::clone(file));
    let mut options = OpenOptions::default();
    options.offset = offset;
    let image = Image::from_source(source, &options)?;
    changeable(&image)?;
    Ok(image)
}

/// Whether the file of an image can get another table, as [`change`] finds out. `image` is its newest generation.
///
/// # Errors
/// [`Error::OnlyArchive`] and [`Error::Unfit`].
pub fn changeable(image: &Image) -> Result<()> {
    if image.is_archived() {
        return Err(Error::OnlyArchive);
    }
    if image.container().index != IndexState::Valid {
        return Err(Error::Unfit("the image has no section index"));
    }
    if image.trailing_bytes() != image.container().unused_tail {
        return Err(Error::Unfit("other data follows the image"));
    }
    Ok(())
}

/// Changes entries of the table of the image in a file, all or none. Returns the new table.
///
/// # Errors
/// * [`Error::Name`], [`Error::Exists`], [`Error::Newest`] and [`Error::Pinned`] for changes that are not
///   possible.
/// * [`Error::Unfit`] if the image has no index or other data follows it, or a number is not in the table.
/// * [`Error::Format`] and [`Error::Io`]: there is no image, or the medium fails.
pub fn change(
    file: &Arc<dyn Medium>,
    offset: ImageOffset,
    changes: &[TableChange],
) -> Result<SnapshotTable> {
    let image = open(file, offset)?;
    let (mut table, _) = image.snapshot_tables()?;
    for change in changes {
        change.apply(&mut table)?;
    }
    put_table(file, &image, &table)?;
    Ok(table)
}

/// Writes a table behind an image, whose newest generation is open. From the end of this on, it counts.
pub(crate) fn put_table(
    file: &Arc<dyn Medium>,
    image: &Image,
    table: &SnapshotTable,
) -> Result<()> {
    let container = image.container();
    let (Some(opening), Some(generation)) = (Opening::of(container), image.generation()?) else {
        return Err(Error::Unfit("the image has no section index"));
    };
    let prelude = table.prelude(generation);
    let (ty, number) = (SectionType::SNAPSHOTS, container.next_number());
    let section = opening.encode_trailer(container.size, number, ty, &prelude, &table.encode());
    let end = container.offset.saturating_add(container.size);
    let mut append = Append::begin(Arc::clone(file), end, opening.tail_pointer())?;
    let new_end = end.saturating_add(section.len() as u64);
    append.reserve(new_end)?;
    append.write_all_at(end, &section)?;
    append.commit(new_end)?;
    Ok(())
}

/// What going back to a snapshot does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollBack {
    /// Bytes of the file that stay.
    pub length: u64,
    /// Bytes by which the file gets shorter.
    pub freed: u64,
}

impl RollBack {
    /// Finds out what [`roll_back`] would do. `image` is the newest generation of a file.
    ///
    /// # Errors
    /// Those of [`roll_back`].
    pub fn plan(image: &Image, choice: &SnapshotChoice) -> Result<Self> {
        changeable(image)?;
        let source = image.source();
        let (table, _) = image.snapshot_tables()?;
        let found = choice.find(&table)?;
        let end = found
            .end
            .ok_or(Error::Unfit("the data of the snapshot is gone"))?;
        if found.archived {
            return Err(Error::Archived(found.name.clone()));
        }
        let file = source.len()?;
        let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
        let older = Container::open_generation(&read, file, image.container().offset, end)?;
        let length = older.offset.saturating_add(older.size).min(file);
        Ok(Self {
            length,
            freed: file - length,
        })
    }
}

/// Makes an older generation the newest one again: cuts off everything that was appended later. Returns the
/// number of bytes by which the file gets shorter.
///
/// # Errors
/// * [`Error::Format`] if there is no such snapshot, or no image.
/// * [`Error::Unfit`] if its data is gone, or as for [`change`].
/// * [`Error::Archived`] if it is in an archive, of which all snapshots end at the same place.
/// * [`Error::Io`]: the medium fails.
pub fn roll_back(
    file: &Arc<dyn Medium>,
    offset: ImageOffset,
    choice: &SnapshotChoice,
) -> Result<u64> {
    let plan = RollBack::plan(&open(file, offset)?, choice)?;
    if plan.freed > 0 {
        file.set_len(plan.length)?;
        file.sync()?;
    }
    Ok(plan.freed)
}
