//! Files that are repaired in memory while they are read.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use std::fs;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use redwarfs_format::section::SectionHeader;
use redwarfs_io::{Fault, FaultSource, LockedFile, MemorySource, Source};
use redwarfs_recovery::{
    Mended, Protection, RepairingSource, Sidecar, add, add_sidecar, locate, locate_sidecar,
};
use redwarfs_testkit::mutate::Rng;

use support::{flip, go, image};

/// A file with recovery data in it.
fn protected(plain: &[u8], offset: u64, percent: f64) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    fs::write(&path, plain).unwrap();
    let mut protection = Protection::percent(percent);
    protection.leading = true;
    let file = LockedFile::open(&path).unwrap();
    add(file, offset, &protection, &|_| {}, &go()).unwrap();
    fs::read(&path).unwrap()
}

/// A sidecar of an image.
fn beside(plain: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sidecar");
    fs::write(&path, b"").unwrap();
    let out = LockedFile::open(&path).unwrap();
    let file = MemorySource::new(plain.to_vec());
    add_sidecar(&file, 0, &Protection::percent(10.0), &out, &|_| {}, &go()).unwrap();
    fs::read(&path).unwrap()
}

type Said = Arc<Mutex<Vec<Mended>>>;

fn repairing(file: Vec<u8>, sidecar: Option<Vec<u8>>) -> (RepairingSource, Said) {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(file));
    let data = match sidecar {
        None => locate(&*source, &go()).unwrap(),
        Some(bytes) => {
            let sidecar = Sidecar::read_only(Arc::new(MemorySource::new(bytes)));
            locate_sidecar(&*source, sidecar, &go()).unwrap()
        }
    };
    let said = Said::default();
    let heard = Arc::clone(&said);
    let listener = move |mended: &Mended| heard.lock().unwrap().push(mended.clone());
    let source = RepairingSource::new(source, &data, Box::new(listener)).unwrap();
    (source, said)
}

fn read_all(source: &dyn Source) -> Vec<u8> {
    let mut bytes = vec![0; source.len().unwrap() as usize];
    source.read_exact_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn reads_give_the_old_bytes_and_each_repair_is_said_once() {
    let plain = image(b"#!program", &[300_000, 5000], &mut Rng::new(1));
    let whole = protected(&plain, 9, 10.0);
    let (source, said) = repairing(whole.clone(), None);
    assert!(read_all(&source) == plain && said.lock().unwrap().is_empty());
    let mut rng = Rng::new(2);
    for round in 0..20 {
        let mut bad = whole.clone();
        match round % 3 {
            0 => flip(&mut bad, 0..whole.len(), 10, &mut rng),
            1 => {
                bad[..9000].fill(0);
                bad.truncate(whole.len() - 15_000);
            }
            _ => {
                let at = rng.below(280_000);
                bad[at..at + 20_000].fill(1);
            }
        }
        let hurt = bad[..plain.len()] != plain;
        let (source, said) = repairing(bad, None);
        // In any order and size.
        for _ in 0..200 {
            let at = rng.below(plain.len());
            let mut part = vec![0; rng.below((plain.len() - at).min(70_000)) + 1];
            source.read_exact_at(at as u64, &mut part).unwrap();
            assert!(part == plain[at..at + part.len()], "{round} {at}");
        }
        assert!(read_all(&source) == plain, "{round}");
        let said = said.lock().unwrap();
        assert_eq!(said.len(), usize::from(hurt), "{said:?}");
        if let Some(Mended::Repaired { ranges, total }) = said.first() {
            assert_eq!(*total, ranges.len() as u64);
        }
    }
}

/// Bytes that are lost at the start come back, and others there stay.
#[test]
fn the_start_moves() {
    let leading = b"#!a program in front of the image".repeat(50);
    let plain = image(&leading, &[200_000], &mut Rng::new(3));
    let whole = protected(&plain, leading.len() as u64, 10.0);
    let (source, _) = repairing(whole[3000..].to_vec(), None);
    assert!(read_all(&source) == plain);
    // As long as the image is there, it is where it is in the file.
    let (source, _) = repairing(whole[1000..].to_vec(), None);
    assert!(read_all(&source) == plain[1000..]);
    for other in [&b""[..], b"another", &[b'x'; 5000]] {
        let good = [other, &plain[leading.len()..]].concat();
        let mut bad = [other, &whole[leading.len()..]].concat();
        bad[other.len() + 50_000..other.len() + 59_000].fill(0);
        let (source, said) = repairing(bad, None);
        assert!(read_all(&source) == good, "{}", other.len());
        assert_eq!(said.lock().unwrap().len(), 1);
    }
}

#[test]
fn what_cannot_be_repaired_is_said_and_stays_as_it_is() {
    let plain = image(b"", &[300_000], &mut Rng::new(4));
    let whole = protected(&plain, 0, 1.0);
    let mut bad = whole;
    flip(&mut bad, 0..300_000, 200, &mut Rng::new(5));
    let (source, said) = repairing(bad.clone(), None);
    assert!(read_all(&source) == bad[..plain.len()]);
    assert!(read_all(&source) == bad[..plain.len()]);
    let said = said.lock().unwrap();
    assert!(matches!(&said[..], [Mended::Lost { ranges }] if ranges.len() > 50));
}

/// With a sidecar, and a medium that does not give some places.
#[test]
fn unreadable_places_are_repaired_from_a_sidecar() {
    let plain = image(b"", &[300_000], &mut Rng::new(6));
    let sidecar = beside(&plain);
    let mut bad = plain.clone();
    bad.truncate(plain.len() - 7000);
    bad[..2000].fill(0);
    let (source, said) = repairing(bad.clone(), Some(sidecar.clone()));
    assert!(read_all(&source) == plain);
    assert_eq!(said.lock().unwrap().len(), 1);
    let medium = FaultSource::new(MemorySource::new(bad));
    let medium: Arc<dyn Source> = Arc::new(medium.with(Fault::FailRange(100_000..108_000)));
    let sidecar = Sidecar::read_only(Arc::new(MemorySource::new(sidecar)));
    let data = locate_sidecar(&*medium, sidecar, &go()).unwrap();
    let source = RepairingSource::new(medium, &data, Box::new(|_| {})).unwrap();
    assert!(read_all(&source) == plain);
}

/// A section that was intact when its neighbour was repaired is damaged afterwards.
#[test]
fn later_damage_is_not_taken_for_another_image() {
    let plain = image(b"", &[200_100, 150_000], &mut Rng::new(8));
    let sidecar = Sidecar::read_only(Arc::new(MemorySource::new(beside(&plain))));
    let medium = Arc::new(FaultSource::new(MemorySource::new(plain.clone())));
    let source: Arc<dyn Source> = Arc::clone(&medium) as Arc<dyn Source>;
    let data = locate_sidecar(&*source, sidecar, &go()).unwrap();
    let source = RepairingSource::new(source, &data, Box::new(|_| {})).unwrap();
    let second = SectionHeader::LEN as u64 + 200_100;
    let size = data.geometries().next().unwrap().shard_size() as u64;
    assert!(!second.is_multiple_of(size), "the sections share a shard");
    for offset in [
        second + SectionHeader::LEN as u64,
        100_000,
        3000,
        second + 90_000,
    ] {
        medium.add(Fault::Flip { offset, mask: 4 });
        assert!(read_all(&source) == plain, "{offset}");
    }
}

/// A medium that returns a wrong byte once.
#[derive(Debug)]
struct Unsteady {
    bytes: MemorySource,
    /// So many reads are right before.
    left: AtomicI64,
}

impl Source for Unsteady {
    fn len(&self) -> std::io::Result<u64> {
        self.bytes.len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.bytes.read_exact_at(offset, buf)?;
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        if let Some(byte) = buf.first_mut().filter(|_| left == 0) {
            *byte ^= 1;
        }
        Ok(())
    }
}

#[test]
fn a_wrong_answer_of_the_medium_is_not_another_image() {
    let plain = image(b"", &[20_000, 5000], &mut Rng::new(9));
    let sidecar = Sidecar::read_only(Arc::new(MemorySource::new(beside(&plain))));
    let steady = MemorySource::new(plain.clone());
    let data = locate_sidecar(&steady, sidecar, &go()).unwrap();
    for left in 0..40 {
        let medium = Unsteady {
            bytes: steady.clone(),
            left: left.into(),
        };
        let source = RepairingSource::new(Arc::new(medium), &data, Box::new(|_| {})).unwrap();
        for at in (0..plain.len() - 500).step_by(777) {
            let mut found = [0; 500];
            source.read_exact_at(at as u64, &mut found).unwrap();
            assert!(found == plain[at..at + 500], "{left} {at}");
        }
    }
}
