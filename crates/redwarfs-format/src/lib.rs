//! The DwarFS image format: bytes to structures and back.
//!
//! This crate opens no file, starts no thread and has no `unsafe`. Callers pass image bytes as slices
//! or through a positional read function. All image bytes are untrusted: bad input gives an [`Error`]
//! and never a panic. The size of the input bounds memory and time.
//!
//! ```
//! use redwarfs_format::InodeNo;
//! use redwarfs_format::metadata::{FileType, MetadataView};
//! use redwarfs_format::section::{Container, SectionType};
//!
//! // An image without compression, so that payloads are what they stand for.
//! let image = std::fs::read("../../tests/fixtures/images/basic-l0.dwarfs")?;
//! let part = |at: u64, len: u64| image.get(at as usize..(at + len) as usize);
//! let read = |at: u64, buf: &mut [u8]| {
//!     let bytes = part(at, buf.len() as u64).ok_or(std::io::ErrorKind::UnexpectedEof)?;
//!     buf.copy_from_slice(bytes);
//!     Ok(())
//! };
//! let container = Container::open(&read, image.len() as u64, 0, None)?;
//! let payload = |ty: SectionType| {
//!     let section = container.sections.iter().find(|section| section.ty == ty)?;
//!     part(section.payload_offset, section.length).map(<[u8]>::to_vec)
//! };
//! let schema = payload(SectionType::METADATA_V2_SCHEMA).ok_or("no schema")?;
//! let data = payload(SectionType::METADATA_V2).ok_or("no metadata")?;
//! let view = MetadataView::parse(&schema, data)?;
//! assert_eq!(view.file_type(InodeNo::ROOT)?, FileType::Directory);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`section`] | headers, hashes, section index, opening a container, finding an image in a file |
//! | [`thrift`] | the subset of the Thrift compact protocol that images use |
//! | [`history`] | the HISTORY payload |
//! | [`block_header`] | the small structs before FLAC and Rice++ payloads |
//! | [`fsst`] | string compression of the name and symlink tables |
//! | [`frozen`] | the bit-packed encoding of the metadata |
//! | [`metadata`] | the metadata: model, in-place view, packing, checks |
//! | [`device`] | device numbers |
//! | [`date_time`] | dates and times as users write them |
//! | [`hints`] | what a program reads first |
//! | [`digests`] | digests of all sections, and signatures of them |
//! | [`elf`] | the program in front of an image |
#![forbid(unsafe_code)]

pub mod block_header;
pub mod date_time;
pub mod device;
pub mod digests;
pub mod elf;
pub mod error;
pub mod frozen;
pub mod fsst;
pub mod hints;
pub mod history;
pub mod ids;
pub mod metadata;
pub mod recovery;
pub mod section;
pub mod thrift;

pub use error::{Error, Location, Result};
pub use ids::{BlockNo, CategoryId, ChunkIndex, EntryIndex, GenerationNo, InodeNo};
