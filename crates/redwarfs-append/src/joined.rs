//! An image and its delta files as one image.

use std::sync::Arc;

use redwarfs_format::section::{Container, GenerationId, IndexState, Link};
use redwarfs_io::{JoinedSource, Source};

use crate::error::{Error, Result};

/// Joins the file of an image with delta files, each of which continues what is in front of it.
///
/// # Errors
/// * [`Error::Unfit`] if a file is no delta file, or continues another image.
/// * [`Error::Format`] if there is no image, [`Error::Io`] if reading fails.
pub fn join(base: Arc<dyn Source>, deltas: Vec<Arc<dyn Source>>) -> Result<JoinedSource> {
    let mut parts = vec![base];
    for delta in deltas {
        let before = JoinedSource::new(parts.iter().cloned())?;
        let length = before.len()?;
        let read = |at, out: &mut [u8]| before.read_exact_at(at, out);
        let offset = redwarfs_format::section::locate_image(length, &read)?;
        let image = Container::open(&read, length, offset, None)?;
        let mut start = [0; Link::SECTION_LEN];
        let no_delta = Error::Unfit("it does not begin like a delta file");
        if delta.len()? < start.len() as u64 {
            return Err(no_delta);
        }
        delta.read_exact_at(0, &mut start)?;
        let Ok(link) = Link::parse(&start) else {
            return Err(no_delta);
        };
        let another = Err(Error::Unfit("the delta file continues another image"));
        let index = match (&image.index, image.sections.last()) {
            (IndexState::Valid, Some(index)) if link.base_size == image.size => index,
            _ => return another,
        };
        if offset.saturating_add(image.size) != length {
            return another;
        }
        // The index lies inside of the file, and has 8 bytes for each section.
        let size =
            usize::try_from(index.length).map_err(|_| Error::Unfit("its index is too large"))?;
        let mut payload = vec![0; size];
        before.read_exact_at(image.file_offset(index), &mut payload)?;
        if GenerationId::of(&payload) != link.base {
            return another;
        }
        parts.push(delta);
    }
    Ok(JoinedSource::new(parts)?)
}
