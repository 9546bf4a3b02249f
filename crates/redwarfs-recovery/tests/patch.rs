//! Patches, and their application.

use std::fs;
use std::path::{Path, PathBuf};

use redwarfs_format::recovery::{FileHasher, PatchHeader};
use redwarfs_io::{FileSource, LockedFile};
use redwarfs_recovery::{Applied, Error, Protection, add, apply_patch, locate};
use redwarfs_testkit::mutate::Rng;

use crate::support::{flip, go, image};

struct Case {
    _dir: tempfile::TempDir,
    file: PathBuf,
    patch: PathBuf,
    whole: Vec<u8>,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (file, patch) = (dir.path().join("image"), dir.path().join("patch"));
        fs::write(&file, image(b"#!program", &[300_000], &mut Rng::new(1))).unwrap();
        let mut protection = Protection::percent(10.0);
        protection.leading = true;
        let opened = LockedFile::open(&file).unwrap();
        add(opened, 9, &protection, &|_| {}, &go()).unwrap();
        Self {
            whole: fs::read(&file).unwrap(),
            _dir: dir,
            file,
            patch,
        }
    }

    /// Makes a patch for a damaged file, which stays as it is.
    fn make(&self, bad: &[u8]) -> Result<(), Error> {
        fs::write(&self.file, bad).unwrap();
        fs::write(&self.patch, b"").unwrap();
        let source = FileSource::open(&self.file).unwrap();
        let data = locate(&source, &go())?;
        let damage = data.check(&source, &|_| {}, &go())?;
        let out = LockedFile::open(&self.patch).unwrap();
        let made = data.write_patch(&source, &damage, &out, &|_| {}, &go());
        assert!(fs::read(&self.file).unwrap() == bad, "the file was changed");
        made.map(drop)
    }

    fn apply(&self) -> Result<Applied, Error> {
        apply(&self.file, &self.patch)
    }
}

fn apply(file: &Path, patch: &Path) -> Result<Applied, Error> {
    let file = LockedFile::open(file).unwrap();
    apply_patch(&file, &FileSource::open(patch).unwrap(), &|_| {}, &go())
}

#[test]
fn a_patch_repairs_the_file_that_it_was_made_for() {
    let case = Case::new();
    let len = case.whole.len();
    let mut rng = Rng::new(2);
    for round in 0..30 {
        let mut bad = case.whole.clone();
        match round % 4 {
            0 => flip(&mut bad, 0..len, 10, &mut rng),
            1 => bad.truncate(len - 1 - rng.below(20_000)),
            2 => {
                let at = rng.below(290_000);
                bad[at..at + 8000].fill(0);
            }
            _ => {
                bad[..3000].fill(7);
                bad.truncate(len - 5000);
            }
        }
        case.make(&bad).unwrap();
        let patch = fs::metadata(&case.patch).unwrap().len();
        assert!(patch < 80_000, "{patch}");
        let applied = case.apply().unwrap();
        assert!(applied.entries > 0 && applied.bytes > 0);
        assert!(fs::read(&case.file).unwrap() == case.whole, "{round}");
        assert_eq!(case.apply().unwrap(), Applied::default());
    }
}

/// Interrupted at any write, an application is repeated.
#[test]
fn an_interrupted_application_is_repeated() {
    let case = Case::new();
    let mut bad = case.whole.clone();
    flip(&mut bad, 0..case.whole.len(), 12, &mut Rng::new(3));
    case.make(&bad).unwrap();
    let patch = fs::read(&case.patch).unwrap();
    // The first entries are there already.
    let mut at = 64;
    let mut half = bad;
    while at < patch.len() / 2 {
        let word = |at: usize| u64::from_le_bytes(patch[at..at + 8].try_into().unwrap()) as usize;
        let (position, length) = (word(at), word(at + 8));
        half[position..position + length].copy_from_slice(&patch[at + 16..at + 16 + length]);
        at += 16 + length;
        fs::write(&case.file, &half).unwrap();
        case.apply().unwrap();
        assert!(fs::read(&case.file).unwrap() == case.whole);
    }
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let case = Case::new();
    let mut bad = case.whole.clone();
    bad[5000..9000].fill(0);
    case.make(&bad).unwrap();
    let patch = fs::read(&case.patch).unwrap();
    // Another damage than that of the patch, another length, another file.
    let mut more = bad.clone();
    more[200_000] ^= 1;
    let longer = [&bad[..], b"x"].concat();
    for other in [&more[..], &longer, &bad[1..], b"something else"] {
        fs::write(&case.file, other).unwrap();
        assert!(matches!(case.apply(), Err(Error::Foreign)));
        assert!(fs::read(&case.file).unwrap() == other);
    }
    // Patches with any damage.
    fs::write(&case.file, &bad).unwrap();
    let mut rng = Rng::new(4);
    for _ in 0..300 {
        let mut broken = patch.clone();
        match rng.below(3) {
            0 => broken.truncate(rng.below(patch.len())),
            1 => flip(&mut broken, 0..80, 1, &mut rng),
            _ => flip(&mut broken, 0..patch.len(), 3, &mut rng),
        }
        if broken == patch {
            continue;
        }
        fs::write(&case.patch, &broken).unwrap();
        assert!(matches!(
            case.apply(),
            Err(Error::Format(_) | Error::Foreign)
        ));
        assert!(fs::read(&case.file).unwrap() == bad);
    }
    // More than can be repaired.
    let mut lost = case.whole.clone();
    flip(&mut lost, 0..300_000, 400, &mut rng);
    assert!(matches!(case.make(&lost), Err(Error::TooMuch { .. })));
    let start = &case.whole[5000..];
    assert!(matches!(case.make(start), Err(Error::LostStart)));
}

/// A few bytes that promise a file which nobody could read to its end.
#[test]
fn a_patch_cannot_make_a_file_of_any_length() {
    let case = Case::new();
    fs::write(&case.file, b"a short file").unwrap();
    let mut entry = [&(1_u64 << 50).to_le_bytes()[..], &1_u64.to_le_bytes()].concat();
    entry.push(7);
    let mut body = FileHasher::new();
    body.update(&entry);
    let header = PatchHeader {
        length: (1 << 50) + 1,
        file: [0; 16],
        entries: 1,
        patch: (PatchHeader::LEN + entry.len()) as u64,
        body: body.finish(),
    };
    fs::write(&case.patch, [&header.encode()[..], &entry].concat()).unwrap();
    assert!(matches!(case.apply(), Err(Error::Foreign)));
    assert_eq!(fs::read(&case.file).unwrap(), b"a short file");
}
