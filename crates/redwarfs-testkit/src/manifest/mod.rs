//! Manifests: what a tree shows, entry by entry, from a golden file, an image or a directory.

#[cfg(unix)]
mod disk;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write as _};
use std::path::Path;

use redwarfs_format::EntryIndex;
use redwarfs_reader::Image;
use sha2::{Digest, Sha256};

/// Files above this size are compared by their last 4096 bytes (bytes).
const WHOLE_HASH_LIMIT: u64 = 64 << 20;
/// Length of that tail (bytes).
const TAIL: u64 = 4096;

/// Which fields a comparison looks at. Everything by default.
#[derive(Debug, Clone, Copy)]
pub struct Fields {
    /// Inode numbers as a mount shows them (image number plus one).
    pub ino: bool,
    /// Allocated 512-byte units.
    pub blocks: bool,
    /// Owner and group.
    pub owner: bool,
    /// Sizes of directories, which are numbers of entries in an image.
    pub dir_size: bool,
    /// Link counts of directories, which are 1 in an image.
    pub dir_nlink: bool,
    /// Modification times.
    pub mtime: bool,
    /// Access times.
    pub atime: bool,
    /// Status change times.
    pub ctime: bool,
    /// Contents of regular files.
    pub content: bool,
}

impl Fields {
    /// Everything that a mount shows.
    pub const ALL: Fields = Fields {
        ino: true,
        blocks: true,
        owner: true,
        dir_size: true,
        dir_nlink: true,
        mtime: true,
        atime: true,
        ctime: true,
        content: true,
    };
    /// What survives extraction to a directory of another file system.
    pub const EXTRACTED: Fields = Fields {
        ino: false,
        blocks: false,
        dir_size: false,
        dir_nlink: false,
        atime: false,
        ctime: false,
        ..Fields::ALL
    };
}

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry {
    /// `st_mode`, file type included.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// `st_size` in bytes.
    pub size: u64,
    /// `st_blocks` in units of 512 bytes.
    pub blocks: u64,
    /// `st_nlink`.
    pub nlink: u64,
    /// `st_ino`.
    pub ino: u64,
    /// Modification time, nanoseconds since 1970.
    pub mtime_ns: i128,
    /// Access time, nanoseconds since 1970.
    pub atime_ns: i128,
    /// Status change time, nanoseconds since 1970.
    pub ctime_ns: i128,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Major and minor number of a device.
    pub rdev: Option<(u32, u32)>,
    /// SHA-256 of the content, or of its last 4096 bytes for very large files, in hexadecimal.
    pub sha256: Option<String>,
}

impl Entry {
    fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }
}

/// A tree: path relative to its root (`.` is the root) to entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest(pub BTreeMap<Vec<u8>, Entry>);

impl Manifest {
    /// Loads a golden manifest (`.json.gz`).
    pub fn load(path: &Path) -> Self {
        let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut text = String::new();
        flate2::read::GzDecoder::new(file)
            .read_to_string(&mut text)
            .expect("a golden manifest is valid gzip");
        let list: serde_json::Value =
            serde_json::from_str(&text).expect("a golden manifest is valid JSON");
        let list = list.as_array().expect("a golden manifest is a list");
        Manifest(list.iter().map(parse_entry).collect())
    }

    /// Writes a golden manifest (`.json.gz`). The same entries give the same bytes. Paths and targets have to be UTF-8.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let text = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes);
            text.expect("a golden manifest is text").to_owned()
        };
        let time = |nanoseconds: i128| {
            i64::try_from(nanoseconds).expect("a time that a golden manifest can have")
        };
        let entry = |(path, entry): (&Vec<u8>, &Entry)| {
            let mut object = serde_json::json!({
                "path": text(path),
                "mode": format!("0o{:o}", entry.mode),
                "uid": entry.uid,
                "gid": entry.gid,
                "size": entry.size,
                "blocks": entry.blocks,
                "nlink": entry.nlink,
                "ino": entry.ino,
                "mtime_ns": time(entry.mtime_ns),
                "atime_ns": time(entry.atime_ns),
                "ctime_ns": time(entry.ctime_ns),
            });
            if let Some(target) = &entry.target {
                object["target"] = text(target).into();
            }
            if let Some((major, minor)) = entry.rdev {
                object["rdev"] = serde_json::json!([major, minor]);
            }
            if let Some(hash) = &entry.sha256 {
                let whole = entry.size <= WHOLE_HASH_LIMIT;
                object[if whole { "sha256" } else { "sha256_last4096" }] = hash.clone().into();
            }
            object
        };
        let list: Vec<serde_json::Value> = self.0.iter().map(entry).collect();
        let level = flate2::Compression::best();
        let mut file = flate2::write::GzEncoder::new(File::create(path)?, level);
        file.write_all(serde_json::to_string(&list)?.as_bytes())?;
        file.finish().map(drop)
    }

    /// The view of the library on an image: the attributes of each name, and the inode numbers of a
    /// mount.
    pub fn from_image(image: &Image, content: bool) -> redwarfs_format::Result<Self> {
        let mut map = BTreeMap::new();
        let root = image.metadata().root_entry();
        map.insert(b".".to_vec(), image_entry(image, root, content)?);
        for item in image.walk() {
            let item = item?;
            if item.path.is_empty() {
                continue;
            }
            let entry = image_entry(image, item.entry, content)?;
            let twice = map.insert(item.path.to_vec(), entry);
            assert!(twice.is_none(), "a walk shows every path once");
        }
        Ok(Manifest(map))
    }

    /// Counts only those names of an inode as links that have the same attributes, as extraction and
    /// rebuilt metadata do. It makes a difference up to format 2.2.
    #[must_use]
    pub fn linked_by_attributes(mut self) -> Self {
        let attributes = |e: &Entry| {
            let times = (e.atime_ns, e.mtime_ns, e.ctime_ns);
            (e.ino, e.mode, e.uid, e.gid, times)
        };
        let mut names = BTreeMap::new();
        for entry in self.0.values() {
            *names.entry(attributes(entry)).or_insert(0) += 1;
        }
        for entry in self.0.values_mut().filter(|entry| entry.nlink > 1) {
            entry.nlink = names[&attributes(entry)];
        }
        self
    }

    /// Every difference in the chosen fields, one line each; empty means equal.
    pub fn differences(&self, actual: &Manifest, fields: Fields) -> Vec<String> {
        let mut out = Vec::new();
        for (path, want) in &self.0 {
            let name = path.escape_ascii();
            match actual.0.get(path) {
                None => out.push(format!("{name}: missing")),
                Some(got) => {
                    compare(want, got, fields, &mut |what| {
                        out.push(format!("{name}: {what}"));
                    });
                }
            }
        }
        for path in actual.0.keys().filter(|p| !self.0.contains_key(*p)) {
            out.push(format!("{}: unexpected", path.escape_ascii()));
        }
        out.extend(link_groups(self, actual, "not hard-linked as expected"));
        out
    }

    /// Panics with all differences if there are any.
    pub fn assert_same(&self, actual: &Manifest, fields: Fields, what: &str) {
        let list = self.differences(actual, fields);
        assert!(
            list.is_empty(),
            "{what}: {} differences:\n{}",
            list.len(),
            list[..list.len().min(40)].join("\n")
        );
    }
}

/// Names of one inode on one side must be names of one inode on the other.
fn link_groups(want: &Manifest, got: &Manifest, what: &str) -> Vec<String> {
    let mut groups: BTreeMap<u64, Vec<&Vec<u8>>> = BTreeMap::new();
    for (path, entry) in &want.0 {
        if !entry.is_dir() && entry.nlink > 1 {
            groups.entry(entry.ino).or_default().push(path);
        }
    }
    let mut out = Vec::new();
    for names in groups.values() {
        let mut inodes = names.iter().filter_map(|n| got.0.get(*n)).map(|e| e.ino);
        let first = inodes.next();
        if inodes.any(|ino| Some(ino) != first) {
            out.push(format!("{}: {what}", names[0].escape_ascii()));
        }
    }
    out
}

fn compare(want: &Entry, got: &Entry, fields: Fields, report: &mut dyn FnMut(String)) {
    let dir = want.is_dir();
    let mut check = |on: bool, name: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
        let (a, b) = (format!("{a:?}"), format!("{b:?}"));
        if on && a != b {
            report(format!("{name}: expected {a}, found {b}"));
        }
    };
    let octal = |mode: u32| format!("{mode:o}");
    check(true, "mode", &octal(want.mode), &octal(got.mode));
    check(fields.owner, "uid", &want.uid, &got.uid);
    check(fields.owner, "gid", &want.gid, &got.gid);
    check(!dir || fields.dir_size, "size", &want.size, &got.size);
    check(
        fields.blocks && (!dir || fields.dir_size),
        "blocks",
        &want.blocks,
        &got.blocks,
    );
    check(!dir || fields.dir_nlink, "nlink", &want.nlink, &got.nlink);
    check(fields.ino, "ino", &want.ino, &got.ino);
    check(fields.mtime, "mtime", &want.mtime_ns, &got.mtime_ns);
    check(fields.atime, "atime", &want.atime_ns, &got.atime_ns);
    check(fields.ctime, "ctime", &want.ctime_ns, &got.ctime_ns);
    check(true, "target", &want.target, &got.target);
    check(true, "rdev", &want.rdev, &got.rdev);
    check(fields.content, "sha256", &want.sha256, &got.sha256);
}

fn parse_entry(value: &serde_json::Value) -> (Vec<u8>, Entry) {
    let number = |key: &str| {
        value[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key} in {value}"))
    };
    let time = |key: &str| {
        value[key]
            .as_i64()
            .map(i128::from)
            .or_else(|| value[key].as_u64().map(i128::from))
            .unwrap_or_else(|| panic!("{key} in {value}"))
    };
    let narrow = |key: &str| u32::try_from(number(key)).expect("a 32-bit field");
    let text = |key: &str| value[key].as_str().map(unescape);
    let mode = value["mode"].as_str().expect("a mode");
    let hash = ["sha256", "sha256_last4096"]
        .iter()
        .find_map(|key| value[*key].as_str());
    let entry = Entry {
        mode: u32::from_str_radix(mode.trim_start_matches("0o"), 8).expect("an octal mode"),
        uid: narrow("uid"),
        gid: narrow("gid"),
        size: number("size"),
        blocks: number("blocks"),
        nlink: number("nlink"),
        ino: number("ino"),
        mtime_ns: time("mtime_ns"),
        atime_ns: time("atime_ns"),
        ctime_ns: time("ctime_ns"),
        target: text("target"),
        rdev: value["rdev"].as_array().map(|pair| {
            let part = |i: usize| {
                let number = pair[i].as_u64().expect("a device number");
                u32::try_from(number).expect("a 32-bit device number")
            };
            (part(0), part(1))
        }),
        sha256: hash.map(str::to_owned),
    };
    (text("path").expect("a path"), entry)
}

/// Undoes the manifest's escape for bytes that are not UTF-8: the six characters `\udcXX`.
fn unescape(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at..]
            .strip_prefix(b"\\udc")
            .and_then(|rest| rest.get(..2))
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = byte {
            out.push(byte);
            at += 6;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    out
}

fn nanoseconds(sec: i64, nsec: i64) -> i128 {
    i128::from(sec) * 1_000_000_000 + i128::from(nsec)
}

fn device(rdev: u64) -> (u32, u32) {
    (
        redwarfs_format::device::major(rdev),
        redwarfs_format::device::minor(rdev),
    )
}

fn is_device(mode: u32) -> bool {
    matches!(mode & 0o170_000, 0o020_000 | 0o060_000)
}

/// Hash of the content, or of its tail, read with `read_at(offset, buffer)`.
fn hash<E>(
    size: u64,
    mut read_at: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
) -> Result<String, E> {
    let mut at = if size > WHOLE_HASH_LIMIT {
        size - TAIL
    } else {
        0
    };
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        let n = read_at(at, &mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        at += n as u64;
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn image_entry(image: &Image, e: EntryIndex, content: bool) -> redwarfs_format::Result<Entry> {
    let stat = image.metadata().entry_stat(e)?;
    let ino = stat.ino;
    let regular = stat.mode & 0o170_000 == 0o100_000;
    let time = |t: redwarfs_format::metadata::Timestamp| nanoseconds(t.sec, i64::from(t.nsec));
    Ok(Entry {
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        blocks: stat.allocated.div_ceil(512),
        nlink: u64::from(stat.nlink),
        ino: u64::from(stat.ino.0) + 1,
        mtime_ns: time(stat.mtime),
        atime_ns: time(stat.atime),
        ctime_ns: time(stat.ctime),
        target: if stat.mode & 0o170_000 == 0o120_000 {
            Some(image.read_link(ino)?)
        } else {
            None
        },
        rdev: is_device(stat.mode).then(|| device(stat.rdev)),
        sha256: if regular && content {
            Some(hash(stat.size, |at, buf| image.read_at(ino, at, buf))?)
        } else {
            None
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_other_bytes_are_undone() {
        assert_eq!(unescape("a-\\udce9\\udcff\\u"), b"a-\xe9\xff\\u");
    }

    #[test]
    fn differences_are_named() {
        let golden = crate::golden::golden("one").manifest();
        assert!(golden.differences(&golden, Fields::ALL).is_empty());
        let mut other = golden.clone();
        other.0.get_mut(b"only".as_slice()).unwrap().mode = 0o100_600;
        other.0.insert(b"extra".to_vec(), Entry::default());
        let list = golden.differences(&other, Fields::ALL);
        assert_eq!(list.len(), 2, "{list:?}");
        assert!(list[0].starts_with("only: mode: expected"), "{list:?}");
        assert_eq!(list[1], "extra: unexpected");
        other.0.remove(b"only".as_slice());
        assert!(
            golden
                .differences(&other, Fields::ALL)
                .contains(&"only: missing".to_owned())
        );
    }
}
