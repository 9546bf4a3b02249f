//! The bodies of the fuzz targets: ordinary functions that take any bytes and panic only if
//! something is wrong with the libraries. Tests run them on a stored corpus, fuzzers on more.

use std::io;
use std::num::NonZeroUsize;

use redwarfs_codec::{Decoder, decompress, raw_size};
use redwarfs_format::block_header::{FlacBlockHeader, RiceppBlockHeader};
use redwarfs_format::frozen::Schema;
use redwarfs_format::fsst::SymbolTable;
use redwarfs_format::history::History;
use redwarfs_format::metadata::{MetadataView, thaw};
use redwarfs_format::section::{CompressionId, Container, locate_image};

use crate::mutate::Rng;

#[cfg(feature = "archive")]
mod archive;
#[cfg(feature = "append")]
mod generations;
mod image;
#[cfg(feature = "lasting")]
mod lasting;
pub mod mutators;
mod snapshots;
mod trailers;
mod xattrs;

#[cfg(feature = "archive")]
pub use archive::archive_input;
#[cfg(feature = "append")]
pub use generations::{generations, merge};
pub use image::{image, tree_is_bounded, use_image};
#[cfg(feature = "lasting")]
pub use lasting::{patch, salvage, sidecar, signatures};
pub use snapshots::{hints, match_table, snapshots};
pub use trailers::{digests, recovery};
pub use xattrs::xattrs;

/// Bytes that a symbol table is trained on.
const TRAINED: usize = 1024;
/// Bytes of metadata that the target [`schema`] opens.
pub const SCHEMA_DATA: usize = 2048;
/// Largest raw size that payloads are decoded to.
const RAW_LIMIT: u64 = 1 << 20;

/// Finds and opens a container, with and without its index.
pub fn container(data: &[u8]) {
    let read = |at: u64, out: &mut [u8]| -> io::Result<()> {
        let end: io::Error = io::ErrorKind::UnexpectedEof.into();
        let found = usize::try_from(at)
            .ok()
            .and_then(|at| data.get(at..)?.get(..out.len()));
        out.copy_from_slice(found.ok_or(end)?);
        Ok(())
    };
    let size = data.len() as u64;
    let found = locate_image(size, &read).unwrap_or(0);
    for offset in [found, 0] {
        for image_size in [None, Some(size / 2)] {
            let Ok(container) = Container::open(&read, size, offset, image_size) else {
                continue;
            };
            for section in &container.sections {
                let end = section.payload_offset + section.length;
                assert!(end <= container.size, "a section ends outside of the image");
                let _ = container.load_header(&read, section.position);
            }
            assert_eq!(container.blocks().count(), container.block_count() as usize);
            let sections = container.sections.iter();
            let total: u64 = sections.map(|section| section.length + 8).sum();
            assert!(total <= size, "sections overlap");
        }
    }
}

/// Opens metadata: two bytes with the length of the schema, the schema, the data.
pub fn metadata(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let Some((schema, data)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
    else {
        return;
    };
    let _ = thaw(schema, data);
    let _ = redwarfs_format::frozen::Schema::parse(schema);
    if let Ok(view) = MetadataView::parse(schema, data.to_vec()) {
        let checked = view.check(4, None).is_ok();
        image::visit_metadata(&view, 4, checked);
    }
}

/// Opens the metadata of [`SCHEMA_DATA`] (packed values of every kind) with any schema: every
/// width and position that a schema can ask for is tried on bytes that are there.
pub fn schema(data: &[u8]) {
    if let Ok(schema) = Schema::parse(data) {
        let again = Schema::parse(&schema.encode()).expect("what was encoded is valid");
        assert!(again == schema, "a schema does not round trip");
    }
    let bytes: Vec<u8> = (0..SCHEMA_DATA as u32)
        .map(|n| ((n * 37) >> 3) as u8)
        .collect();
    let _ = thaw(data, &bytes);
    if let Ok(view) = MetadataView::parse(data, bytes) {
        let checked = view.check(4, None).is_ok();
        image::visit_metadata(&view, 4, checked);
    }
}

/// Parses a history, and any Thrift compact struct.
pub fn history(data: &[u8]) {
    if let Ok(history) = History::parse(data) {
        let again = History::parse(&history.encode()).expect("what was encoded is valid");
        assert!(again == history, "a history does not round trip");
    }
    let _ = FlacBlockHeader::parse(data);
    let _ = RiceppBlockHeader::parse(data);
}

/// Decodes with a symbol table, and back: a byte with the length of the table, the table, a
/// string.
pub fn fsst(data: &[u8]) {
    let Some((&length, rest)) = data.split_first() else {
        return;
    };
    let (head, text) = rest.split_at(rest.len().min(usize::from(length)));
    let mut plain = Vec::new();
    if let Ok(table) = SymbolTable::parse(head)
        && table.decompress(text, &mut plain).is_ok()
    {
        assert!(plain.len() <= text.len() * 8);
        round_trip(&table, &plain);
    }
    // Training takes a thousand times as long as the rest.
    if length % 64 != 0 {
        return;
    }
    let text = &text[..text.len().min(TRAINED)];
    let table = SymbolTable::train(&[text]);
    round_trip(&table, text);
    let again = SymbolTable::parse(&table.encode_table()).expect("what was encoded is valid");
    assert!(again == table);
}

fn round_trip(table: &SymbolTable, text: &[u8]) {
    let (mut packed, mut back) = (Vec::new(), Vec::new());
    table.compress(text, &mut packed);
    table
        .decompress(&packed, &mut back)
        .expect("what was compressed is valid");
    assert!(back == text, "FSST does not round trip");
}

/// Decodes a payload: a byte with the compression id, the payload. At once and in steps must
/// agree.
pub fn codecs(data: &[u8]) {
    let Some((&id, payload)) = data.split_first() else {
        return;
    };
    let id = CompressionId(u16::from(id));
    let announced = raw_size(id, payload);
    let whole = decompress(id, payload, RAW_LIMIT);
    if let Ok(out) = &whole {
        assert_eq!(announced.ok(), Some(out.len() as u64));
    }
    let Ok(mut decoder) = Decoder::new(id, payload, RAW_LIMIT) else {
        assert!(whole.is_err(), "decoded although it cannot be opened");
        return;
    };
    // One thread is enough to see another verdict, and quicker.
    let parts = Decoder::new(id, payload, RAW_LIMIT)
        .and_then(|decoder| decoder.decode_by_parts(NonZeroUsize::MIN));
    match (&parts, &whole) {
        (Ok(parts), Ok(whole)) => assert!(parts == whole, "parts decode to something else"),
        (Err(_), Err(_)) => {}
        (parts, whole) => panic!("parts: {:?}, at once: {:?}", len(parts), len(whole)),
    }
    let mut rng = Rng::new(payload.len() as u64);
    let mut out = vec![0; usize::try_from(decoder.raw_size()).expect("below the limit")];
    let mut done = 0;
    let mut result = Ok(());
    while done < out.len() && result.is_ok() {
        let step = (1 + rng.below(9000)).min(out.len() - done);
        result = decoder.fill(&mut out[done..done + step]);
        done += step;
    }
    let result = result.and_then(|()| decoder.finish());
    match (result, whole) {
        (Ok(()), Ok(whole)) => assert!(out == whole, "steps decode to something else"),
        (Err(_), Err(_)) => {}
        (steps, whole) => panic!("steps: {steps:?}, at once: {:?}", len(&whole)),
    }
}

/// The decoded value, for a message.
fn len<E>(decoded: &Result<Vec<u8>, E>) -> Result<usize, &E> {
    decoded.as_ref().map(Vec::len)
}

/// Turns an image into an archive. Every other one leaves out what cannot be read.
#[cfg(feature = "extract")]
pub fn tar(data: &[u8]) {
    use redwarfs_extractor::{ArchiveSpec, ExtractOptions, Silent, extract_to_archive};
    use redwarfs_io::MemorySource;
    use redwarfs_reader::{Image, OpenOptions};

    /// Takes as much as fits, then fails as a full disk would.
    struct Sink(usize);
    impl io::Write for Sink {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            let left = self.0.checked_sub(data.len());
            self.0 = left.ok_or(io::ErrorKind::StorageFull)?;
            Ok(data.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut options = OpenOptions::default();
    options.cache.size = 1 << 20;
    options.cache.workers = 1;
    let source = std::sync::Arc::new(MemorySource::new(data));
    let Ok(image) = Image::from_source(source, &options) else {
        return;
    };
    let mut options = ExtractOptions::default();
    options.threads = 1;
    options.continue_on_error = data.len().is_multiple_of(2);
    let format = ["pax", "ustar", "gnutar", "newc"][data.len() % 4];
    let spec = ArchiveSpec::new(format, &[], "").expect("a format that is always there");
    let _ = extract_to_archive(&image, &mut Sink(8 << 20), &spec, &options, &Silent);
}
