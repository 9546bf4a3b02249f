//! Measuring on samples how much an order saves.

use redwarfs_codec::{CodecSpec, Compressor};

use super::view::StreamView;

/// Bytes of a content that are taken.
const TRIAL: usize = 64 << 10;

/// Compresses contents after others.
pub(super) struct Trial {
    compressor: Compressor,
    buffers: [Vec<u8>; 2],
    /// Bytes that moving would save.
    pub(super) saved: i64,
    /// Gain that was expected for them.
    pub(super) gain: u64,
    /// Bytes of contents, and what they take where they are.
    pub(super) size: u64,
    pub(super) compressed: u64,
}

impl Trial {
    /// `None` if this build does not have the codec.
    pub(super) fn new(codec: &str) -> Option<Self> {
        let codec: CodecSpec = codec.parse().ok()?;
        Some(Self {
            compressor: codec.compressor(),
            buffers: [Vec::new(), Vec::new()],
            saved: 0,
            gain: 0,
            size: 0,
            compressed: 0,
        })
    }

    fn compressed(&mut self, data: &[u8]) -> i64 {
        let size = match self.compressor.compress(data) {
            Ok(done) => done.data.map_or(data.len(), |data| data.len()),
            Err(_) => data.len(),
        };
        i64::try_from(size).unwrap_or(i64::MAX)
    }

    /// Compares `item` after `here` with `item` after `there`.
    pub(super) fn add(
        &mut self,
        contents: &impl StreamView,
        item: u32,
        here: Option<u32>,
        there: u32,
        gain: u64,
    ) {
        let [mut own, mut both] = std::mem::take(&mut self.buffers);
        own.clear();
        let whole = contents.size(item).max(1);
        if contents.read(item, TRIAL, &mut own) && !own.is_empty() {
            let mut behind = |other: Option<u32>| {
                both.clear();
                if let Some(other) = other {
                    contents.read(other, TRIAL, &mut both);
                }
                let alone = self.compressed(&both);
                both.extend_from_slice(&own);
                self.compressed(&both).saturating_sub(alone).max(1)
            };
            let (now, then) = (behind(here), behind(Some(there)));
            let size = own.len() as u64;
            self.saved += now - then;
            let expected = u128::from(gain) * u128::from(size) / u128::from(whole);
            self.gain = self.gain.saturating_add(expected as u64);
            self.size += size;
            self.compressed += now.unsigned_abs();
        }
        self.buffers = [own, both];
    }
}
