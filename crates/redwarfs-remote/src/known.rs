//! What the cache on disk knows of an object: its version, and the bytes that opening an image in it needs.

use std::io;
use std::sync::Arc;

use redwarfs_io::{CacheKey, DiskCache};
use twox_hash::XxHash3_128;
use url::Url;

use crate::fetch::Identity;
use crate::transfer::Transfer;

/// Most bytes that are kept of one object (256 MiB).
const MOST: u64 = 256 << 20;

/// Most ranges of one object.
const RANGES: usize = 1 << 10;

/// What begins the names of the parts of signed queries, in small letters.
const SIGNED: [&str; 2] = ["x-amz-", "x-goog-"];

/// The parts of queries with a shared access signature of Azure.
const SHARED: [&str; 16] = [
    "sig", "sv", "se", "st", "sp", "sr", "spr", "sip", "ss", "srt", "skoid", "sktid", "skt", "ske",
    "sks", "skv",
];

/// What identifies an object: its URL, without what only gives access, and the `server` that the environment names. It holds
/// no secret.
pub(crate) fn name_of(url: &str, server: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else {
        return String::new();
    };
    // Neither can fail for a URL with a host.
    let _ = parsed.set_username("");
    let _ = parsed.set_password(None);
    parsed.set_fragment(None);
    let query: Vec<(String, String)> = parsed.query_pairs().into_owned().collect();
    let has = |wanted: &str| query.iter().any(|(name, _)| name == wanted);
    let shared = has("sig") && has("sv");
    let gives_access = |name: &str| {
        let small = name.to_ascii_lowercase();
        SIGNED.iter().any(|signed| small.starts_with(signed)) || (shared && SHARED.contains(&name))
    };
    let kept: Vec<_> = query
        .iter()
        .filter(|(name, _)| !gives_access(name))
        .collect();
    if kept.len() < query.len() {
        parsed.set_query(None);
        if !kept.is_empty() {
            parsed.query_pairs_mut().extend_pairs(kept);
        }
    }
    let text = format!("{parsed}\n{server}");
    // Queries may be tokens.
    format!("{:032x}", XxHash3_128::oneshot(text.as_bytes()))
}

/// The entry of an object.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    cache: DiskCache,
    name: String,
}

/// What an entry holds.
#[derive(Debug)]
pub(crate) struct Remembered {
    pub(crate) identity: Identity,
    /// Ascending, without overlaps.
    pub(crate) parts: Vec<(u64, Vec<u8>)>,
}

impl Known {
    pub(crate) fn new(cache: &DiskCache, name: String) -> Self {
        Self {
            cache: cache.clone(),
            name,
        }
    }

    pub(crate) fn is_offline(&self) -> bool {
        self.cache.is_offline()
    }

    fn key(&self) -> CacheKey {
        CacheKey::of(
            "open",
            &XxHash3_128::oneshot(self.name.as_bytes()).to_be_bytes(),
        )
    }

    /// What is known. A damaged entry is dropped.
    pub(crate) fn load(&self) -> Option<Remembered> {
        let key = self.key();
        let entry = self.cache.find(&key)?;
        let load = || -> Option<Remembered> {
            let note = parse(entry.note())?;
            let identity = note.identity;
            let mut body = vec![
                0;
                usize::try_from(entry.len())
                    .ok()
                    .filter(|_| entry.len() <= MOST)?
            ];
            entry.read_exact_at(0, &mut body).ok()?;
            if XxHash3_128::oneshot(&body) != note.sum {
                return None;
            }
            let mut parts = Vec::new();
            let (mut rest, mut end) = (&body[..], 0);
            for (start, length) in note.ranges {
                let (bytes, later) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                if start < end || start.checked_add(length)? > identity.size || length == 0 {
                    return None;
                }
                end = start + length;
                rest = later;
                parts.push((start, bytes.to_vec()));
            }
            rest.is_empty().then_some(Remembered { identity, parts })
        };
        let loaded = load();
        if loaded.is_none() {
            self.cache.remove_damaged(&key);
        }
        loaded
    }

    /// Keeps what was fetched to open an image.
    pub(crate) fn store(&self, identity: &Identity, transfers: &[Arc<Transfer>]) {
        let mut parts: Vec<(u64, Vec<u8>)> = transfers
            .iter()
            .map(|transfer| (transfer.range.start, transfer.bytes()))
            .filter(|(_, bytes)| !bytes.is_empty())
            .collect();
        parts.sort_by_key(|(start, _)| *start);
        // Bytes that were fetched twice.
        let mut end = 0;
        parts.retain_mut(|(start, bytes)| {
            let known = usize::try_from(end.max(*start) - *start).unwrap_or(usize::MAX);
            bytes.drain(..known.min(bytes.len()));
            *start = end.max(*start);
            end = end.max(*start + bytes.len() as u64);
            !bytes.is_empty()
        });
        if parts.len() > RANGES {
            return;
        }
        let mut hasher = XxHash3_128::new();
        parts.iter().for_each(|(_, bytes)| hasher.write(bytes));
        let mut note = format!(
            "size {}\nmodified {}\ntag {}\nversion {}\nsum {:032x}\n",
            identity.size,
            identity.modified,
            shown(identity.tag.as_ref()),
            shown(identity.version.as_ref()),
            hasher.finish_128()
        );
        for (start, bytes) in &parts {
            note += &format!("range {start} {}\n", bytes.len());
        }
        let body: Vec<&[u8]> = parts.iter().map(|(_, bytes)| &bytes[..]).collect();
        self.cache
            .insert(&self.key(), note.into_bytes(), body.concat());
    }

    /// The error of a range that is not in the cache.
    pub(crate) fn missing() -> crate::failure::Failure {
        crate::failure::Failure::last(
            io::ErrorKind::NotConnected,
            "not in the cache, and the server is not asked (offline)",
        )
    }
}

/// The bytes of several transfers may be kept.
pub(crate) fn fits(transfers: &[Arc<Transfer>]) -> bool {
    transfers.iter().map(|transfer| transfer.len()).sum::<u64>() <= MOST
}

fn shown(text: Option<&String>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| format!("={text}"))
}

/// The note of an entry.
struct Note {
    identity: Identity,
    /// XXH3-128 of the body.
    sum: u128,
    /// Start and length.
    ranges: Vec<(u64, u64)>,
}

fn parse(note: &[u8]) -> Option<Note> {
    let mut lines = std::str::from_utf8(note).ok()?.lines();
    let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let text = |value: &str| match value {
        "-" => Some(None),
        value => value.strip_prefix('=').map(|text| Some(text.to_owned())),
    };
    let identity = Identity {
        size: value("size")?.parse().ok()?,
        modified: value("modified")?.parse().ok()?,
        tag: text(value("tag")?)?,
        version: text(value("version")?)?,
    };
    let sum = u128::from_str_radix(value("sum")?, 16).ok()?;
    let mut ranges = Vec::new();
    for line in lines {
        let (start, length) = line.strip_prefix("range ")?.split_once(' ')?;
        ranges.push((start.parse().ok()?, length.parse().ok()?));
    }
    Some(Note {
        identity,
        sum,
        ranges,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> (tempfile::TempDir, Known) {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(dir.path(), 1 << 30).unwrap();
        let known = Known::new(&cache, name_of("http://h/a", ""));
        (dir, known)
    }

    #[test]
    fn names_depend_on_the_object_and_hold_no_secrets() {
        let same = [
            ("https://h/a", "https://u:p@h/a#x"),
            (
                "https://h/a?X-Amz-Signature=1",
                "https://h/a?X-Amz-Date=2&X-Amz-Signature=3",
            ),
            ("https://h/a?sv=1&sig=2", "https://h/a?sv=1&se=2&sig=3"),
        ];
        let name = |url| name_of(url, "");
        for (one, two) in same {
            assert_eq!(name(one), name(two));
        }
        for (one, two) in [
            (
                "versionId=1&X-Amz-Signature=1",
                "versionId=2&X-Amz-Signature=1",
            ),
            ("id=1&sig=a", "id=2&sig=a"),
            ("snapshot=1&sv=2&sig=a", "snapshot=2&sv=2&sig=a"),
        ] {
            let name = |query| name_of(&format!("https://h/a?{query}"), "");
            assert_ne!(name(one), name(two), "{one}");
        }
        assert_ne!(name_of("s3://b/k", ""), name_of("s3://b/k", "http://other"));
        for other in [
            "https://h/b",
            "https://h/a?id=1",
            "http://h/a",
            "https://g/a",
        ] {
            assert_ne!(name("https://h/a"), name(other));
        }
    }

    #[test]
    fn entries_come_back() {
        let (_dir, known) = known();
        assert!(known.load().is_none());
        for (tag, version) in [
            (None, None),
            (Some("W/\"a b\""), Some("v")),
            (Some("-"), None),
        ] {
            let identity = Identity {
                size: 100,
                tag: tag.map(str::to_owned),
                version: version.map(str::to_owned),
                modified: -5,
            };
            let partial = Transfer::new(20..40);
            partial.add(b"xyz");
            let transfers = [
                Transfer::complete(90, vec![9; 10]),
                Transfer::complete(0, vec![1; 10]),
                Transfer::complete(5, vec![1; 10]),
                Transfer::complete(6, vec![1; 2]),
                partial,
                Transfer::new(50..60),
            ];
            known.store(&identity, &transfers);
            known.cache.flush();
            let found = known.load().unwrap();
            assert_eq!(found.identity, identity);
            let want = [
                (0, vec![1; 10]),
                (10, vec![1; 5]),
                (20, b"xyz".to_vec()),
                (90, vec![9; 10]),
            ];
            assert_eq!(found.parts, want);
        }
    }

    #[test]
    fn wrong_entries_are_dropped() {
        let (_dir, known) = known();
        let sum = format!("{:032x}", XxHash3_128::oneshot(b"body"));
        let good = format!("size 9\nmodified 0\ntag -\nversion -\nsum {sum}\nrange 5 4\n");
        let put = |note: &str| {
            known
                .cache
                .insert(&known.key(), note.as_bytes().to_vec(), b"body".to_vec());
            known.cache.flush();
        };
        put(&good);
        assert_eq!(known.load().unwrap().parts, [(5, b"body".to_vec())]);
        for (from, to) in [
            ("range 5 4", "range 6 4"),
            ("range 5 4", "range 5 3"),
            ("range 5 4", "range 5 2\nrange 6 2"),
            ("range 5 4", "range 5 0\nrange 5 4"),
            ("range 5 4", "range 18446744073709551615 4"),
            ("range 5 4", ""),
            ("range 5 4", "rage"),
            ("tag -", "tag"),
            ("sum ", "sum 1"),
            ("size 9", "size -1"),
        ] {
            put(&good.replace(from, to));
            assert!(known.load().is_none(), "{to}");
            assert!(!known.cache.contains(&known.key()), "{to}");
        }
    }
}
