//! What several tests need.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_codec::CodecSpec;
use redwarfs_io::MemorySource;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_rewrite::{RewriteOptions, rewrite};
use redwarfs_writer::SilentProgress;

pub(crate) fn codec(spec: &str) -> CodecSpec {
    spec.parse().unwrap()
}

/// Opens an image with all checks.
pub(crate) fn open(bytes: &[u8]) -> Image {
    try_open(bytes).unwrap()
}

pub(crate) fn try_open(bytes: &[u8]) -> redwarfs_format::Result<Image> {
    let mut options = OpenOptions::default();
    options.check = true;
    Image::from_source(Arc::new(MemorySource::new(bytes.to_vec())), &options)
}

#[derive(Debug)]
pub(crate) struct Rewritten {
    pub(crate) bytes: Vec<u8>,
    pub(crate) image: Image,
}

pub(crate) fn rewritten(
    image: &Image,
    options: &RewriteOptions,
) -> Result<Rewritten, redwarfs_rewrite::Error> {
    let mut bytes = Vec::new();
    let progress = SilentProgress::default();
    let stop = AtomicBool::new(false);
    let summary = rewrite(image, options, &mut bytes, &progress, &stop)?;
    assert_eq!(summary.image_size, bytes.len() as u64);
    Ok(Rewritten {
        image: open(&bytes),
        bytes,
    })
}
