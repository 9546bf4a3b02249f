//! What an earlier build with the same checkpoint has computed.
//!
//! A build is a function of its input and its options. So a build that goes on runs all stages again, and takes the results of
//! expensive steps from the checkpoint. The key of a result is everything that it depends on. A result of other options, of other
//! data or of another version of the program has another key, and is not found.

mod scans;

use redwarfs_codec::{Compressed, CompressionId, ContentKind};
use redwarfs_io::{CacheKey, Checkpoint};

pub(crate) use self::scans::{Record, Scans};
use crate::hash::{FileHash, Hasher};
use crate::options::BuildOptions;
use crate::progress::{Counters, add};
use crate::settings::StreamSettings;

/// Bytes of a digest in a key.
const DIGEST: usize = 32;

/// The checkpoint of a build, as a stage uses it.
#[derive(Clone, Copy)]
pub(crate) struct Results<'a> {
    checkpoint: &'a Checkpoint,
    counters: &'a Counters,
}

impl<'a> Results<'a> {
    /// If the options name a checkpoint.
    pub(crate) fn of(options: &'a BuildOptions, counters: &'a Counters) -> Option<Self> {
        let checkpoint = options.checkpoint.as_ref()?;
        Some(Self {
            checkpoint,
            counters,
        })
    }

    /// What became of a block that an earlier build has compressed.
    pub(crate) fn block(self, key: &CacheKey, raw: &[u8]) -> Option<Compressed> {
        let (note, data) = self.checkpoint.find(key, raw.len() as u64)?;
        let id = CompressionId(u16::from_le_bytes(note.try_into().ok()?));
        add(&self.counters.blocks_reused, 1);
        add(&self.counters.block_bytes_reused, raw.len() as u64);
        Some(Compressed {
            id,
            data: (id != CompressionId::NONE).then_some(data),
        })
    }

    /// Keeps what became of a block.
    pub(crate) fn keep_block(self, key: &CacheKey, compressed: &Compressed) {
        let data = compressed.data.as_deref().unwrap_or_default();
        let id = compressed.id.0.to_le_bytes();
        self.checkpoint.add(key, &id, data);
    }
}

/// The key of a block of a stream.
pub(crate) fn key_of_block(
    options: &BuildOptions,
    settings: &StreamSettings<'_>,
    raw: &[u8],
) -> CacheKey {
    let codec = &settings.codec;
    let mut about = format!("{codec}\n{:?}\n", settings.key.content());
    if codec.requires() != ContentKind::Bytes {
        about.push_str(&format!("{}\n", options.compression));
    }
    about.push_str(&format!("{}\n", redwarfs_codec::PAYLOADS));
    for library in redwarfs_codec::library_versions() {
        about.push_str(&library);
        about.push('\n');
    }
    key("block", &about, |hasher| hasher.update(raw))
}

/// The key of a result of this version of the program, about which there are a text and further bytes.
fn key(kind: &str, about: &str, more: impl FnOnce(&mut Hasher)) -> CacheKey {
    let mut hasher = FileHash::Blake2b512.hasher();
    // Libraries are compiled to search differently where words or vectors are others. What a processor has beyond its architecture
    // changes only how fast they are.
    let processor = std::env::consts::ARCH;
    let order = if cfg!(target_endian = "big") {
        "big"
    } else {
        "little"
    };
    let version = env!("CARGO_PKG_VERSION");
    let about = format!("{version} {processor} {order} {kind}\n{about}");
    hasher.update(&(about.len() as u64).to_le_bytes());
    hasher.update(about.as_bytes());
    more(&mut hasher);
    let digest = hasher.finish();
    CacheKey::of(kind, digest.bytes().get(..DIGEST).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use redwarfs_codec::{ByteOrder, PixelFormat};

    use super::*;
    use crate::category::{Category, Kind, StreamKey};
    use crate::progress::get;

    #[test]
    fn keys_hold_everything_that_a_block_depends_on() {
        let options = BuildOptions::level(4);
        let of = |options: &BuildOptions, key, raw: &[u8]| {
            key_of_block(options, &StreamSettings::new(options, key), raw)
        };
        let plain = StreamKey::DEFAULT;
        let first = of(&options, plain, b"abc");
        assert_eq!(first, of(&options.clone(), plain, b"abc"));
        // Not on the name of the category.
        assert_eq!(
            first,
            of(&options, StreamKey::plain(Category::Hotness), b"abc")
        );
        let mut other = options.clone();
        other.compression = "zstd:level=12".parse().unwrap();
        let pixels = |components| StreamKey {
            category: Category::FitsImage,
            kind: Kind::Pixels(PixelFormat {
                byte_order: ByteOrder::Big,
                unused_lsb: 0,
                components,
            }),
        };
        let all = [
            first,
            of(&options, plain, b"abd"),
            of(&other, plain, b"abc"),
            of(&options, pixels(1), b"abc"),
            of(&options, pixels(3), b"abc"),
            // The codec for what RICEPP refuses.
            of(&other, pixels(3), b"abc"),
        ];
        for (i, a) in all.iter().enumerate() {
            for b in &all[..i] {
                assert_ne!(a, b);
            }
        }
    }

    #[test]
    fn blocks_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = BuildOptions::level(4);
        options.checkpoint = Some(Checkpoint::open(&dir.path().join("c")).unwrap());
        let counters = Counters::default();
        let results = Results::of(&options, &counters).unwrap();
        for (raw, id, data) in [
            (&b"abcdef"[..], CompressionId::ZSTD, Some(b"abc".to_vec())),
            (b"ghi", CompressionId::NONE, None),
        ] {
            let key = key_of_block(&options, &StreamSettings::general(&options), raw);
            assert_eq!(results.block(&key, raw), None);
            let compressed = Compressed { id, data };
            results.keep_block(&key, &compressed);
            assert_eq!(results.block(&key, raw), Some(compressed));
        }
        assert_eq!(get(&counters.blocks_reused), 2);
        assert_eq!(get(&counters.block_bytes_reused), 9);
    }
}
