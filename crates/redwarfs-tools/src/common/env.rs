//! The environment of the process: variables, CPUs, memory.
//!
//! Values that make no sense are ignored with a warning on standard error, once per process for
//! each variable.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use redwarfs_io::place::{FileLocation, is_remote};
use redwarfs_io::{DiskCache, FileSource, MapSource, Source};
use redwarfs_reader::CpuSet;

use super::number::parse_size;

/// How image files are read.
const IOLAYER: &str = "DWARFS_IOLAYER_OPTS";
/// The CPUs of groups of threads.
const AFFINITY: &str = "DWARFS_WORKER_GROUP_AFFINITY";
/// Replaces the number of CPUs.
const CONCURRENCY: &str = "DWARFS_OVERRIDE_HARDWARE_CONCURRENCY";

/// How image files are read: `DWARFS_IOLAYER_OPTS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoLayer {
    /// Map files into memory instead of reading from them.
    pub map: bool,
    /// Files above this size in bytes are mapped in pieces of this size; `None` is no limit.
    pub max_eager_map_size: Option<u64>,
}

impl IoLayer {
    /// The setting of this process; read once.
    #[must_use]
    pub fn from_env() -> Self {
        static LAYER: OnceLock<IoLayer> = OnceLock::new();
        *LAYER.get_or_init(|| {
            variable(IOLAYER).map_or_else(Self::default, |text| Self::parse(&text, &mut warn))
        })
    }

    /// Interprets a comma list of `open_mode=mmap|read` and
    /// `max_eager_map_size=unlimited|SIZE`.
    fn parse(text: &str, warn: &mut dyn FnMut(String)) -> Self {
        let mut layer = Self::default();
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            let mut invalid = |expected: &str| {
                warn(format!(
                    "ignoring invalid {IOLAYER} option '{name}': expected {expected}"
                ));
            };
            match (name, value) {
                ("open_mode", Some("mmap")) => layer.map = true,
                ("open_mode", Some("read")) => layer.map = false,
                ("open_mode", _) => invalid("'mmap' or 'read'"),
                ("max_eager_map_size", Some("unlimited")) => layer.max_eager_map_size = None,
                ("max_eager_map_size", value) => match value.map(parse_size) {
                    Some(Ok(size)) => layer.max_eager_map_size = Some(size),
                    _ => invalid("'unlimited' or a size"),
                },
                _ => warn(format!("ignoring unknown {IOLAYER} option '{name}'")),
            }
        }
        layer
    }

    /// Opens an image file in this way, or the object of a URL. If there is no such file, `BASE+DELTA...` is an image with its
    /// delta files.
    ///
    /// # Errors
    /// As [`FileSource::open`] and [`MapSource::open`]; `InvalidData` if a delta file continues another
    /// image.
    pub fn open(self, path: &Path) -> io::Result<Arc<dyn Source>> {
        self.open_cached(path, None)
    }

    /// The same, with a cache on disk for what is on a server.
    ///
    /// # Errors
    /// As [`IoLayer::open`]; those of [`remote::open`](super::remote::open).
    pub fn open_cached(
        self,
        path: &Path,
        cache: Option<&DiskCache>,
    ) -> io::Result<Arc<dyn Source>> {
        let missing = match self.open_one(path, cache) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => e,
            opened => return opened,
        };
        let Some(parts) = joined_parts(path) else {
            return Err(missing);
        };
        let parts = parts.into_iter().map(|part| self.open_one(part, cache));
        let mut parts = parts.collect::<io::Result<Vec<_>>>()?;
        let deltas = parts.split_off(1);
        let Some(base) = parts.pop() else {
            return Err(missing);
        };
        match redwarfs_append::join(base, deltas) {
            Ok(joined) => Ok(Arc::new(joined)),
            Err(redwarfs_append::Error::Io(e)) => Err(e),
            Err(e) => Err(io::Error::new(io::ErrorKind::InvalidData, e.to_string())),
        }
    }

    fn open_one(self, path: &Path, cache: Option<&DiskCache>) -> io::Result<Arc<dyn Source>> {
        match FileLocation::of(path)? {
            FileLocation::Remote(url) => super::remote::open(url, cache),
            FileLocation::File(path) if self.map => {
                super::os::explain_bus_errors();
                Ok(Arc::new(MapSource::open(path, self.max_eager_map_size)?))
            }
            FileLocation::File(path) => Ok(Arc::new(FileSource::open(path)?)),
        }
    }
}

/// The paths of an image and its delta files, if a path that names no file is `IMAGE+DELTA...`.
#[must_use]
pub fn joined_parts(path: &Path) -> Option<Vec<&Path>> {
    let joined = |text: &&str| text.contains('+') && !is_remote(path) && !path.exists();
    let text = path.to_str().filter(joined)?;
    Some(text.split('+').map(Path::new).collect())
}

/// The CPUs for a group of threads, if `DWARFS_WORKER_GROUP_AFFINITY` names it:
/// `GROUP=CPU[,CPU...][:GROUP=...]`.
#[must_use]
pub fn affinity(group: &str) -> Option<CpuSet> {
    static GROUPS: OnceLock<Vec<(String, CpuSet)>> = OnceLock::new();
    let groups = GROUPS.get_or_init(|| {
        variable(AFFINITY).map_or_else(Vec::new, |text| parse_affinity(&text, &mut warn))
    });
    // As with repeated options, the last one counts.
    let found = groups.iter().rev().find(|(name, _)| name == group);
    found.map(|(_, cpus)| *cpus)
}

fn parse_affinity(text: &str, warn: &mut dyn FnMut(String)) -> Vec<(String, CpuSet)> {
    let mut groups = Vec::new();
    for part in text.split(':').filter(|part| !part.is_empty()) {
        let parsed = part.split_once('=').and_then(|(group, list)| {
            let mut cpus = CpuSet::default();
            for number in list.split(',') {
                if !cpus.add(number.trim().parse().ok()?) {
                    return None;
                }
            }
            (!group.is_empty()).then(|| (group.to_owned(), cpus))
        });
        match parsed {
            Some(group) => groups.push(group),
            None => warn(format!(
                "ignoring invalid {AFFINITY} group '{part}': expected GROUP=CPU[,CPU...] with \
                 numbers below {}",
                CpuSet::CAPACITY
            )),
        }
    }
    groups
}

/// Number of threads that can work at the same time: `DWARFS_OVERRIDE_HARDWARE_CONCURRENCY`, or the
/// number of CPUs that the affinity mask and the control group of this process allow. At least 1.
#[must_use]
pub fn concurrency() -> usize {
    static CONCURRENT: OnceLock<usize> = OnceLock::new();
    *CONCURRENT.get_or_init(|| {
        variable(CONCURRENCY)
            .and_then(|text| parse_concurrency(&text, &mut warn))
            // Looks at the affinity mask and at control groups of both versions.
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    })
}

fn parse_concurrency(text: &str, warn: &mut dyn FnMut(String)) -> Option<usize> {
    match text.trim().parse() {
        Ok(0) | Err(_) => {
            warn(format!(
                "ignoring invalid {CONCURRENCY} '{text}': expected a positive integer"
            ));
            None
        }
        Ok(number) => Some(number),
    }
}

/// Bytes of memory that this process may still use: the available memory of the system, within the
/// limits of its control group and of the parents of that group. `None` if the system does not say.
#[must_use]
pub fn memory_available() -> Option<u64> {
    available_below(Path::new("/"))
}

/// With the files of the system below `root`.
fn available_below(root: &Path) -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let system = read("proc/meminfo").and_then(|text| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    });
    let groups = read("proc/self/cgroup").unwrap_or_default();
    let limits = groups
        .lines()
        .filter_map(|line| group_available(root, line));
    system.into_iter().chain(limits).min()
}

/// Memory left by the group of one line of `/proc/self/cgroup`, and by its parents.
fn group_available(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let v1 = controllers.split(',').any(|name| name == "memory");
    if !v1 && !controllers.is_empty() {
        return None;
    }
    // Where the systems of today mount them.
    let bases: &[&str] = if v1 {
        &["sys/fs/cgroup/memory"]
    } else {
        &["sys/fs/cgroup", "sys/fs/cgroup/unified"]
    };
    let [limit, used, inactive] = if v1 {
        [
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ]
    } else {
        ["memory.max", "memory.current", "inactive_file"]
    };
    let number =
        |path: PathBuf| -> Option<u64> { std::fs::read_to_string(path).ok()?.trim().parse().ok() };
    let mut least = None;
    for base in bases {
        let base = root.join(base);
        // In a container the path may be a path of the host. Then only the mount itself exists, which
        // the last step reaches.
        let mut group = base.join(path.trim_start_matches('/'));
        loop {
            // `max` is no number: no limit.
            if let (Some(limit), Some(used)) = (number(group.join(limit)), number(group.join(used)))
            {
                // The page cache counts as used, but goes when memory is needed.
                let cache = std::fs::read_to_string(group.join("memory.stat"))
                    .ok()
                    .and_then(|text| {
                        let line = text
                            .lines()
                            .find_map(|line| line.strip_prefix(inactive)?.strip_prefix(' '))?;
                        line.trim().parse().ok()
                    })
                    .unwrap_or(0);
                let left = limit.saturating_sub(used.saturating_sub(cache));
                least = Some(least.map_or(left, |least: u64| least.min(left)));
            }
            if group == base || !group.pop() {
                break;
            }
        }
    }
    least
}

/// A variable that is set and not empty. Bytes that are not UTF-8 are shown replaced, and then
/// lead to a warning.
fn variable(name: &str) -> Option<String> {
    let value: OsString = std::env::var_os(name)?;
    let text = value.to_string_lossy().into_owned();
    (!text.is_empty()).then_some(text)
}

fn warn(text: String) {
    // There is no logger yet. If standard error is closed, no user could see the message.
    let _ = writeln!(io::stderr(), "warning: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings<T>(parse: impl FnOnce(&mut dyn FnMut(String)) -> T) -> (T, Vec<String>) {
        let mut found = Vec::new();
        let value = parse(&mut |text| found.push(text));
        (value, found)
    }

    #[test]
    fn iolayer_options() {
        let parse = |text| warnings(|warn| IoLayer::parse(text, warn));
        assert_eq!(parse(""), (IoLayer::default(), vec![]));
        let (layer, said) = parse("open_mode=mmap,max_eager_map_size=32m");
        assert!(layer.map && said.is_empty());
        assert_eq!(layer.max_eager_map_size, Some(32 << 20));
        let (layer, said) = parse("open_mode=mmap,open_mode=read,max_eager_map_size=unlimited");
        assert_eq!((layer, said), (IoLayer::default(), vec![]));
        let (layer, said) = parse("open_mode=foo,foo,bar=1,open_mode,max_eager_map_size=x");
        assert_eq!(layer, IoLayer::default());
        assert_eq!(
            said,
            [
                "ignoring invalid DWARFS_IOLAYER_OPTS option 'open_mode': expected 'mmap' or 'read'",
                "ignoring unknown DWARFS_IOLAYER_OPTS option 'foo'",
                "ignoring unknown DWARFS_IOLAYER_OPTS option 'bar'",
                "ignoring invalid DWARFS_IOLAYER_OPTS option 'open_mode': expected 'mmap' or 'read'",
                "ignoring invalid DWARFS_IOLAYER_OPTS option 'max_eager_map_size': expected 'unlimited' or a size",
            ]
        );
    }

    #[test]
    fn groups_of_threads() {
        let parse = |text| warnings(|warn| parse_affinity(text, warn));
        let (groups, said) = parse("blkcache=0,3:compress=1");
        assert!(said.is_empty(), "{said:?}");
        assert_eq!(groups[0].0, "blkcache");
        assert_eq!(groups[0].1.iter().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(groups[1], ("compress".into(), [1].into_iter().collect()));
        for bad in [
            "blkcache",
            "blkcache=",
            "=1",
            "blkcache=1,x",
            "blkcache=5000",
        ] {
            let (groups, said) = parse(bad);
            assert!(groups.is_empty() && said.len() == 1, "{bad}: {said:?}");
            assert!(said[0].contains(bad), "{said:?}");
        }
    }

    #[test]
    fn number_of_threads() {
        let parse = |text| warnings(|warn| parse_concurrency(text, warn));
        assert_eq!(parse("3"), (Some(3), vec![]));
        for bad in ["0", "-1", "x", "1.5"] {
            let (number, said) = parse(bad);
            assert_eq!((number, said.len()), (None, 1), "{bad}");
        }
        assert!(concurrency() >= 1);
    }

    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn memory_of_the_system() {
        let root = system(&[("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   1000 kB\n")]);
        assert_eq!(available_below(root.path()), Some(1000 << 10));
        assert_eq!(available_below(system(&[]).path()), None);
        assert!(memory_available().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn memory_of_a_group_with_version_2() {
        let root = system(&[
            ("proc/meminfo", "MemAvailable: 1000000 kB\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "100\n"),
            ("sys/fs/cgroup/a/memory.max", "5000\n"),
            ("sys/fs/cgroup/a/memory.current", "3000\n"),
            (
                "sys/fs/cgroup/a/memory.stat",
                "inactive_anon 7\ninactive_file 500\n",
            ),
        ]);
        assert_eq!(available_below(root.path()), Some(2500));
    }

    #[test]
    fn memory_of_a_group_with_version_1_in_a_container() {
        let root = system(&[
            ("proc/meminfo", "MemAvailable: 1000000 kB\n"),
            (
                "proc/self/cgroup",
                "5:cpu,cpuacct:/x\n4:memory:/host/path\n0::/\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "10000\n"),
            (
                "sys/fs/cgroup/memory/memory.stat",
                "total_inactive_file 4000\n",
            ),
        ]);
        assert_eq!(available_below(root.path()), Some(3000));
    }
}
