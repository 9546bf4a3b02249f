//! No compression: the payload is the data.

use std::sync::Arc;

use crate::codec::{Decode, Decoding, Encode, Encoding, Settings, any_content};
use crate::content::{Content, ContentKind};
use crate::{CompressionId, Error, Result};

pub(crate) static DECODING: Decoding = Decoding {
    id: CompressionId::NONE,
    raw_size: |payload| Ok(payload.len() as u64),
    content: any_content,
    decoder: |_, _| Ok(Box::new(Copier)),
};

pub(crate) static ENCODING: Encoding = Encoding {
    name: "null",
    options: &[],
    id: CompressionId::NONE,
    takes: ContentKind::Bytes,
    settings: |_| Ok(Arc::new(Null)),
};

/// Stores blocks uncompressed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Null;

impl Settings for Null {
    fn encoder(&self) -> Box<dyn Encode> {
        Box::new(*self)
    }

    fn memory(&self, _raw_size: usize) -> u64 {
        0
    }
}

impl Encode for Null {
    fn compress(&mut self, _: &[u8], _: &Content, _: Option<usize>) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
}

/// Copies the payload.
struct Copier;

impl Decode for Copier {
    fn fill(&mut self, payload: &[u8], out: &mut [u8], done: u64, _whole: bool) -> Result<()> {
        let part = usize::try_from(done)
            .ok()
            .and_then(|done| payload.get(done..)?.get(..out.len()))
            .ok_or_else(|| Error::corrupt("stored section ends early"))?;
        out.copy_from_slice(part);
        Ok(())
    }

    fn finish(&mut self, _payload: &[u8]) -> Result<()> {
        Ok(())
    }

    fn state_in_place(&self) -> Option<u64> {
        Some(0)
    }
}
