//! Copies of files that cannot be repaired where they are.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use redwarfs_io::{Fault, FaultSource, FileSource, LockedFile, MemorySource, Source};
use redwarfs_recovery::{Error, Protection, RecoveryData, add, locate};
use redwarfs_testkit::mutate::Rng;

use crate::support::{append, go, image};

fn protect(dir: &tempfile::TempDir, plain: &[u8]) -> Vec<u8> {
    let path = dir.path().join("image");
    fs::write(&path, plain).unwrap();
    let protection = Protection::percent(10.0);
    let file = LockedFile::open(&path).unwrap();
    add(file, 0, &protection, &|_| {}, &go()).unwrap();
    fs::read(&path).unwrap()
}

fn output(dir: &tempfile::TempDir) -> LockedFile {
    let path = dir.path().join("copy");
    fs::write(&path, b"").unwrap();
    LockedFile::open(&path).unwrap()
}

fn data(file: &dyn Source) -> RecoveryData {
    locate(file, &go()).unwrap()
}

#[test]
fn what_cannot_be_read_and_is_not_protected_becomes_zeros_that_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(1);
    let whole = protect(&dir, &image(b"", &[100_000, 50_000], &mut rng));
    // A second generation, which has no recovery data.
    let grown = append(&whole, 0, &mut rng);
    let (protected, open) = (20_000_u64, whole.len() as u64 + 9000);
    let source = FaultSource::new(MemorySource::new(grown.clone()))
        .with(Fault::FailRange(protected..protected + 1))
        .with(Fault::FailRange(open..open + 5000));
    let out = output(&dir);
    let sum = Cell::new(0);
    let done = |bytes| sum.set(sum.get() + bytes);
    let copied = data(&source).copy(&source, &out, &done, &go()).unwrap();
    assert_eq!(sum.get(), grown.len() as u64);
    let found = data(&out);
    let damage = found.check(&out, &|_| {}, &go()).unwrap();
    found.repair(&out, &damage, &go()).unwrap();
    // Small pieces of the file are lost with what cannot be read in them.
    let zeros = copied.zeros(&found, &out).unwrap();
    let [(start, length)] = zeros[..] else {
        panic!("{zeros:?}");
    };
    let (start, end) = (start as usize, (start as u64 + length) as usize);
    assert!(start as u64 <= open && end as u64 >= open + 5000 && length < 5000 + 2 * 4096);
    let mut expected = grown;
    expected[start..end].fill(0);
    let repaired = fs::read(dir.path().join("copy")).unwrap();
    assert!(repaired == expected);
}

#[test]
fn a_copy_can_be_stopped_and_its_errors_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let whole = protect(&dir, &image(b"", &[3_000_000], &mut Rng::new(2)));
    let source = MemorySource::new(whole);
    let stop = AtomicBool::new(false);
    let data = data(&source);
    let pieces = Cell::new(0);
    let done = |_| {
        pieces.set(pieces.get() + 1);
        stop.store(pieces.get() == 2, Ordering::Relaxed);
    };
    let stopped = data.copy(&source, &output(&dir), &done, &stop);
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    assert_eq!(pieces.get(), 2);
    #[derive(Debug)]
    struct Full;
    impl Source for Full {
        fn len(&self) -> io::Result<u64> {
            Ok(0)
        }
        fn read_exact_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
    impl redwarfs_io::Medium for Full {
        fn write_all_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn set_len(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }
    match data.copy(&source, &Full, &|_| {}, &go()) {
        Err(Error::Io(e)) => assert_eq!(e.kind(), io::ErrorKind::StorageFull),
        other => panic!("{other:?}"),
    }
}

#[cfg(unix)]
#[test]
fn zeros_are_holes() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let mut leading = vec![0; 24 << 20];
    leading[..4].copy_from_slice(b"head");
    let plain = image(&leading, &[100_000], &mut Rng::new(3));
    let path = dir.path().join("image");
    fs::write(&path, &plain).unwrap();
    let file = LockedFile::open(&path).unwrap();
    add(
        file,
        leading.len() as u64,
        &Protection::percent(10.0),
        &|_| {},
        &go(),
    )
    .unwrap();
    let whole = fs::read(&path).unwrap();
    // With its holes, of which the source knows, and without.
    let sparse = dir.path().join("sparse");
    fs::write(&sparse, &whole[..4]).unwrap();
    let file = LockedFile::open(&sparse).unwrap();
    redwarfs_io::Medium::write_all_at(&file, 24 << 20, &whole[24 << 20..]).unwrap();
    for from in [&path, &sparse] {
        let source = FileSource::open(from).unwrap();
        let out = output(&dir);
        let copied = data(&source).copy(&source, &out, &|_| {}, &go()).unwrap();
        assert!(copied.zeros(&data(&source), &out).unwrap().is_empty());
        let copy = dir.path().join("copy");
        assert!(fs::read(&copy).unwrap() == whole);
        let used = fs::metadata(&copy).unwrap().blocks() * 512;
        assert!(used < 2 << 20, "{used}");
    }
}
