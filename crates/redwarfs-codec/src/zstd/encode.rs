//! Compressing blocks into frames.

#![allow(unsafe_code)]

use std::fmt;

use zstd_safe::zstd_sys::{self, ZSTD_ParamSwitch_e, ZSTD_cParameter, ZSTD_strategy};

use super::context::Context;
use super::decode::{ZstdDecoder, raw_size};
use super::decoder_context::WINDOW_LOG_MAX;
use super::options::ZstdOptions;
use crate::Result;
use crate::codec::{Decode, Encode, Settings};
use crate::content::Content;
use crate::memory::yields;

/// The smallest window log of the format.
const WINDOW_LOG_MIN: u32 = 10;

/// Window log that covers `size` bytes, for long-distance matching.
fn covering_window_log(size: usize) -> u32 {
    size.max(1)
        .next_power_of_two()
        .trailing_zeros()
        .clamp(WINDOW_LOG_MIN, WINDOW_LOG_MAX)
}

/// Every parameter that a block of `raw_size` bytes is compressed with.
fn parameters(options: &ZstdOptions, raw_size: usize) -> Vec<(ZSTD_cParameter, i32)> {
    use ZSTD_cParameter as P;
    let window_log = options
        .window_log
        .or_else(|| options.long.then(|| covering_window_log(raw_size)));
    let mut list = vec![(P::ZSTD_c_compressionLevel, options.level)];
    if options.long {
        list.push((P::ZSTD_c_enableLongDistanceMatching, 1));
    }
    let optional = [
        (P::ZSTD_c_windowLog, window_log),
        (P::ZSTD_c_hashLog, options.hash_log),
        (P::ZSTD_c_chainLog, options.chain_log),
        (P::ZSTD_c_searchLog, options.search_log),
        (P::ZSTD_c_minMatch, options.min_match),
        (P::ZSTD_c_targetLength, options.target_length),
        (P::ZSTD_c_strategy, options.strategy),
        (P::ZSTD_c_ldmHashLog, options.ldm_hash_log),
        (P::ZSTD_c_ldmMinMatch, options.ldm_min_match),
        (P::ZSTD_c_ldmBucketSizeLog, options.ldm_bucket_log),
        (P::ZSTD_c_ldmHashRateLog, options.ldm_hash_rate_log),
    ];
    list.extend(
        optional
            .into_iter()
            .filter_map(|(parameter, value)| Some((parameter, value? as i32))),
    );
    list
}

/// Compresses blocks with one context.
pub(crate) struct ZstdEncoder {
    options: ZstdOptions,
    context: Option<Context>,
    /// What parameters are in force, so that they are set only when they change.
    in_force: Option<Adjustment>,
    /// For the level that is tried first.
    quick: Option<Box<ZstdEncoder>>,
}

/// The settings that differ between blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Adjustment {
    /// With long-distance matching, the window that covers the block.
    window_log: Option<u32>,
    /// Search as for repetitive blocks, see [`ZstdOptions::deep`].
    deep: bool,
}

/// The least that repetitive blocks are searched with: where most of a block lies in long matches,
/// trying one more position and looking for longer ones saves a tenth. In ordinary text it costs
/// the same and saves half a percent.
const DEEP_SEARCH_LOG: u32 = 6;
/// As [`DEEP_SEARCH_LOG`], in bytes.
const DEEP_TARGET_LENGTH: u32 = 256;

/// The sample of a repetitive block that decides whether literals get a high price: its size in bytes,
/// its largest part of the block, and the number of places from which it comes.
const SAMPLE: usize = 256 << 10;
const SAMPLED: usize = 4;
const PLACES: usize = 4;

/// Bytes of a repetitive block for each sequence that there is memory for. Measured are 40.
const SEQUENCE: usize = 16;

/// A block that the level tried first makes smaller than one part in this number is left at that.
const QUICK_ENOUGH: usize = 6;

impl ZstdOptions {
    /// The options of the level that is tried first.
    fn first(&self) -> Option<ZstdOptions> {
        Some(ZstdOptions {
            level: self.quick?,
            window_log: self.window_log,
            ..ZstdOptions::NONE
        })
    }

    /// The options for repetitive blocks. The tables of the encoder have the same sizes.
    fn deepened(&self) -> ZstdOptions {
        ZstdOptions {
            search_log: Some(self.search_log.unwrap_or(0).max(DEEP_SEARCH_LOG)),
            target_length: Some(self.target_length.unwrap_or(0).max(DEEP_TARGET_LENGTH)),
            ..self.clone()
        }
    }

    /// Parameters for writing a frame of sequences that have been found, which needs no tables to
    /// find them.
    fn writing(&self, raw_size: usize) -> Vec<(ZSTD_cParameter, i32)> {
        use ZSTD_cParameter as P;
        let covering = covering_window_log(raw_size);
        let window_log = self.window_log.map_or(covering, |log| log.min(covering));
        vec![
            (P::ZSTD_c_compressionLevel, self.level),
            (P::ZSTD_c_windowLog, window_log as i32),
            (P::ZSTD_c_hashLog, SMALL_TABLE),
            (P::ZSTD_c_chainLog, SMALL_TABLE),
            (P::ZSTD_c_minMatch, 3),
            (P::ZSTD_c_strategy, ZSTD_strategy::ZSTD_btultra2 as i32),
            // It would have a separate table with a large window.
            (
                P::ZSTD_c_enableLongDistanceMatching,
                ZSTD_ParamSwitch_e::ZSTD_ps_disable as i32,
            ),
            // Without a copy of either.
            (STABLE_IN_BUFFER, 1),
            (STABLE_OUT_BUFFER, 1),
            (BLOCK_DELIMITERS, 1),
            (VALIDATE_SEQUENCES, 1),
            (
                REPCODE_RESOLUTION,
                ZSTD_ParamSwitch_e::ZSTD_ps_enable as i32,
            ),
        ]
    }
}

/// Memory of the library while it writes sequences, without the frame, and of the sample.
const WRITER: u64 = 2 << 20;

/// Binary logarithm of the smallest table.
const SMALL_TABLE: i32 = 6;

/// Names that the header of the library gives to its experimental parameters.
const LITERAL_COMPRESSION_MODE: ZSTD_cParameter = ZSTD_cParameter::ZSTD_c_experimentalParam5;
const SRC_SIZE_HINT: ZSTD_cParameter = ZSTD_cParameter::ZSTD_c_experimentalParam7;
const STABLE_IN_BUFFER: ZSTD_cParameter = ZSTD_cParameter::ZSTD_c_experimentalParam9;
const STABLE_OUT_BUFFER: ZSTD_cParameter = ZSTD_cParameter::ZSTD_c_experimentalParam10;
const BLOCK_DELIMITERS: ZSTD_cParameter = ZSTD_cParameter::ZSTD_c_experimentalParam11;
const VALIDATE_SEQUENCES: ZSTD_cParameter = ZSTD_cParameter::ZSTD_c_experimentalParam12;
const REPCODE_RESOLUTION: ZSTD_cParameter = ZSTD_cParameter::ZSTD_c_experimentalParam19;

impl fmt::Debug for ZstdEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZstdEncoder")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl ZstdEncoder {
    pub(crate) fn new(options: ZstdOptions) -> Self {
        Self {
            quick: options.first().map(|first| Box::new(Self::new(first))),
            options,
            context: None,
            in_force: None,
        }
    }

    fn configure(&mut self, raw_size: usize, deep: bool) -> Result<&mut Context> {
        let context = match &mut self.context {
            Some(context) => context,
            none => none.insert(Context::new()?),
        };
        let wanted = Adjustment {
            window_log: self.options.long.then(|| covering_window_log(raw_size)),
            deep,
        };
        if self.in_force != Some(wanted) {
            self.in_force = None;
            context.configure(&if deep {
                parameters(&self.options.deepened(), raw_size)
            } else {
                parameters(&self.options, raw_size)
            })?;
            self.in_force = Some(wanted);
        }
        Ok(context)
    }

    /// The payload, or `None` if it would not be smaller than the input. `probed` is the size that
    /// a fast level makes of it, if that is known.
    fn payload(&mut self, raw: &[u8], probed: Option<usize>) -> Result<Option<Vec<u8>>> {
        let part = self
            .options
            .deep
            .map(|part| raw.len() / part.max(1) as usize);
        let deep = part.zip(probed).is_some_and(|(part, probed)| probed < part);
        if let Some(quick) = self.quick.as_mut().filter(|_| !deep) {
            let mut payload = quick.frame(raw)?;
            if payload.len() < raw.len() / QUICK_ENOUGH {
                payload.shrink_to_fit();
                return Ok(Some(payload));
            }
        }
        let mut payload = if deep {
            self.repetitive(raw)?
        } else {
            self.frame(raw)?
        };
        payload.shrink_to_fit();
        Ok((payload.len() < raw.len()).then_some(payload))
    }

    /// The payload, however large, in a buffer for the largest one.
    pub(crate) fn frame(&mut self, raw: &[u8]) -> Result<Vec<u8>> {
        self.configure(raw.len(), false)?.compress(raw)
    }

    /// The same for a block that consists of little but matches.
    ///
    /// The encoder uses prices that it learns from its output. A row that differs from an earlier one
    /// in a character can be a match, a literal and a match, or two matches of different rows. Whatever
    /// is chosen more often gets cheaper, so that the encoder remains with what it began with; but many
    /// rows of nothing but matches get a tenth smaller. It finds those if it is to take literals for
    /// bytes that cannot be compressed. Where the characters are random, that costs as much as it saves
    /// elsewhere: a sample tells.
    fn repetitive(&mut self, raw: &[u8]) -> Result<Vec<u8>> {
        let sample = sample(raw);
        let plain = self.configure(sample.len(), true)?.compress(&sample)?;
        // For its memory, which is needed for a context of another kind.
        (self.context, self.in_force) = (None, None);
        let fewer = self.by_matches(&sample);
        if fewer.is_some_and(|payload| payload.len() < plain.len())
            && let Some(payload) = self.by_matches(raw)
        {
            return Ok(payload);
        }
        self.configure(raw.len(), true)?.compress(raw)
    }

    /// A frame that prefers matches to literals, if the library manages to make a good one.
    fn by_matches(&self, raw: &[u8]) -> Option<Vec<u8>> {
        let mut settings = parameters(&self.options.deepened(), raw.len());
        let never = ZSTD_ParamSwitch_e::ZSTD_ps_disable as i32;
        settings.push((LITERAL_COMPRESSION_MODE, never));
        let mut finder = Context::new().ok()?;
        finder.configure(&settings).ok()?;
        let sequences = finder.sequences(raw, raw.len() / SEQUENCE).ok()?;
        let mut writer = Context::new().ok()?;
        writer.configure(&self.options.writing(raw.len())).ok()?;
        let payload = writer.write(raw, &sequences).ok()?;
        drop((writer, sequences));
        decodes_to(&payload, raw).then_some(payload)
    }
}

impl Encode for ZstdEncoder {
    fn compress(
        &mut self,
        raw: &[u8],
        _content: &Content,
        probed: Option<usize>,
    ) -> Result<Option<Vec<u8>>> {
        self.payload(raw, probed)
    }
}

impl Settings for ZstdOptions {
    fn encoder(&self) -> Box<dyn Encode> {
        Box::new(ZstdEncoder::new(self.clone()))
    }

    fn memory(&self, raw_size: usize) -> u64 {
        encoder_memory(self, raw_size)
    }

    fn are_slow(&self) -> bool {
        self.level >= 13 || self.strategy.is_some_and(|strategy| strategy >= 6)
    }
}

/// Whether a frame decodes to `raw`.
fn decodes_to(frame: &[u8], raw: &[u8]) -> bool {
    let compare = || -> Result<bool> {
        let mut decoder = ZstdDecoder::new(frame)?;
        let mut done = 0;
        let same = yields(raw, |part| {
            decoder.fill(frame, part, done, part.len() == raw.len())?;
            done += part.len() as u64;
            Ok(())
        })?;
        decoder.finish(frame)?;
        Ok(same && raw_size(frame)? == raw.len() as u64)
    };
    compare().unwrap_or(false)
}

/// Pieces from the middle of equal parts of a block, together at most a quarter of it.
fn sample(raw: &[u8]) -> Vec<u8> {
    let piece = SAMPLE.min(raw.len() / SAMPLED) / PLACES;
    let pieces = raw.chunks_exact((raw.len() / PLACES).max(1));
    let pieces = pieces.take(PLACES).map(|part| {
        let (_, middle) = part.split_at((part.len() - piece) / 2);
        &middle[..piece]
    });
    pieces.collect::<Vec<_>>().concat()
}

/// Memory of the encoder in bytes, without the block itself: the library's estimate for these
/// parameters, and the output buffer.
pub(crate) fn encoder_memory(options: &ZstdOptions, raw_size: usize) -> u64 {
    use ZSTD_cParameter as P;
    // Zero would mean that the size is not known.
    let hint = i32::try_from(raw_size.max(1)).unwrap_or(i32::MAX);
    let mut settings = vec![(SRC_SIZE_HINT, hint)];
    if options.long {
        // The estimate uses these values directly (and divides by the match length), while the encoder
        // derives them. Values at the upper end of what it derives.
        let hash_log = covering_window_log(raw_size).saturating_sub(4).max(6);
        settings.extend([
            (P::ZSTD_c_ldmMinMatch, 32),
            (P::ZSTD_c_ldmHashLog, hash_log as i32),
            (P::ZSTD_c_ldmBucketSizeLog, 8),
        ]);
    }
    settings.extend(parameters(options, raw_size));
    // SAFETY: the parameter object is used on this thread only, checked for null
    // and freed once.
    let state = unsafe {
        let object = zstd_sys::ZSTD_createCCtxParams();
        if object.is_null() {
            0
        } else {
            for (parameter, value) in settings {
                zstd_sys::ZSTD_CCtxParams_setParameter(object, parameter, value);
            }
            let size = zstd_sys::ZSTD_estimateCCtxSize_usingCCtxParams(object);
            let failed = zstd_sys::ZSTD_isError(size) != 0;
            zstd_sys::ZSTD_freeCCtxParams(object);
            if failed { 0 } else { size as u64 }
        }
    };
    let quick = options
        .first()
        .map_or(0, |first| encoder_memory(&first, raw_size));
    // Sequences, or the window of the decoder that looks at what became of them.
    let by_matches = options.deep.map_or(0, |_| raw_size as u64 + WRITER);
    state
        .saturating_add(zstd_safe::compress_bound(raw_size) as u64)
        .saturating_add(by_matches)
        .saturating_add(quick)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    /// What was found, unless the library is too old for it.
    fn sequences_or_skip<T>(found: Result<T>) -> Option<T> {
        if matches!(found, Err(Error::Unsupported(_))) {
            eprintln!("SKIPPED: sequences of an old zstd library");
            return None;
        }
        Some(found.unwrap())
    }

    #[test]
    fn writing_sequences_takes_little_memory() {
        let options = ZstdOptions {
            level: 19,
            window_log: Some(24),
            ..ZstdOptions::NONE
        };
        let numbers = (0..4 << 20u32).map(|i| (i % 4093 * (i >> 18)) as u8);
        let raw: Vec<u8> = numbers.collect();
        let mut finder = Context::new().unwrap();
        finder.configure(&parameters(&options, raw.len())).unwrap();
        let Some(sequences) = sequences_or_skip(finder.sequences(&raw, raw.len())) else {
            return;
        };
        let mut writer = Context::new().unwrap();
        writer.configure(&options.writing(raw.len())).unwrap();
        let payload = writer.write(&raw, &sequences).unwrap();
        assert!(decodes_to(&payload, &raw));
        assert!(writer.size() as u64 <= WRITER, "{}", writer.size());
    }

    #[test]
    fn more_sequences_than_there_is_memory_for_are_an_error() {
        let raw: Vec<u8> = (0..100_000u32).map(|i| (i % 93 * (i >> 8)) as u8).collect();
        let finder = |most| Context::new().unwrap().sequences(&raw, most);
        let Some(sequences) = sequences_or_skip(finder(raw.len())) else {
            return;
        };
        let count = sequences.len();
        assert!(finder(count).is_ok());
        assert!(finder(count - 1).is_err());
    }
}
