//! What an image has to show: computed from the input and the options, without the writer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use redwarfs_testkit::{Entry, Manifest};
use sha2::{Digest, Sha256};

const SECOND: i128 = 1_000_000_000;
const TYPE: u32 = 0o170_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SymlinkPolicy {
    Keep,
    Follow,
    Drop,
}

/// What options do.
pub(crate) struct Model {
    pub(crate) devices: bool,
    pub(crate) specials: bool,
    pub(crate) symlinks: SymlinkPolicy,
    pub(crate) dissolve: bool,
    pub(crate) pseudo: bool,
    pub(crate) dense: bool,
    pub(crate) hollow: bool,
    pub(crate) list: bool,
    pub(crate) filter: fn(&[u8], bool) -> bool,
    /// Which paths a script keeps, unless they are directories.
    pub(crate) script: fn(&[u8]) -> bool,
    pub(crate) remove_empty: bool,
    /// Names of which the first that a directory has is the only one that it keeps.
    pub(crate) tags: Vec<&'static str>,
    pub(crate) owner: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) owner_map: bool,
    /// From `st_mode` to permissions.
    pub(crate) chmod: fn(u32) -> u32,
    /// Seconds.
    pub(crate) set_time: Option<i64>,
    pub(crate) all_times: bool,
    /// Nanoseconds.
    pub(crate) resolution: i128,
    /// Seconds.
    pub(crate) latest: Option<i64>,
    /// Lists end in NUL.
    pub(crate) null: bool,
    /// What decides which reader can read the image.
    pub(crate) header: bool,
    pub(crate) brotli_metadata: bool,
    pub(crate) packed_shared_files: bool,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            devices: false,
            specials: false,
            symlinks: SymlinkPolicy::Keep,
            dissolve: false,
            pseudo: false,
            dense: false,
            hollow: false,
            list: false,
            filter: |_, _| true,
            script: |_| true,
            remove_empty: false,
            tags: Vec::new(),
            owner: None,
            group: None,
            owner_map: false,
            chmod: |mode| mode & 0o7777,
            set_time: None,
            all_times: false,
            resolution: SECOND,
            latest: None,
            null: false,
            header: false,
            brotli_metadata: false,
            packed_shared_files: false,
        }
    }
}

/// An input with what its files hold.
pub(crate) struct Input {
    pub(crate) root: PathBuf,
    /// What `--input-list` names.
    pub(crate) listed: BTreeSet<Vec<u8>>,
    pub(crate) pseudo: PathBuf,
    /// The file that the pseudo file takes in.
    pub(crate) host: PathBuf,
    /// Hashes by inode, and of zeros by size.
    hashes: Mutex<HashMap<(u64, u64), String>>,
}

impl Input {
    pub(crate) fn new(
        root: PathBuf,
        listed: BTreeSet<Vec<u8>>,
        pseudo: PathBuf,
        host: PathBuf,
    ) -> Self {
        Self {
            root,
            listed,
            pseudo,
            host,
            hashes: Mutex::default(),
        }
    }

    fn hash(
        &self,
        key: (u64, u64),
        open: impl FnOnce() -> io::Result<Box<dyn Read>>,
    ) -> io::Result<String> {
        let mut known = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hash) = known.get(&key) {
            return Ok(hash.clone());
        }
        let mut content = Vec::new();
        open()?.read_to_end(&mut content)?;
        let hash = Sha256::digest(&content);
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        known.insert(key, hash.clone());
        Ok(hash)
    }
}

/// One entry on its way into the expected tree.
struct Found {
    entry: Entry,
    /// Device and inode of a regular file that has several names on the disk.
    shared: Option<(u64, u64)>,
}

/// The tree that an image of `input` with these options shows. Numbers of inodes only tell which
/// names belong together. With it comes the number of links that cannot be followed.
pub(crate) fn expected(input: &Input, model: &Model) -> io::Result<(Manifest, usize)> {
    let mut walk = Walk {
        input,
        model,
        found: BTreeMap::new(),
        lost: 0,
    };
    let root = fs::metadata(&input.root)?;
    let entry = walk.describe(&input.root, &root)?;
    walk.found.insert(Vec::new(), entry);
    walk.directory(&[])?;
    if model.pseudo {
        walk.declare()?;
    }
    walk.found
        .retain(|path, found| is_kind(found.entry.mode, &[DIRECTORY]) || (model.script)(path));
    if model.remove_empty {
        walk.prune();
    }
    let lost = walk.lost;
    Ok((walk.finish(), lost))
}

/// Below `dir`, at any depth.
fn below(path: &[u8], dir: &[u8]) -> bool {
    dir.is_empty()
        || path
            .strip_prefix(dir)
            .is_some_and(|rest| rest.starts_with(b"/"))
}

fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
    &path[..end]
}

fn is_kind(mode: u32, kinds: &[u32]) -> bool {
    kinds.contains(&(mode & TYPE))
}

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const DEVICES: [u32; 2] = [0o020_000, 0o060_000];
const SPECIALS: [u32; 2] = [0o010_000, 0o140_000];

struct Walk<'a> {
    input: &'a Input,
    model: &'a Model,
    /// By path; the root is empty.
    found: BTreeMap<Vec<u8>, Found>,
    lost: usize,
}

impl Walk<'_> {
    fn describe(&self, path: &Path, meta: &Metadata) -> io::Result<Found> {
        let regular = meta.is_file();
        let time = |seconds: i64, nanos: i64| i128::from(seconds) * SECOND + i128::from(nanos);
        let device = meta.file_type().is_char_device() || meta.file_type().is_block_device();
        let (size, hollow) = (meta.size(), self.model.hollow);
        let sha256 = if !regular {
            None
        } else if hollow {
            let zeros = || Ok(Box::new(io::repeat(0).take(size)) as Box<dyn Read>);
            Some(self.input.hash((0, size), zeros)?)
        } else {
            let open = || Ok(Box::new(File::open(path)?) as Box<dyn Read>);
            Some(self.input.hash((meta.dev(), meta.ino()), open)?)
        };
        let allocated = match regular {
            true if hollow => 0,
            true if self.model.dense => size,
            true => data_size(path, size)?,
            false => 0,
        };
        let target = meta.is_symlink().then(|| fs::read_link(path)).transpose()?;
        let rdev = meta.rdev();
        Ok(Found {
            entry: Entry {
                mode: meta.mode(),
                uid: meta.uid(),
                gid: meta.gid(),
                size,
                blocks: allocated.div_ceil(512),
                nlink: 1,
                ino: 0,
                mtime_ns: time(meta.mtime(), meta.mtime_nsec()),
                atime_ns: time(meta.atime(), meta.atime_nsec()),
                ctime_ns: time(meta.ctime(), meta.ctime_nsec()),
                target: target.map(|target| target.into_os_string().into_vec()),
                rdev: device.then(|| (rustix::fs::major(rdev), rustix::fs::minor(rdev))),
                sha256,
            },
            shared: (regular && meta.nlink() > 1).then(|| (meta.dev(), meta.ino())),
        })
    }

    /// Takes the entries of a directory.
    fn directory(&mut self, dir: &[u8]) -> io::Result<()> {
        let model = self.model;
        let host = self.input.root.join(OsStr::from_bytes(dir));
        let mut names = Vec::new();
        for entry in fs::read_dir(&host)? {
            names.push(entry?.file_name().into_vec());
        }
        let tag = model.tags.iter().find(|tag| {
            let there = names.iter().any(|name| name == tag.as_bytes());
            there && !dir.is_empty()
        });
        for name in names {
            if tag.is_some_and(|tag| name != tag.as_bytes()) {
                continue;
            }
            let path = match dir {
                [] => name,
                _ => [dir, b"/", name.as_slice()].concat(),
            };
            let wanted = |listed: &Vec<u8>| *listed == path || below(listed, &path);
            if model.list && !self.input.listed.iter().any(wanted) {
                continue;
            }
            let host = self.input.root.join(OsStr::from_bytes(&path));
            let meta = match model.symlinks {
                SymlinkPolicy::Follow => fs::metadata(&host),
                _ => fs::symlink_metadata(&host),
            };
            let meta = match meta {
                // A link that points nowhere, or to too long a name.
                Err(_) if model.symlinks == SymlinkPolicy::Follow => {
                    self.lost += 1;
                    continue;
                }
                other => other?,
            };
            let dropped = meta.is_symlink() && model.symlinks == SymlinkPolicy::Drop
                || is_kind(meta.mode(), &DEVICES) && !(model.devices || model.list)
                || is_kind(meta.mode(), &SPECIALS) && !(model.specials || model.list);
            if dropped || !(model.filter)(&path, meta.is_dir()) {
                continue;
            }
            let found = self.describe(&host, &meta)?;
            self.found.insert(path.clone(), found);
            if meta.is_dir() {
                self.directory(&path)?;
            }
        }
        Ok(())
    }

    /// What the pseudo file says; see [`PSEUDO`].
    fn declare(&mut self) -> io::Result<()> {
        let time = fs::metadata(&self.input.pseudo)?;
        let time = i128::from(time.mtime()) * SECOND + i128::from(time.mtime_nsec());
        let fresh = |mode, uid, gid| Found {
            entry: Entry {
                mode,
                uid,
                gid,
                nlink: 1,
                mtime_ns: time,
                atime_ns: time,
                ctime_ns: time,
                ..Entry::default()
            },
            shared: None,
        };
        let mut change = |path: &[u8], mode: u32, uid: Option<u32>| {
            let found = self.found.get_mut(path).expect("it is always there");
            found.entry.mode = (found.entry.mode & TYPE) | mode;
            found.entry.uid = uid.unwrap_or(found.entry.uid);
        };
        change(b"", 0o750, Some(3));
        change(b"text/keep", 0o600, Some(4_000_000_000));
        match self.found.get_mut(b"empty/a".as_slice()) {
            Some(found) => found.entry.mode = DIRECTORY | 0o700,
            None => {
                let parent = || fresh(DIRECTORY | 0o755, 0, 0);
                self.found.entry(b"empty".to_vec()).or_insert_with(parent);
                let own = fresh(DIRECTORY | 0o700, 0, 0);
                self.found.insert(b"empty/a".to_vec(), own);
            }
        }
        let host = fs::metadata(&self.input.host)?;
        let mut made = self.describe(&self.input.host, &host)?;
        made.entry.mode = REGULAR | 0o640;
        (made.entry.uid, made.entry.gid) = (1, 2);
        self.found.insert(b"made here".to_vec(), made);
        let mut nothing = fresh(REGULAR | 0o600, 0, 0);
        let empty = || Ok(Box::new(io::empty()) as Box<dyn Read>);
        nothing.entry.sha256 = Some(self.input.hash((0, 0), empty)?);
        let mut way = fresh(SYMLINK | 0o777, 0, 0);
        way.entry.target = Some(b"text/keep".to_vec());
        way.entry.size = 9;
        let device = |found: Found, major, minor| Found {
            entry: Entry {
                rdev: Some((major, minor)),
                ..found.entry
            },
            shared: None,
        };
        for (path, found) in [
            ("nothing", nothing),
            ("way", way),
            ("dev", fresh(DIRECTORY | 0o711, 0, 0)),
            ("dev/null", device(fresh(0o020_666, 0, 0), 1, 3)),
            ("dev/disk", device(fresh(0o060_660, 0, 6), 259, 70_001)),
            ("dev/log", fresh(0o140_666, 0, 0)),
            ("run", fresh(DIRECTORY | 0o755, 0, 0)),
            ("run/fifo", fresh(0o010_600, 5, 5)),
        ] {
            self.found.insert(path.as_bytes().to_vec(), found);
        }
        Ok(())
    }

    /// Takes out directories without content, and those that are empty then.
    fn prune(&mut self) {
        loop {
            let parents: BTreeSet<&[u8]> = self.found.keys().map(|path| parent(path)).collect();
            let empty: Vec<Vec<u8>> = (self.found.iter())
                .filter(|(path, found)| {
                    let directory = is_kind(found.entry.mode, &[DIRECTORY]);
                    directory && !path.is_empty() && !parents.contains(path.as_slice())
                })
                .map(|(path, _)| path.clone())
                .collect();
            if empty.is_empty() {
                return;
            }
            for path in empty {
                self.found.remove(&path);
            }
        }
    }

    /// Owners, modes, times, links, and the sizes of directories.
    fn finish(mut self) -> Manifest {
        let model = self.model;
        let mut names: HashMap<(u64, u64), u64> = HashMap::new();
        for found in self.found.values_mut() {
            found.shared = found.shared.filter(|_| !model.dissolve);
            *names.entry(found.shared.unwrap_or_default()).or_default() += 1;
        }
        let paths: Vec<Vec<u8>> = self.found.keys().cloned().collect();
        let mut out = BTreeMap::new();
        for (number, (path, found)) in (1u64..).zip(self.found) {
            let mut entry = found.entry;
            entry.ino = 1 << 32 | number;
            if let Some(shared) = found.shared {
                entry.nlink = names[&shared];
                entry.ino = shared.1;
            }
            if is_kind(entry.mode, &[DIRECTORY]) {
                let content = |other: &&Vec<u8>| !other.is_empty() && parent(other) == path;
                entry.size = paths.iter().filter(content).count() as u64;
            } else if !is_kind(entry.mode, &[REGULAR, SYMLINK]) {
                entry.size = 0;
            }
            entry.mode = (entry.mode & TYPE) | (model.chmod)(entry.mode);
            let (uid, gid) = match model.owner_map {
                true => mapped(entry.uid, entry.gid),
                false => (entry.uid, entry.gid),
            };
            entry.uid = model.owner.unwrap_or(uid);
            entry.gid = model.group.unwrap_or(gid);
            if !model.all_times {
                (entry.atime_ns, entry.ctime_ns) = (entry.mtime_ns, entry.mtime_ns);
            }
            for time in [
                &mut entry.mtime_ns,
                &mut entry.atime_ns,
                &mut entry.ctime_ns,
            ] {
                if let Some(latest) = model.latest {
                    *time = (*time).min(i128::from(latest) * SECOND);
                }
                if let Some(set) = model.set_time {
                    *time = i128::from(set) * SECOND;
                }
                *time = time.div_euclid(model.resolution) * model.resolution;
            }
            let shown = if path.is_empty() { b".".to_vec() } else { path };
            out.insert(shown, entry);
        }
        Manifest(out)
    }
}

/// Bytes of a file that are not in holes.
fn data_size(path: &Path, size: u64) -> io::Result<u64> {
    use rustix::fs::{SeekFrom, seek};
    let file = File::open(path)?;
    let (mut at, mut data) = (0, 0);
    while at < size {
        let start = match seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        at = seek(&file, SeekFrom::Hole(start))?.min(size);
        data += at.saturating_sub(start);
    }
    Ok(data)
}

/// What `{owners}` says.
pub(crate) const OWNERS: &str =
    "# shifted\nuser 0-10 4000000000\nuser 1000 0\ngroup 0 70000\ngroup * 7\n";

fn mapped(uid: u32, gid: u32) -> (u32, u32) {
    let uid = match uid {
        0..=10 => 4_000_000_000 + uid,
        1000 => 0,
        other => other,
    };
    (uid, if gid == 0 { 70_000 } else { 7 })
}

/// What `{pseudo}` says, but for the name of the file of the host.
pub(crate) const PSEUDO: &str = "\
# a tree that needs no root
/ m 750 3 -
/dev d 711 root root
/dev/null c 666 0 0 1 3
dev/disk b 660 0 6 259 70001
dev/log i 666 0 0 s
run/fifo i 600 5 5
text/keep m 600 4000000000 -
empty/a d 700 - -
nothing f 600 0 0
way s 777 0 0 text/keep
\"made here\" f 640 1 2 ";
