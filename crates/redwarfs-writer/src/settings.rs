//! The settings of a stream: codec, order and segmenter.
//!
//! [`StreamSettings::new`] resolves the options of a category, once for each stream, as soon as the
//! streams are known. All stages and the memory estimate use its result. Only the categorizers know a codec
//! before, by [`BuildOptions::codec_of`].

use redwarfs_codec::{CodecSpec, Content};

use crate::category::StreamKey;
use crate::options::{BuildOptions, Order};

/// How a stream is made.
#[derive(Debug, Clone)]
pub(crate) struct StreamSettings<'o> {
    pub(crate) key: StreamKey,
    /// Codec of its blocks.
    pub(crate) codec: CodecSpec,
    /// Sequence of its fragments.
    pub(crate) order: &'o Order,
    pub(crate) segment: SegmentOptions,
}

impl<'o> StreamSettings<'o> {
    pub(crate) fn new(options: &'o BuildOptions, key: StreamKey) -> Self {
        let own = options.categories.get(&key.category);
        let choose = |own: Option<u32>, general: u32| own.unwrap_or(general);
        // A frame has at most 32 bytes, a block at least 1024.
        let granularity = key.granularity() as usize;
        let block_size = options.block_size() as usize;
        Self {
            key,
            codec: key.tune(options.codec_of(key.category)),
            order: own
                .and_then(|own| own.order.as_ref())
                .unwrap_or(&options.order),
            segment: SegmentOptions {
                block_size: block_size - block_size % granularity,
                granularity,
                window_bits: choose(own.and_then(|o| o.window_bits), options.window_bits),
                window_step: choose(own.and_then(|o| o.window_step), options.window_step),
                lookback: choose(own.and_then(|o| o.lookback), options.lookback) as usize,
                filter_bits: choose(
                    own.and_then(|o| o.bloom_filter_size),
                    options.bloom_filter_size,
                ),
                // Sound and images lose by cuts.
                rearranged: options.front.is_some() && key.content() == Content::Bytes,
            },
        }
    }

    /// Those of everything that is in no category.
    pub(crate) fn general(options: &'o BuildOptions) -> Self {
        Self::new(options, StreamKey::DEFAULT)
    }
}

/// Parameters of a segmenter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentOptions {
    /// A multiple of the granularity.
    pub(crate) block_size: usize,
    /// Bytes that belong together, at least 1: every extent consists of whole units, no chunk
    /// and no block ends within one, and windows are counted in them.
    pub(crate) granularity: usize,
    /// Log2 of the window, 0: no matching.
    pub(crate) window_bits: u32,
    pub(crate) window_step: u32,
    /// Searched blocks, including the one being filled; 0: no matching. Limits `recent` in
    /// `Segmenter::keep_searching` (`segmenter/mod.rs`). From 2 on, `segmenter/distant.rs` searches the blocks
    /// beyond this number, and `memory.rs` counts the blocks.
    pub(crate) lookback: usize,
    /// Log2 of the bits that the filter spends on a window.
    pub(crate) filter_bits: u32,
    /// Whether what [chosen](crate::segmenter::Segmenter::choose) contents use is put in front in each block. Chunks have to
    /// be settled when the stream has ended ([`crate::segmenter::Front`]).
    pub(crate) rearranged: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::category::Category;
    use crate::options::CategoryOptions;

    #[test]
    fn what_a_category_does_not_say_is_as_everywhere() {
        let mut options = BuildOptions::level(5);
        let own = CategoryOptions {
            order: Some(Order::RevPath),
            lookback: Some(3),
            ..CategoryOptions::default()
        };
        options.categories.insert(Category::Hotness, own);
        let general = StreamSettings::general(&options);
        assert_eq!(general.order, &options.order);
        assert_eq!(general.codec, options.compression);
        assert_eq!(general.segment.lookback, 8);
        let hot = StreamSettings::new(&options, StreamKey::plain(Category::Hotness));
        assert_eq!(hot.order, &Order::RevPath);
        assert_eq!(hot.codec, options.compression);
        assert_eq!(hot.segment.lookback, 3);
        assert_eq!(hot.segment.window_bits, general.segment.window_bits);
        let stored = StreamSettings::new(&options, StreamKey::plain(Category::Incompressible));
        assert_eq!(stored.codec, CodecSpec::none());
    }
}
