use super::*;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

fn key(number: u8) -> CacheKey {
    CacheKey::of("t", &[number; 16])
}

fn cache(limit: u64) -> (tempfile::TempDir, DiskCache) {
    let dir = tempfile::tempdir().unwrap();
    let cache = DiskCache::open(&dir.path().join("a/b"), limit).unwrap();
    (dir, cache)
}

fn body(cache: &DiskCache, key: &CacheKey) -> Option<Vec<u8>> {
    let entry = cache.find(key)?;
    let mut body = vec![0; usize::try_from(entry.len()).unwrap()];
    entry.read_exact_at(0, &mut body).unwrap();
    Some(body)
}

fn put(cache: &DiskCache, number: u8, bytes: Vec<u8>) {
    assert!(cache.insert(&key(number), vec![number], bytes));
    cache.flush();
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in fs::read_dir(path).unwrap() {
        let directory = directory.unwrap().path();
        if directory.ends_with(super::marker::NAME) {
            continue;
        }
        for file in fs::read_dir(directory).unwrap() {
            found.push(file.unwrap().path());
        }
    }
    found
}

#[test]
fn entries_are_shared_and_survive() {
    let (_dir, cache) = cache(1 << 20);
    assert!(cache.find(&key(1)).is_none() && !cache.contains(&key(1)));
    put(&cache, 1, b"one".to_vec());
    put(&cache, 2, Vec::new());
    let other = DiskCache::open(cache.path(), 1 << 20).unwrap();
    assert_eq!(body(&other, &key(1)).unwrap(), b"one");
    assert_eq!(body(&other, &key(2)).unwrap(), b"");
    assert!(cache.find(&key(2)).unwrap().is_empty());
    assert_eq!(other.find(&key(1)).unwrap().note(), [1]);
    let entry = other.find(&key(1)).unwrap();
    other.remove_damaged(&key(1));
    // Wine 8 keeps its name until it is closed.
    #[cfg(unix)]
    assert!(!cache.contains(&key(1)));
    // One that was found stays readable.
    let mut two = [0; 2];
    entry.read_exact_at(1, &mut two).unwrap();
    assert_eq!(&two, b"ne");
    for offset in [2, u64::MAX] {
        assert!(entry.read_exact_at(offset, &mut two).is_err());
    }
    let stats = other.stats();
    assert_eq!((stats.hits, stats.damaged, stats.stored), (4, 1, 0));
    assert_eq!((cache.stats().stored, cache.stats().misses), (2, 1));
    assert!(cache == cache.clone() && cache != other);
    assert!(!cache.is_offline() && cache.clone().offline(true).is_offline());
}

#[test]
fn damaged_and_foreign_files_are_dropped() {
    let (_dir, cache) = cache(1 << 20);
    let good = {
        put(&cache, 1, b"body".to_vec());
        fs::read(&files(cache.path())[0]).unwrap()
    };
    let path = files(cache.path()).remove(0);
    for cut in 0..good.len() {
        fs::write(&path, &good[..cut]).unwrap();
        assert!(cache.find(&key(1)).is_none(), "{cut}");
        assert!(!cache.contains(&key(1)), "{cut}");
    }
    let head = good.len() - 4;
    for at in 0..head {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        fs::write(&path, &bad).unwrap();
        assert!(cache.find(&key(1)).is_none(), "{at}");
    }
    // That of another entry under this name.
    put(&cache, 2, b"else".to_vec());
    let other = files(cache.path()).into_iter().find(|file| *file != path);
    fs::copy(other.unwrap(), &path).unwrap();
    assert!(cache.find(&key(1)).is_none());
    // The body is for the caller to verify.
    put(&cache, 1, b"body".to_vec());
    assert_eq!(fs::read(&path).unwrap(), good);
    let mut bad = good;
    bad[head] ^= 1;
    fs::write(&path, &bad).unwrap();
    assert_eq!(body(&cache, &key(1)).unwrap(), b"cody");
}

#[test]
fn what_was_not_used_for_the_longest_time_goes_first() {
    let (_dir, cache) = cache(100_000);
    for number in 0..8 {
        put(&cache, number, vec![number; 10_000]);
        let age = Duration::from_secs(10_000 - u64::from(number) * 1000);
        for file in files(cache.path()) {
            let opened = fs::File::open(&file).unwrap();
            if file.to_string_lossy().ends_with(&format!("{number:02x}")) {
                opened.set_modified(SystemTime::now() - age).unwrap();
            }
        }
    }
    // The oldest one is used.
    assert!(cache.find(&key(0)).is_some());
    for number in 8..11 {
        put(&cache, number, vec![number; 10_000]);
    }
    let there: Vec<u8> = (0..11).filter(|n| cache.contains(&key(*n))).collect();
    assert!(there.contains(&0) && !there.contains(&1), "{there:?}");
    let all: u64 = files(cache.path())
        .iter()
        .map(|f| f.metadata().unwrap().len())
        .sum();
    assert!(all <= 100_000, "{all}");
    // Neither what would take half of it.
    cache.insert(&key(20), Vec::new(), vec![0; 60_000]);
    cache.flush();
    assert!(!cache.contains(&key(20)));
}

#[test]
fn other_processes_count_and_leftovers_go() {
    let (_dir, cache) = cache(100_000);
    put(&cache, 1, vec![1; 1000]);
    let parent = files(cache.path())[0].parent().unwrap().to_owned();
    let left = parent.join(".new-1-1");
    fs::write(&left, b"partial").unwrap();
    let fresh = parent.join(".new-1-2");
    fs::write(&fresh, b"partial").unwrap();
    let old = SystemTime::now() - Duration::from_secs(7200);
    fs::File::open(&left).unwrap().set_modified(old).unwrap();
    // Another process fills the cache.
    let other = DiskCache::open(cache.path(), 1 << 30).unwrap();
    for number in 2..20 {
        put(&other, number, vec![number; 10_000]);
    }
    for number in 20..24 {
        put(&cache, number, vec![number; 10_000]);
    }
    let all: u64 = files(cache.path())
        .iter()
        .map(|f| f.metadata().unwrap().len())
        .sum();
    assert!(all <= 110_000, "{all}");
    assert!(!left.exists() && fresh.exists());
}

#[test]
fn a_disk_that_refuses_is_left_alone() {
    let (dir, cache) = cache(1 << 20);
    put(&cache, 1, b"one".to_vec());
    // A file where a directory must be: also root cannot write there.
    fs::write(cache.path().join("02"), b"").unwrap();
    for _ in 0..2 {
        cache.insert(&key(2), Vec::new(), b"two".to_vec());
        cache.flush();
    }
    assert!(cache.find(&key(2)).is_none());
    assert_eq!(body(&cache, &key(1)).unwrap(), b"one");
    assert_eq!(cache.stats().left_out, 2);

    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    for path in [&file, &file.join("below")] {
        let e = DiskCache::open(path, 1).unwrap_err();
        assert!(e.to_string().contains("file"), "{e}");
    }
}

#[test]
fn entries_are_left_out_when_too_many_wait() {
    let (_dir, cache) = cache(1 << 40);
    // The disk is slow.
    let disk = cache.shared.store.hold();
    let taken = (0..20u8)
        .filter(|n| cache.insert(&key(*n), Vec::new(), vec![0; 8 << 20]))
        .count() as u64;
    // Each has a byte for what else it takes.
    assert_eq!((taken, cache.stats().left_out), (7, 13));
    drop(disk);
    cache.flush();
    assert_eq!(cache.stats().stored, taken);
    cache.wait_for_room();
    put(&cache, 201, vec![1]);
    assert!(cache.contains(&key(201)));
}

#[test]
fn files_of_others_stay() {
    let (_dir, cache) = cache(40_000);
    // A home directory that was named by mistake.
    let names = ["bin/program", "01/notes", "01/t-xx01", "01/t-02"];
    for name in names {
        let file = cache.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, vec![0; 100_000]).unwrap();
    }
    for number in 1..20 {
        put(&cache, number, vec![number; 10_000]);
    }
    assert!(!cache.contains(&key(1)) && cache.contains(&key(19)));
    for name in names {
        assert!(cache.path().join(name).exists(), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    for (mode, good) in [
        (0o777, false),
        (0o1777, false),
        (0o770, false),
        (0o755, true),
    ] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        let opened = DiskCache::open(dir.path(), 1000);
        assert_eq!(opened.is_ok(), good, "{mode:o}: {opened:?}");
    }
}
