//! Recovery data in a file of its own, with which damaged images are repaired to the same bytes.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};
use redwarfs_io::{FileSource, LockedFile, Source};
use redwarfs_recovery::{
    Damage, Error, Protection, RecoveryData, Repaired, RepairingSource, Sidecar, add, add_sidecar,
    locate, locate_sidecar,
};
use redwarfs_testkit::mutate::Rng;

use crate::support::{container, flip, go, image};

/// An image and its sidecar.
struct Case {
    _dir: tempfile::TempDir,
    image: PathBuf,
    sidecar: PathBuf,
    whole: Vec<u8>,
    beside: Vec<u8>,
}

impl Case {
    fn new(file: Vec<u8>, offset: u64, percent: f64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (path, sidecar) = (dir.path().join("image"), dir.path().join("image.dwrec"));
        fs::write(&path, &file).unwrap();
        fs::write(&sidecar, b"").unwrap();
        let mut protection = Protection::percent(percent);
        protection.leading = true;
        let source = FileSource::open(&path).unwrap();
        let out = LockedFile::open(&sidecar).unwrap();
        let added = add_sidecar(&source, offset, &protection, &out, &|_| {}, &go()).unwrap();
        drop(out);
        assert!(fs::read(&path).unwrap() == file, "the image has changed");
        let beside = fs::read(&sidecar).unwrap();
        assert_eq!(added.bytes, beside.len() as u64);
        Self {
            _dir: dir,
            image: path,
            sidecar,
            whole: file,
            beside,
        }
    }

    fn write(&self, image: &[u8], beside: &[u8]) {
        fs::write(&self.image, image).unwrap();
        fs::write(&self.sidecar, beside).unwrap();
    }

    fn locate(&self) -> Result<(LockedFile, RecoveryData), Error> {
        let file = LockedFile::open(&self.image).unwrap();
        let sidecar = Sidecar::writable(Arc::new(LockedFile::open(&self.sidecar).unwrap()));
        let data = locate_sidecar(&file, sidecar, &go())?;
        Ok((file, data))
    }

    fn check(&self) -> Damage {
        let (file, data) = self.locate().unwrap();
        assert!(data.is_sidecar());
        data.check(&file, &|_| {}, &go()).unwrap()
    }

    fn repair(&self) -> Result<Repaired, Error> {
        let (file, data) = self.locate()?;
        let damage = data.check(&file, &|_| {}, &go())?;
        data.repair(&file, &damage, &go())
    }

    /// Repairs both files after `damage`.
    fn heals(&self, what: &str, damage: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>)) {
        let (mut image, mut beside) = (self.whole.clone(), self.beside.clone());
        damage(&mut image, &mut beside);
        self.write(&image, &beside);
        assert!(!self.check().is_none(), "{what}: nothing is found");
        self.repair().unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(
            fs::read(&self.image).unwrap() == self.whole,
            "{what}: image"
        );
        assert!(
            fs::read(&self.sidecar).unwrap() == self.beside,
            "{what}: sidecar"
        );
        assert!(self.check().is_none(), "{what}");
    }
}

#[test]
fn both_files_are_repaired() {
    let case = Case::new(image(b"", &[300_000, 77], &mut Rng::new(1)), 0, 10.0);
    assert!(case.check().is_none());
    assert_eq!(&case.beside[..4], b"DWRC");
    assert_eq!(case.beside[8], 1, "the flag of a sidecar");
    assert!(case.beside.len() < case.whole.len() / 5);
    let (len, beside) = (case.whole.len(), case.beside.len());
    let mut rng = Rng::new(2);
    case.heals("start", |image, _| image[..20_000].fill(0));
    case.heals("end", |image, _| image.truncate(len - 20_000));
    case.heals("both ends", |image, _| {
        image[..9000].fill(1);
        image.truncate(len - 9000);
    });
    case.heals("flips", |image, side| {
        flip(image, 0..len, 10, &mut rng);
        flip(side, 20_000..30_000, 5, &mut rng);
    });
    case.heals("prelude", |_, side| side[..32].fill(0));
    case.heals("first page and checksums", |_, side| side[..9000].fill(0));
    case.heals("end of the sidecar", |_, side| side.truncate(beside - 9000));
    case.heals("everything", |image, side| {
        image[..5000].fill(9);
        image.truncate(len - 5000);
        side[..9000].fill(9);
    });
}

/// The program in front of the image comes, goes, and changes.
#[test]
fn the_start_moves() {
    let leading = b"#!a program in front of the image, of some length".repeat(30);
    let file = image(&leading, &[200_000], &mut Rng::new(3));
    let case = Case::new(file, leading.len() as u64, 10.0);
    case.heals("program", |image, _| image[..100].fill(0));
    let behind = case.whole[leading.len()..].to_vec();
    for other in [&b""[..], b"another", &[b'x'; 9000]] {
        let good = [other, &behind].concat();
        case.write(&good, &case.beside);
        assert!(case.check().is_none(), "{}", other.len());
        let mut bad = good.clone();
        bad[other.len() + 5000..other.len() + 9000].fill(0);
        case.write(&bad, &case.beside);
        case.repair().unwrap();
        assert!(fs::read(&case.image).unwrap() == good, "{}", other.len());
    }
    // Both ends are gone: a copy is repaired.
    for (cut, end) in [
        (leading.len() + 3000, 5000),
        (leading.len() + 512, 9000),
        (700, 4000),
    ] {
        let bad = &case.whole[cut..case.whole.len() - end];
        case.write(bad, &case.beside);
        let (_, data) = case.locate().unwrap();
        assert_eq!(data.image_offset(), leading.len() as i64 - cut as i64);
        let zeros = vec![0; data.lost_at_start().unwrap() as usize];
        assert_eq!(zeros.len(), cut);
        drop(data);
        case.write(&[&zeros[..], bad].concat(), &case.beside);
        case.repair().unwrap();
        assert!(fs::read(&case.image).unwrap() == case.whole);
    }
    // Cut off further behind: said, and nothing written.
    case.write(&case.whole[leading.len() + 3000..], &case.beside);
    assert!(matches!(case.repair(), Err(Error::LostStart)));
}

/// A sidecar needs no index, and no end of the file behind the image.
#[test]
fn any_image_can_have_one() {
    let file = image(b"", &[100_000], &mut Rng::new(4));
    let index = container(&file, 0).sections.last().unwrap().header_offset as usize;
    let case = Case::new(file[..index].to_vec(), 0, 10.0);
    case.heals("no index", |image, _| image[..9000].fill(0));
    case.heals("no index, prelude", |_, side| side[..32].fill(7));
    let behind = [
        &file[..],
        b"something behind the image".repeat(100).as_slice(),
    ]
    .concat();
    let case = Case::new(behind, 0, 10.0);
    case.heals("what is behind", |image, _| {
        let len = image.len();
        image[len - 2000..].fill(0);
    });
    // With recovery data of its own, the image has both.
    let case = Case::new(file.clone(), 0, 10.0);
    let out = LockedFile::open(&case.image).unwrap();
    add(out, 0, &Protection::percent(5.0), &|_| {}, &go()).unwrap();
    let protected = fs::read(&case.image).unwrap();
    let grown_by = (protected.len() - file.len()) as u64;
    let both = Case::new(protected, 0, 10.0);
    both.heals("recovery data", |image, _| {
        image[file.len()..file.len() + 10_000].fill(0);
    });
    // The older sidecar knows the start of the longer file.
    let (source, data) = case.locate().unwrap();
    assert!(data.check(&source, &|_| {}, &go()).unwrap().is_none());
    let open = [(file.len() as i64, grown_by)];
    assert_eq!(data.unprotected(&source).unwrap(), open);
    let len = fs::metadata(&both.image).unwrap().len();
    let mut grown = fs::read(&both.image).unwrap();
    grown.extend([7; 1000]);
    both.write(&grown, &both.beside);
    let (source, data) = both.locate().unwrap();
    assert_eq!(data.unprotected(&source).unwrap(), [(len as i64, 1000)]);
}

#[test]
fn another_state_of_the_image_is_not_taken_for_damage() {
    // The same layout, so that only the contents of one block tell.
    let blocks = [200_000, 150_000, 300_000];
    let case = Case::new(image(b"front", &blocks, &mut Rng::new(5)), 5, 20.0);
    let mut other = case.whole.clone();
    let at = 5 + 64;
    let payload = crate::support::bytes(blocks[0], &mut Rng::new(7));
    let sealed = SectionHeader::seal(0, SectionType::BLOCK, CompressionId::NONE, &payload);
    other[5..at].copy_from_slice(&sealed.encode());
    other[at..at + payload.len()].copy_from_slice(&payload);
    case.write(&other, &case.beside);
    assert!(matches!(case.repair(), Err(Error::Changed)));
    assert!(fs::read(&case.image).unwrap() == other);
    let (file, data) = case.locate().unwrap();
    let source = RepairingSource::new(Arc::new(file), &data, Box::new(|_| {})).unwrap();
    let mut byte = [0; 1];
    assert!(source.read_exact_at(100_000, &mut byte).is_err());
    let far = other.len() as u64 - 100_000;
    source.read_exact_at(far, &mut byte).unwrap();
    drop((source, data));
    // The damaged header of a section, whose payload is right.
    case.heals("header", |image, _| image[5 + 10] ^= 1);
}

#[test]
fn what_is_no_sidecar_of_the_file_is_refused() {
    let case = Case::new(image(b"", &[100_000], &mut Rng::new(5)), 0, 5.0);
    let other = image(b"", &[100_000], &mut Rng::new(6));
    case.write(&other, &case.beside);
    assert!(matches!(case.repair(), Err(Error::Changed)));
    assert!(fs::read(&case.image).unwrap() == other);
    case.write(&case.whole, b"no sidecar");
    assert!(matches!(case.repair(), Err(Error::NotFound)));
    // The pages of a sidecar do not count inside of a file, and those of a section not in a sidecar.
    case.write(&[&case.whole[..], &case.beside].concat(), &case.beside);
    let file = LockedFile::open(&case.image).unwrap();
    assert!(matches!(locate(&file, &go()), Err(Error::NotFound)));
    drop(file);
    case.write(&case.whole, &case.beside);
    let file = LockedFile::open(&case.image).unwrap();
    add(file, 0, &Protection::percent(5.0), &|_| {}, &go()).unwrap();
    let protected = fs::read(&case.image).unwrap();
    case.write(&case.whole, &protected[case.whole.len()..]);
    assert!(matches!(case.repair(), Err(Error::NotFound)));
}

/// A sidecar that cannot be written still repairs its image.
#[test]
fn a_sidecar_that_is_only_read_stays_as_it_is() {
    let case = Case::new(image(b"", &[100_000], &mut Rng::new(7)), 0, 10.0);
    let (mut bad, mut beside) = (case.whole.clone(), case.beside.clone());
    bad[..3000].fill(0);
    beside[..5000].fill(0);
    case.write(&bad, &beside);
    let file = LockedFile::open(&case.image).unwrap();
    let sidecar = Sidecar::read_only(Arc::new(FileSource::open(&case.sidecar).unwrap()));
    let data = locate_sidecar(&file, sidecar, &go()).unwrap();
    let damage = data.check(&file, &|_| {}, &go()).unwrap();
    let repaired = data.repair(&file, &damage, &go()).unwrap();
    assert!(repaired.left > 0 && repaired.data > 0, "{repaired:?}");
    assert!(fs::read(&case.image).unwrap() == case.whole);
    assert!(fs::read(&case.sidecar).unwrap() == beside);
}
