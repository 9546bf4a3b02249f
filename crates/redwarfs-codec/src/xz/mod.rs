//! LZMA: one `.xz` stream.
//!
//! [`layout`] reads the container (stream header, index, footer) in safe code;
//! encoding and the decoding of single blocks is done by liblzma. Knowing the raw
//! size of each block beforehand makes it possible to give the decoder a
//! dictionary no larger than the data, whatever the stream asks for.

mod coder;
mod decode;
mod encode;
mod layout;
mod options;
mod tables;

use std::sync::Arc;

use crate::CompressionId;
use crate::codec::{Decoding, Encoding, any_content};
use crate::content::ContentKind;

pub(crate) static DECODING: Decoding = Decoding {
    id: CompressionId::LZMA,
    raw_size: layout::raw_size,
    content: any_content,
    decoder: |payload, _| Ok(Box::new(decode::XzDecoder::new(payload)?)),
};

pub(crate) static ENCODING: Encoding = Encoding {
    name: "lzma",
    options: options::OPTIONS,
    id: CompressionId::LZMA,
    takes: ContentKind::Bytes,
    settings: |values| Ok(Arc::new(options::LzmaOptions::of(values)?)),
};

pub(crate) fn library_version() -> String {
    #![allow(unsafe_code)]
    // SAFETY: the function returns a static, zero-terminated string.
    let version = unsafe { std::ffi::CStr::from_ptr(liblzma_sys::lzma_version_string()) };
    format!("liblzma-{}", version.to_string_lossy())
}
