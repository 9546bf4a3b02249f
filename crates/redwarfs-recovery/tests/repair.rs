//! Images with recovery data that are damaged in many ways, and repaired to the same bytes.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::{fs, io};

use redwarfs_format::section::{
    CompressionId, Footer, IndexState, SectionHeader, SectionType, encode_section_index,
};
use redwarfs_io::{LockedFile, Medium, Source};
use redwarfs_recovery::{
    Damage, Error, GeometryError, Protection, Repaired, add, add_to_append, locate, remove,
};
use redwarfs_testkit::mutate::Rng;

use crate::support::{append, bytes, container, flip, go, image, retable};

/// A file with an image in a directory of its own.
struct Case {
    _dir: tempfile::TempDir,
    path: PathBuf,
    offset: u64,
    plain: Vec<u8>,
    whole: Vec<u8>,
}

impl Case {
    fn new(leading: &[u8], blocks: &[usize], percent: f64, with_leading: bool) -> Self {
        let plain = image(leading, blocks, &mut Rng::new(7));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        fs::write(&path, &plain).unwrap();
        let offset = leading.len() as u64;
        let mut protection = Protection::percent(percent);
        protection.threads = 2;
        protection.leading = with_leading;
        let file = LockedFile::open(&path).unwrap();
        let added = add(file, offset, &protection, &|_| {}, &go()).unwrap();
        let whole = fs::read(&path).unwrap();
        assert_eq!(added.bytes, (whole.len() - plain.len()) as u64);
        assert!(whole.starts_with(&plain), "old bytes have changed");
        Self {
            _dir: dir,
            path,
            offset,
            plain,
            whole,
        }
    }

    fn check(&self) -> Damage {
        check(&self.path).unwrap()
    }

    /// Repairs the file after `damage`, which has to bring the old bytes back.
    fn heals(&self, what: &str, damage: impl FnOnce(&mut Vec<u8>)) -> Repaired {
        let mut file = self.whole.clone();
        damage(&mut file);
        assert!(file != self.whole, "{what}: nothing is damaged");
        fs::write(&self.path, &file).unwrap();
        let found = self.check();
        assert!(!found.is_none(), "{what}: nothing is found");
        let repaired = repair(&self.path).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(
            fs::read(&self.path).unwrap() == self.whole,
            "{what}: other bytes"
        );
        assert!(self.check().is_none(), "{what}");
        repaired
    }
}

fn check(path: &Path) -> Result<Damage, Error> {
    let file = LockedFile::open(path).unwrap();
    locate(&file, &go())?.check(&file, &|_| {}, &go())
}

fn repair(path: &Path) -> Result<Repaired, Error> {
    let file = LockedFile::open(path).unwrap();
    let data = locate(&file, &go())?;
    let damage = data.check(&file, &|_| {}, &go())?;
    data.repair(&file, &damage, &go())
}

#[test]
fn added_and_removed() {
    for (leading, protect) in [
        (&b""[..], false),
        (&b"#!program"[..], false),
        (b"#!program", true),
    ] {
        let case = Case::new(leading, &[300_000, 0, 77], 5.0, protect);
        let found = container(&case.whole, case.offset);
        assert_eq!(found.index, IndexState::Valid);
        assert_eq!(found.trailers.len(), 1);
        assert_eq!(found.trailers[0].ty, SectionType::RECOVERY);
        let section = &found.trailers[0];
        let start = (case.offset + section.payload_offset) as usize;
        let payload = &case.whole[start..start + section.length as usize];
        let header = section.header.unwrap();
        assert!(header.xxh_matches(payload) && header.sha_matches(payload));
        assert_eq!(header.number as usize, found.sections.len());
        assert!(case.check().is_none());
        // Once more is refused, and changes nothing.
        let file = LockedFile::open(&case.path).unwrap();
        let again = add(file, case.offset, &Protection::percent(1.0), &|_| {}, &go());
        assert!(matches!(again, Err(Error::Present)), "{again:?}");
        assert!(fs::read(&case.path).unwrap() == case.whole);
        let file = LockedFile::open(&case.path).unwrap();
        let removed = remove(&file, case.offset).unwrap();
        assert_eq!(removed as usize, case.whole.len() - case.plain.len());
        assert!(fs::read(&case.path).unwrap() == case.plain);
        assert!(matches!(remove(&file, case.offset), Err(Error::NotFound)));
        assert!(matches!(locate(&file, &go()), Err(Error::NotFound)));
    }
}

/// What is added behind recovery data within a generation gets recovery data of its own.
#[test]
fn a_trailer_behind_recovery_data_is_protected() {
    for leading in [&b""[..], b"#!program"] {
        let case = Case::new(leading, &[300_000, 0, 77], 5.0, true);
        let mut states = vec![case.whole.clone()];
        for round in 1..4 {
            let added = retable(states.last().unwrap(), case.offset);
            fs::write(&case.path, &added).unwrap();
            let open = |file: &LockedFile| {
                let data = locate(file, &go()).unwrap();
                data.unprotected(file).unwrap().len()
            };
            let file = LockedFile::open(&case.path).unwrap();
            assert_eq!(open(&file), 1);
            assert!(matches!(remove(&file, case.offset), Err(Error::NotLast)));
            assert!(fs::read(&case.path).unwrap() == added);
            let protection = Protection::percent(50.0);
            let more = add(file, case.offset, &protection, &|_| {}, &go()).unwrap();
            let before = states.last().unwrap().len();
            assert_eq!(more.geometry.length() as usize, added.len() - before);
            let whole = fs::read(&case.path).unwrap();
            assert!(whole.starts_with(&added));
            let file = LockedFile::open(&case.path).unwrap();
            assert_eq!(open(&file), 0);
            let data = locate(&file, &go()).unwrap();
            assert_eq!(data.geometries().count(), round + 1);
            assert!(data.check(&file, &|_| {}, &go()).unwrap().is_none());
            assert!(matches!(
                add(file, case.offset, &protection, &|_| {}, &go()),
                Err(Error::Present)
            ));
            // Opening the image takes the small trailers, and no recovery data.
            let found = container(&whole, case.offset);
            let at = (case.offset + found.trailers[0].header_offset) as usize;
            let end = |bytes: &[u8]| {
                let footer: &[u8; Footer::LEN] = bytes.last_chunk().unwrap();
                let footer = Footer::parse(footer);
                (footer.open_offset + footer.open_length + case.offset) as usize
            };
            assert_eq!(end(&whole), at);
            assert_eq!(end(&added), at);
            // Cut off again, that is the file with the trailer.
            let file = LockedFile::open(&case.path).unwrap();
            let removed = remove(&file, case.offset).unwrap() as usize;
            assert_eq!(removed, whole.len() - added.len());
            assert!(fs::read(&case.path).unwrap() == added);
            fs::write(&case.path, &whole).unwrap();
            states.push(whole);
        }
        // All parts are repaired together, with the frames of their sections, which follow from each other.
        let whole = states.last().unwrap();
        let mut bad = whole.clone();
        bad[..3000].fill(1);
        for state in &states {
            bad[state.len() - 24..state.len()].fill(0xff);
        }
        let trailers = container(whole, case.offset).trailers;
        assert_eq!(trailers.len(), 7);
        for section in &trailers {
            let at = (case.offset + section.header_offset) as usize;
            bad[at..at + 80].fill(0);
        }
        fs::write(&case.path, &bad).unwrap();
        assert!(!check(&case.path).unwrap().is_none());
        repair(&case.path).unwrap();
        assert!(fs::read(&case.path).unwrap() == *whole);
    }
}

/// The same data, whatever the number of threads.
#[test]
fn threads_do_not_matter() {
    let mut files = Vec::new();
    for threads in [1, 3, 300] {
        let plain = image(b"", &[70 << 20], &mut Rng::new(3));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        fs::write(&path, plain).unwrap();
        let mut protection = Protection::percent(1.0);
        protection.threads = threads;
        let file = LockedFile::open(&path).unwrap();
        let added = add(file, 0, &protection, &|_| {}, &go()).unwrap();
        assert_eq!(added.geometry.groups(), 2);
        files.push(fs::read(&path).unwrap());
    }
    assert!(files[0] == files[1] && files[0] == files[2]);
}

/// The list of damages that the format chapter promises to repair.
#[test]
fn damages_of_the_description() {
    let case = Case::new(b"", &[9 << 20, 7 << 20], 5.0, false);
    let (plain, whole) = (case.plain.len(), case.whole.len());
    let mut rng = Rng::new(1);
    case.heals("first 64 KiB", |f| f[..64 << 10].fill(0));
    case.heals("schema, metadata and index", |f| {
        f[plain - (64 << 10)..plain].fill(0);
    });
    case.heals("section header, prelude, first page and image start", |f| {
        f[plain..plain + 64 + 32 + 4096].fill(0);
        f[..1000].fill(0xff);
    });
    case.heals("prelude", |f| f[plain + 64..plain + 96].fill(0));
    case.heals("header of the section", |f| f[plain + 40] ^= 1);
    case.heals("checksums, first copy", |f| {
        let pages = 64 + 32 + 4096;
        f[plain + pages..plain + pages + 9 * 4096].fill(0x55);
    });
    case.heals("footer", |f| f[whole - 24..].fill(0));
    case.heals("last page", |f| f[whole - 24 - 4096..].fill(1));
    case.heals("burst", |f| f[5_000_000..5_600_000].fill(0xaa));
    case.heals("flips", |f| flip(f, 0..whole, 100, &mut rng));
    case.heals("a third of the parity is cut off", |f| {
        f.truncate(whole - (whole - plain) / 3);
    });
    case.heals("everything at once", |f| {
        f[..32 << 10].fill(0);
        flip(f, plain + 15 * 4096..plain + 200_000, 10, &mut rng);
        f.truncate(whole - 50_000);
    });
}

#[test]
fn too_much_is_said_and_nothing_is_written() {
    let case = Case::new(b"", &[9 << 20, 7 << 20], 5.0, false);
    let mut file = case.whole.clone();
    flip(&mut file, 0..case.plain.len(), 400, &mut Rng::new(5));
    fs::write(&case.path, &file).unwrap();
    let found = case.check();
    assert_eq!(found.lost_groups(), 1);
    let lost: u64 = found.lost_ranges().iter().map(|(_, length)| length).sum();
    assert_eq!(lost, found.data_shards() * 4096);
    let error = repair(&case.path).unwrap_err();
    assert!(
        matches!(error, Error::TooMuch { groups: 1, of: 1 }),
        "{error}"
    );
    assert!(fs::read(&case.path).unwrap() == file);
}

/// Bytes in front of the image come, go and change; the image is found all the same.
#[test]
fn the_start_moves() {
    let case = Case::new(b"#!old program\n", &[400_000], 5.0, false);
    for leading in [&b""[..], b"x", b"another program, and a longer one"] {
        let image = &case.whole[case.offset as usize..];
        let mut file = [leading, image].concat();
        let good = file.clone();
        file[leading.len() + 5000..leading.len() + 9000].fill(0);
        fs::write(&case.path, &file).unwrap();
        let data = locate(&LockedFile::open(&case.path).unwrap(), &go()).unwrap();
        assert_eq!(data.image_offset(), leading.len() as i64);
        repair(&case.path).unwrap();
        assert!(fs::read(&case.path).unwrap() == good);
    }
    // The same with a protected start: what is there now stays, unless it has the same length.
    let case = Case::new(b"#!old program\n", &[400_000], 5.0, true);
    let image = &case.whole[case.offset as usize..];
    for leading in [&b""[..], b"x", &[b'y'; 9000]] {
        let good = [leading, image].concat();
        fs::write(&case.path, &good).unwrap();
        assert!(case.check().is_none(), "{}", leading.len());
        let mut file = good.clone();
        file[leading.len()..leading.len() + 9000].fill(0);
        let end = file.len() - 10;
        file[end..].fill(0);
        fs::write(&case.path, &file).unwrap();
        repair(&case.path).unwrap();
        assert!(fs::read(&case.path).unwrap() == good, "{}", leading.len());
    }
    // Cut off at the start: said, and nothing written.
    fs::write(&case.path, &case.whole[5000..]).unwrap();
    let damage = case.check();
    assert!(damage.data_shards() > 0);
    let error = repair(&case.path).unwrap_err();
    assert!(error.to_string().contains("lost its start"), "{error}");
    // With the same length, it is repaired with the image.
    case.heals("program", |f| f[..10].fill(0));
}

/// Whatever the damage: repaired exactly if no group has more bad shards than parity, and otherwise nothing
/// is written.
#[test]
fn random_damage() {
    let mut rng = Rng::new(99);
    let (mut healed, mut lost) = (0, 0);
    for round in 0..150 {
        let blocks = [1 + rng.below(400_000), rng.below(3000)];
        let percent = [0.5, 2.0, 10.0, 60.0][rng.below(4)];
        let case = Case::new(b"", &blocks, percent, false);
        let mut file = case.whole.clone();
        for _ in 0..=rng.below(2) {
            let len = file.len();
            match rng.below(4) {
                0 => flip(&mut file, 0..len, 1 + rng.below(20), &mut rng),
                1 => {
                    let at = rng.below(len);
                    let end = (at + rng.below(30_000)).min(file.len());
                    file[at..end].fill(0);
                }
                2 => file.truncate(len - 1 - rng.below(len / 4)),
                _ => {
                    let at = rng.below(len / 512) * 512;
                    let end = (at + 512).min(file.len());
                    file[at..end].fill(0xee);
                }
            }
        }
        if file == case.whole {
            continue;
        }
        fs::write(&case.path, &file).unwrap();
        let found = match check(&case.path) {
            Ok(found) => found,
            Err(Error::NotFound | Error::Format(_)) => {
                lost += 1;
                continue;
            }
            Err(error) => panic!("{round}: {error}"),
        };
        let may = found.lost_groups() == 0;
        match repair(&case.path) {
            Ok(_) => {
                assert!(may, "{round}");
                assert!(
                    fs::read(&case.path).unwrap() == case.whole,
                    "{round}: other bytes"
                );
                healed += 1;
            }
            Err(error) => {
                assert!(!may, "{round}: {error}");
                assert!(fs::read(&case.path).unwrap() == file, "{round}: written");
                lost += 1;
            }
        }
    }
    assert!(healed > 40 && lost > 10, "{healed} healed, {lost} lost");
}

/// Header pages that somebody has made up, with a right checksum: the file never gets worse.
#[test]
fn forged_pages_do_no_harm() {
    let case = Case::new(b"#!program", &[20_000], 20.0, true);
    let start = case.plain.len() + 64 + 32;
    let mut rng = Rng::new(11);
    for _ in 0..400 {
        let mut file = case.whole.clone();
        file[50] ^= 1;
        let copies: Vec<usize> = (start..file.len() - 4096)
            .filter(|&at| file[at..].starts_with(b"DwRSrec1") && file[at + 8] == 0)
            .collect();
        assert_eq!(copies.len(), 4);
        let field = 32 + 4 * rng.below(32);
        let value = [0, 1, 1 << 31, 1 << 42, u64::MAX, rng.bits()][rng.below(6)];
        for at in copies {
            let page = &mut file[at..at + 4096];
            page[field..field + 8].copy_from_slice(&value.to_le_bytes());
            page[24..32].fill(0);
            let sum = redwarfs_format::recovery::shard_hash(page);
            page[24..32].copy_from_slice(&sum.to_le_bytes());
        }
        fs::write(&case.path, &file).unwrap();
        let outcome = repair(&case.path);
        let now = fs::read(&case.path).unwrap();
        assert!(
            now.len() <= file.len(),
            "{field} {value:#x}: the file has grown"
        );
        let image = case.offset as usize..case.plain.len();
        let good = now[image.clone()] == case.whole[image.clone()];
        assert!(good || now == file, "{field} {value:#x}: {outcome:?}");
    }
}

/// The recovery data of an image that lies in a block of another one is not that of the other one.
#[test]
fn an_image_inside_is_another_one() {
    let inner = Case::new(b"", &[50_000], 20.0, false);
    let mut file = Vec::new();
    let mut entries = Vec::new();
    let mut damaged = inner.whole.clone();
    damaged[40_000] ^= 1;
    for (number, (ty, payload)) in [
        (SectionType::BLOCK, damaged),
        (SectionType::METADATA_V2_SCHEMA, b"schema".to_vec()),
        (SectionType::METADATA_V2, b"metadata".to_vec()),
    ]
    .into_iter()
    .enumerate()
    {
        entries.push((ty, file.len() as u64));
        let header = SectionHeader::seal(number as u32, ty, CompressionId::NONE, &payload);
        file.extend(header.encode());
        file.extend(payload);
    }
    entries.push((SectionType::SECTION_INDEX, file.len() as u64));
    let payload = encode_section_index(&entries);
    let ty = SectionType::SECTION_INDEX;
    file.extend(SectionHeader::seal(3, ty, CompressionId::NONE, &payload).encode());
    file.extend(payload);
    fs::write(&inner.path, &file).unwrap();
    assert!(matches!(repair(&inner.path), Err(Error::NotFound)));
    assert!(fs::read(&inner.path).unwrap() == file);
    let outer = LockedFile::open(&inner.path).unwrap();
    add(outer, 0, &Protection::percent(5.0), &|_| {}, &go()).unwrap();
    assert!(check(&inner.path).unwrap().is_none());
}

/// Recovery data with any bytes gives an error or a report, never a panic or a file that gets worse.
#[test]
fn hostile_data_does_no_harm() {
    let case = Case::new(b"", &[20_000], 20.0, false);
    let mut rng = Rng::new(4);
    for _ in 0..300 {
        let mut file = case.whole.clone();
        let start = case.plain.len();
        flip(
            &mut file,
            start..case.whole.len(),
            1 + rng.below(200),
            &mut rng,
        );
        fs::write(&case.path, &file).unwrap();
        let outcome = repair(&case.path);
        let now = fs::read(&case.path).unwrap();
        assert!(
            now == if outcome.is_ok() {
                case.whole.clone()
            } else {
                file
            }
        );
    }
}

#[test]
fn what_cannot_be_protected() {
    let case = Case::new(b"", &[20_000], 20.0, false);
    let refused = |bytes: &[u8], percent: f64| {
        fs::write(&case.path, bytes).unwrap();
        let file = LockedFile::open(&case.path).unwrap();
        let error = add(file, 0, &Protection::percent(percent), &|_| {}, &go()).unwrap_err();
        assert!(fs::read(&case.path).unwrap() == bytes);
        error
    };
    let error = refused(&[&case.plain[..], b"behind"].concat(), 5.0);
    assert!(matches!(error, Error::Unfit(_)), "{error}");
    let index = container(&case.plain, 0)
        .sections
        .last()
        .unwrap()
        .header_offset as usize;
    let error = refused(&case.plain[..index], 5.0);
    assert!(
        error.to_string().contains("no valid section index"),
        "{error}"
    );
    assert!(matches!(refused(b"something else", 5.0), Error::Format(_)));
    let error = refused(&case.plain, 1e9);
    assert!(
        matches!(error, Error::Geometry(GeometryError::Shards { .. })),
        "{error}"
    );
    // A request to stop leaves the old file.
    let file = LockedFile::open(&case.path).unwrap();
    let stop = AtomicBool::new(true);
    let stopped = add(file, 0, &Protection::percent(5.0), &|_| {}, &stop);
    assert!(matches!(stopped, Err(Error::Interrupted)));
    assert!(fs::read(&case.path).unwrap() == case.plain);
}

#[test]
fn sections_for_tools_are_left_out() {
    let (first, second) = (10_000..11_024, 12_000..20_192);
    let sections = [
        (".upd_info", first.start as u64, first.len() as u64),
        (".sig_key", second.start as u64, second.len() as u64),
        (".text", 64, 9_000),
    ];
    let mut rng = Rng::new(3);
    let mut contents = bytes(30_000, &mut rng);
    for range in [&first, &second] {
        contents[range.start - 64..range.end - 64].fill(0);
    }
    let program = redwarfs_testkit::program::elf_with(&sections, &contents);
    let mut case = Case::new(&program, &[300_000], 20.0, true);
    // Somebody writes into them.
    for range in [&first, &second] {
        case.whole[range.clone()].copy_from_slice(&bytes(range.len(), &mut rng));
        fs::write(&case.path, &case.whole).unwrap();
        assert!(case.check().is_none());
    }
    // What is around them is protected, and they stay as they are.
    for at in [
        first.start - 1,
        first.end,
        second.start - 1,
        second.end,
        0,
        18,
        program.len() - 1,
    ] {
        case.heals("a byte beside a section", |file| file[at] ^= 1);
    }
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        case.heals("many bytes", |file| {
            let start = rng.below(program.len() - 8_000);
            for at in
                (start..start + 8_000).filter(|at| !first.contains(at) && !second.contains(at))
            {
                file[at] = file[at].wrapping_add(1);
            }
        });
    }
    // Without the program, or with another one, the image is repaired all the same.
    let image = &case.whole[program.len()..];
    for other in [&b""[..], b"#!another program"] {
        let mut file = [other, image].concat();
        let right = file.clone();
        file[other.len() + 1000..other.len() + 5000].fill(0);
        fs::write(&case.path, &file).unwrap();
        repair(&case.path).unwrap();
        assert!(fs::read(&case.path).unwrap() == right);
    }
}

/// A file whose writes fail from one on.
#[derive(Debug)]
struct Failing {
    file: LockedFile,
    left: AtomicU32,
}

impl Source for Failing {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(offset, buf)
    }
}

impl Medium for Failing {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let left = self
            .left
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        if left.is_err() {
            // Half of it is written.
            let half = &bytes[..bytes.len() / 2];
            self.file.write_all_at(offset, half)?;
            return Err(io::Error::other("the medium is gone"));
        }
        self.file.write_all_at(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// An append with recovery data that ends at any write leaves the old image with the recovery data that it had.
#[test]
fn an_append_counts_with_its_recovery_data_or_not_at_all() {
    let case = Case::new(b"#!program", &[100_000], 10.0, true);
    let old = case.whole.len() as u64;
    let grown = append(&case.whole, case.offset, &mut Rng::new(3));
    let pointer = *case.whole.last_chunk().unwrap();
    for whole in [false, true] {
        let mut protection = Protection::percent(30.0);
        (protection.whole, protection.leading) = (whole, true);
        let mut failures = 0;
        for writes in 0.. {
            fs::write(&case.path, &case.whole).unwrap();
            let file = Failing {
                file: LockedFile::open(&case.path).unwrap(),
                left: AtomicU32::new(writes),
            };
            let attempt = || {
                let begun = redwarfs_io::Append::begin(file, old, pointer)?;
                let mut writer = redwarfs_io::AppendWriter::new(begun);
                io::Write::write_all(&mut writer, &grown[old as usize..])?;
                let (begun, end) = writer.into_parts();
                assert_eq!(end, grown.len() as u64);
                let stop = go();
                add_to_append(begun, end, case.offset, &protection, &|_| {}, &stop)
            };
            let outcome = attempt();
            let now = fs::read(&case.path).unwrap();
            if outcome.is_ok() {
                assert!(now.starts_with(&grown));
                break;
            }
            assert!(now == case.whole, "{writes}");
            failures += 1;
        }
        assert!(failures > 10, "{failures}");
        // It is what the two steps make one after the other.
        let together = fs::read(&case.path).unwrap();
        fs::write(&case.path, &grown).unwrap();
        let file = LockedFile::open(&case.path).unwrap();
        add(file, case.offset, &protection, &|_| {}, &go()).unwrap();
        assert!(fs::read(&case.path).unwrap() == together);
        assert!(case.check().is_none());
    }
}

/// A repair that ends at any write is repeated, and no byte that was right gets wrong.
#[test]
fn an_interrupted_repair_is_repeated() {
    let case = Case::new(b"#!program", &[200_000], 10.0, true);
    let mut bad = case.whole.clone();
    bad[..3000].fill(0);
    let plain = case.plain.len();
    bad[plain..plain + 9000].fill(7);
    bad[150_000..154_000].fill(1);
    bad.truncate(case.whole.len() - 3000);
    let mut failures = 0;
    for writes in 0.. {
        fs::write(&case.path, &bad).unwrap();
        let file = Failing {
            file: LockedFile::open(&case.path).unwrap(),
            left: AtomicU32::new(writes),
        };
        let data = locate(&file, &go()).unwrap();
        let damage = data.check(&file, &|_| {}, &go()).unwrap();
        let outcome = data.repair(&file, &damage, &go());
        drop(file);
        let now = fs::read(&case.path).unwrap();
        for (at, byte) in now.iter().enumerate().take(bad.len()) {
            assert!(
                *byte == bad[at] || *byte == case.whole[at],
                "{writes}: {at}"
            );
        }
        if outcome.is_ok() {
            assert!(now == case.whole);
            break;
        }
        failures += 1;
        repair(&case.path).unwrap();
        assert!(fs::read(&case.path).unwrap() == case.whole, "{writes}");
    }
    assert!(failures > 10, "{failures}");
}
