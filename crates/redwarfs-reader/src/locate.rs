//! Finds the image in its file, and the sections of its newest generation.

use std::sync::Arc;

use redwarfs_format::Result;
use redwarfs_format::section::{Container, locate_image_number};
use redwarfs_io::Source;

use crate::options::{ImageOffset, OpenOptions};

/// The sections of the image that `options` choose, whatever snapshot they name.
///
/// # Errors
/// Those of [`Container::open`], and of finding the start of the image.
pub(crate) fn newest(source: &Arc<dyn Source>, options: &OpenOptions) -> Result<Container> {
    let size = source.len()?;
    let read = |at, buf: &mut [u8]| source.read_exact_at(at, buf);
    let locate = |number| locate_image_number(number, size, &read, &|at| source.next_data(at));
    let known = match options.offset {
        _ if !source.is_remote() => None,
        // An image at the start of the file is the first one.
        ImageOffset::Auto | ImageOffset::Nth(1) => Some(0),
        ImageOffset::At(offset) => Some(offset),
        ImageOffset::Nth(_) => None,
    };
    let by_index = |offset| {
        let will_need = |range| source.will_need(&[range]);
        Container::open_by_index(&read, &will_need, size, offset, options.image_size)
    };
    if let Some(container) = known.map(by_index).transpose()?.flatten() {
        return Ok(container);
    }
    let offset = match options.offset {
        ImageOffset::Auto => locate(1)?,
        ImageOffset::Nth(number) => locate(number)?,
        ImageOffset::At(offset) => offset,
    };
    Container::open(&read, size, offset, options.image_size)
}
