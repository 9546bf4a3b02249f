//! Files of which the end is missing: which state of their image is whole, and how to get it back.

use std::path::Path;
use std::sync::Arc;

use redwarfs_format::section::{Container, IndexState, MAGIC, SectionHeader, SectionType};
use redwarfs_io::{FileSource, Source};
use redwarfs_reader::{Image, ImageOffset, OpenOptions};

use super::error::display_path;
use super::number::format_grouped;
use super::recovery::sidecar_of;

/// Most headers that are read.
const MOST: u64 = 1 << 24;

/// As [`advice_of`], of the image at `offset` of a file. None also if it cannot be opened.
#[must_use]
pub fn advice(path: &Path, offset: ImageOffset) -> Option<String> {
    let source: Arc<dyn Source> = Arc::new(FileSource::open(path).ok()?);
    let mut options = OpenOptions::default();
    options.offset = offset;
    advice_of(&Image::from_source(source, &options).ok()?, path)
}

/// Says up to where a file is whole, if something is behind the newest complete state of its image that is no complete
/// one. None if the file has its end, or something else is wrong with it.
#[must_use]
pub fn advice_of(image: &Image, path: &Path) -> Option<String> {
    let source = Arc::clone(image.source());
    let container = image.container();
    let is_whole =
        container.index == IndexState::Valid && image.trailing_bytes() == container.unused_tail;
    if is_whole || !goes_on(source.as_ref(), container) {
        return None;
    }
    let whole = last_with_table(source.as_ref(), container.offset);
    // Without a table, there was one snapshot.
    let (whole, older) = match whole {
        Some(whole) if whole.size < container.size => (whole, true),
        _ => (container.clone(), false),
    };
    let end = whole.offset.saturating_add(whole.size);
    let newest = Image::from_container(source, whole, &OpenOptions::default()).ok()?;
    let table = newest.snapshots().ok()?;
    let newest = table.present().next_back()?;
    let name = display_path(path);
    let more = match older {
        true => " (dwarfsextract extracts the tree of a later one, which is whole, too)",
        false => "",
    };
    let first = match sidecar_of(path).is_file() {
        true => "dwarfsck --repair may restore the rest; if it cannot, ",
        false => "",
    };
    Some(format!(
        "the end is missing: {first}the file is whole up to byte {}, with snapshot {} '{}'{more}; copy the file, then \
         'truncate -s {end} {name}' goes back to that snapshot",
        format_grouped(end),
        newest.number,
        newest.name
    ))
}

/// Whether a section of the same image follows its newest complete state, or the beginning of one.
fn goes_on(source: &dyn Source, container: &Container) -> bool {
    let at = container.offset.saturating_add(container.size);
    let left = source.len().map_or(0, |size| size.saturating_sub(at));
    if left >= SectionHeader::LEN as u64 {
        return header_at(source, at).is_some_and(|header| !header.starts_next_image());
    }
    let left = usize::try_from(left).unwrap_or(0).min(MAGIC.len());
    let mut start = vec![0; left];
    left > 0 && source.read_exact_at(at, &mut start).is_ok() && MAGIC.starts_with(&start)
}

fn header_at(source: &dyn Source, at: u64) -> Option<SectionHeader> {
    let mut bytes = [0; SectionHeader::LEN];
    source.read_exact_at(at, &mut bytes).ok()?;
    SectionHeader::parse(&bytes).ok()
}

/// The last complete generation of an image that has a table of snapshots, as far as intact headers lead to it.
fn last_with_table(source: &dyn Source, offset: u64) -> Option<Container> {
    let size = source.len().ok()?;
    let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
    let mut last = None;
    let mut at = 0_u64;
    for _ in 0..MOST {
        let Some(header) = header_at(source, offset.saturating_add(at)) else {
            break;
        };
        let end = at
            .saturating_add(SectionHeader::LEN as u64)
            .saturating_add(header.length);
        if offset.saturating_add(end) > size {
            break;
        }
        if header.ty == SectionType::SECTION_INDEX
            && let Ok(found) = Container::open_generation(&read, size, offset, end)
            && found
                .trailers
                .iter()
                .any(|one| one.ty == SectionType::SNAPSHOTS)
        {
            last = Some(found);
        }
        at = end;
    }
    last
}
