//! Random images with random damage: repaired whenever the geometry says so, and otherwise a correct list of what is lost.
//!
//! The geometry is calculated here once more, from the pages of the intact file as chapter 11 of the format describes
//! them, and damage is counted by comparing bytes. `REDWARFS_RECOVERY_CASES` sets the number of cases.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use redwarfs_io::{FileSource, LockedFile, MemorySource};
use redwarfs_recovery::{
    Error, Protection, RecoveryData, RepairingSource, Sidecar, add, add_sidecar, apply_patch,
    locate, locate_sidecar,
};
use redwarfs_testkit::mutate::Rng;

use crate::support::{append, bytes, flip, go, image, retable};

/// One part of the recovery data, as the pages of the intact file describe it.
#[derive(Debug, Clone)]
struct Plan {
    shard: i64,
    data: i64,
    groups: i64,
    parity: i64,
    start: i64,
    length: i64,
    hashes: [i64; 2],
    parity_at: i64,
    pages: i64,
    headers: Vec<i64>,
}

const MAGIC: &[u8] = b"DwRSrec1";

impl Plan {
    /// All parts, from the header pages of a file whose recovery data counts from `base`.
    fn all(file: &[u8], base: i64) -> Vec<Self> {
        let mut plans: BTreeMap<i64, Self> = BTreeMap::new();
        let at = |at: usize| {
            file.get(at..at + 12)
                .is_some_and(|b| b[..8] == *MAGIC && b[8..] == [0; 4])
        };
        for place in (0..file.len()).filter(|&place| at(place)) {
            let small = |at: usize| {
                i64::from(u32::from_le_bytes(
                    file[place + at..place + at + 4].try_into().unwrap(),
                ))
            };
            let large = |at: usize| {
                i64::from_le_bytes(file[place + at..place + at + 8].try_into().unwrap())
            };
            if place as i64 - large(16) != base {
                continue;
            }
            let plan = Self {
                shard: small(36),
                data: large(40),
                groups: small(48),
                parity: small(52),
                start: large(56),
                length: large(64),
                hashes: [large(80), large(88)],
                parity_at: large(96),
                pages: large(104),
                headers: Vec::new(),
            };
            let plan = plans.entry(plan.parity_at).or_insert(plan);
            plan.headers.push(large(16));
        }
        for plan in plans.values() {
            assert_eq!(plan.headers.len(), 4);
            assert_eq!(plan.data, (plan.length + plan.shard - 1) / plan.shard);
        }
        plans.into_values().collect()
    }

    /// Position of a parity shard, by row and group.
    fn parity(&self, row: i64, group: i64) -> i64 {
        let page = if row >= (self.parity + 1) / 2 {
            4096
        } else {
            0
        };
        self.parity_at + (row * self.groups + group) * self.shard + page
    }
}

/// A file and its intact state, both from offset 0 of the image on.
struct Compared<'a> {
    now: &'a [u8],
    now_base: i64,
    then: &'a [u8],
    then_base: i64,
}

impl Compared<'_> {
    /// Whether a range is there, and as it was.
    fn intact(&self, from: i64, length: i64) -> bool {
        let get = |file: &[u8], base: i64| -> Option<Vec<u8>> {
            let from = usize::try_from(from + base).ok()?;
            Some(file.get(from..from + length as usize)?.to_vec())
        };
        let then = get(self.then, self.then_base).unwrap();
        get(self.now, self.now_base) == Some(then)
    }
}

/// What the geometry says about a damaged file.
#[derive(Debug, Default, PartialEq)]
struct Verdict {
    lost_groups: u32,
    lost: Vec<(i64, i64)>,
    findable: bool,
}

/// `foreign`: something else is in front of the image.
fn judge(plans: &[Plan], image: &Compared<'_>, store: &Compared<'_>, foreign: bool) -> Verdict {
    let mut verdict = Verdict {
        findable: true,
        ..Verdict::default()
    };
    for plan in plans {
        verdict.findable &= plan.headers.iter().any(|&at| store.intact(at, 4096));
        let known: Vec<bool> = (0..plan.pages)
            .map(|page| {
                let mut copies = plan.hashes.iter();
                copies.any(|copy| store.intact(copy + page * 4096, 4096))
            })
            .collect();
        let known = |shard: i64| known[(shard / 508) as usize];
        let mut lost_of: Vec<Vec<i64>> = vec![Vec::new(); plan.groups as usize];
        let mut count = vec![0; plan.groups as usize];
        for shard in 0..plan.data {
            let at = plan.start + shard * plan.shard;
            let length = plan.shard.min(plan.length - shard * plan.shard);
            let group = (shard % plan.groups) as usize;
            if foreign && at < 0 {
                count[group] += 1;
            } else if !known(shard) || !image.intact(at, length) {
                count[group] += 1;
                lost_of[group].push(shard);
            }
        }
        for row in 0..plan.parity {
            for group in 0..plan.groups {
                let shard = plan.data + row * plan.groups + group;
                if !known(shard) || !store.intact(plan.parity(row, group), plan.shard) {
                    count[group as usize] += 1;
                }
            }
        }
        let mut lost = Vec::new();
        for (count, shards) in count.iter().zip(lost_of) {
            if *count > plan.parity {
                verdict.lost_groups += 1;
                lost.extend(shards);
            }
        }
        lost.sort_unstable();
        let mut ranges: Vec<(i64, i64)> = Vec::new();
        for shard in lost {
            let at = plan.start + shard * plan.shard;
            let length = plan.shard.min(plan.length - shard * plan.shard);
            match ranges.last_mut() {
                Some((from, there)) if *from + *there == at => *there += length,
                _ => ranges.push((at, length)),
            }
        }
        verdict.lost.extend(ranges);
    }
    verdict
}

/// Damage that does not move anything but the ends.
fn hurt(file: &mut Vec<u8>, rng: &mut Rng, cut: bool) {
    let len = file.len();
    let most = len / 15;
    match rng.below(if cut { 5 } else { 4 }) {
        0 => {
            let (at, n) = (rng.below(len), rng.below(most) + 1);
            file[at..(at + n).min(len)].fill(rng.bits() as u8);
        }
        1 => flip(file, 0..len, 1 + rng.below(30), rng),
        2 => {
            for _ in 0..=rng.below(8) {
                let at = rng.below(len) / 512 * 512;
                file[at..(at + 512).min(len)].fill(0);
            }
        }
        3 => {
            for _ in 0..=rng.below(3) {
                let at = rng.below(len) / 4096 * 4096;
                file[at..(at + 4096).min(len)].fill(0xee);
            }
        }
        _ => file.truncate(len - rng.below(most)),
    }
}

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn write(&self, file: &[u8], sidecar: &[u8]) {
        fs::write(self.file(), file).unwrap();
        fs::write(self.sidecar(), sidecar).unwrap();
    }

    fn file(&self) -> std::path::PathBuf {
        self.dir.path().join("image")
    }

    fn sidecar(&self) -> std::path::PathBuf {
        self.dir.path().join("image.dwrec")
    }

    fn locate(&self, beside: bool) -> Result<(LockedFile, RecoveryData), Error> {
        locate_in(&self.file(), beside.then(|| self.sidecar()).as_deref())
    }
}

fn locate_in(file: &Path, sidecar: Option<&Path>) -> Result<(LockedFile, RecoveryData), Error> {
    let file = LockedFile::open(file).unwrap();
    let data = match sidecar {
        None => locate(&file, &go())?,
        Some(path) => {
            let medium = Arc::new(LockedFile::open(path).unwrap());
            locate_sidecar(&file, Sidecar::writable(medium), &go())?
        }
    };
    Ok((file, data))
}

#[derive(Debug, Default)]
struct Outcomes {
    healed: u32,
    lost: u32,
    not_found: u32,
    moved: u32,
}

#[test]
fn random_damage_of_random_images() {
    let cases = std::env::var("REDWARFS_RECOVERY_CASES").map_or(60, |n| n.parse().unwrap());
    let mut outcomes = Outcomes::default();
    for case in 0..cases {
        one(case, &mut outcomes);
    }
    println!("{outcomes:?}");
    if cases >= 60 {
        assert!(outcomes.healed > 20 && outcomes.lost > 2, "{outcomes:?}");
    }
}

fn one(case: u64, outcomes: &mut Outcomes) {
    let mut rng = Rng::new(1000 + case);
    let leading = match rng.below(2) {
        0 => Vec::new(),
        _ => [&b"#!"[..], &bytes(1 + rng.below(9000), &mut rng)].concat(),
    };
    let files = Files {
        dir: tempfile::tempdir().unwrap(),
    };
    let offset = leading.len() as u64;
    let blocks = [1 + rng.below(200_000), rng.below(3000)];
    let plain = image(&leading, &blocks, &mut rng);
    files.write(&plain, b"");
    let mut protection = Protection::percent([1.0, 5.0, 10.0, 50.0][rng.below(4)]);
    protection.leading = rng.below(4) > 0;
    protection.shard_size = [None, Some(1 << 10), Some(1 << 11), Some(1 << 12)][rng.below(4)];
    let beside = rng.below(3) == 0;
    if beside {
        let source = FileSource::open(files.file()).unwrap();
        let out = LockedFile::open(files.sidecar()).unwrap();
        add_sidecar(&source, offset, &protection, &out, &|_| {}, &go()).unwrap();
    } else {
        let protect = |protection: &Protection| {
            let file = LockedFile::open(files.file()).unwrap();
            add(file, offset, protection, &|_| {}, &go()).unwrap();
        };
        protect(&protection);
        for _ in 0..rng.below(3) {
            let old = fs::read(files.file()).unwrap();
            let grown = match rng.below(3) {
                0 => retable(&old, offset),
                _ => append(&old, offset, &mut rng),
            };
            fs::write(files.file(), grown).unwrap();
            protect(&protection);
        }
    }
    let whole = fs::read(files.file()).unwrap();
    let side = fs::read(files.sidecar()).unwrap();
    let plans = match beside {
        true => Plan::all(&side, 0),
        false => Plan::all(&whole, offset as i64),
    };
    assert!(!plans.is_empty());

    let (mut bad, mut bad_side) = (whole.clone(), side.clone());
    for _ in 0..=rng.below(2) {
        hurt(&mut bad, &mut rng, true);
        if beside && rng.below(3) == 0 {
            hurt(&mut bad_side, &mut rng, true);
        }
    }
    // What is in front of the image comes, goes or is cut off with the start of the image.
    let mut now = offset as i64;
    match rng.below(6) {
        0 => {
            let cut = rng.below(3000);
            now -= cut as i64;
            bad.drain(..cut.min(bad.len()));
        }
        1 => {
            let other = bytes(rng.below(5000), &mut rng);
            now = other.len() as i64;
            bad = [&other[..], bad.get(offset as usize..).unwrap_or_default()].concat();
        }
        _ => {}
    }
    if bad == whole && bad_side == side {
        return;
    }
    let moved = now != offset as i64;
    let foreign = moved && plans[0].start < 0;
    files.write(&bad, &bad_side);
    let compared = |now: &[u8], place: i64, foreign: bool| {
        let image = Compared {
            now,
            now_base: place,
            then: &whole,
            then_base: offset as i64,
        };
        let store = match beside {
            false => Compared { ..image },
            true => Compared {
                now: &bad_side,
                now_base: 0,
                then: &side,
                then_base: 0,
            },
        };
        judge(&plans, &image, &store, foreign)
    };
    let verdict = compared(&bad, now, foreign);
    let (file, data) = match files.locate(beside) {
        Ok(found) => found,
        Err(Error::NotFound) => {
            assert!(!verdict.findable, "{case}: not found");
            outcomes.not_found += 1;
            return;
        }
        // Nothing that could tell where the image is.
        Err(Error::Foreign) => {
            assert!(verdict.lost_groups > 0, "{case}: foreign");
            outcomes.lost += 1;
            return;
        }
        Err(error) => panic!("{case}: {error}"),
    };
    if !verdict.findable {
        // The recovery data of an older part is lost: that is said, too.
        assert!(!data.unprotected(&file).unwrap().is_empty(), "{case}");
        outcomes.not_found += 1;
        return;
    }
    // Something else than was protected may be in front of the image.
    let open = data.unprotected(&file).unwrap();
    assert!(open.iter().all(|(start, _)| *start < 0), "{case}: {open:?}");
    if beside && data.image_offset() != now {
        assert!(verdict.lost_groups > 0, "{case}: the image is elsewhere");
        outcomes.lost += 1;
        return;
    }
    assert_eq!(data.image_offset(), now, "{case}: the image is elsewhere");
    let damage = data.check(&file, &|_| {}, &go()).unwrap();
    assert_eq!(
        damage.lost_groups(),
        verdict.lost_groups,
        "{case}: {verdict:?}"
    );
    let lost: Vec<(i64, i64)> = damage
        .lost_ranges()
        .into_iter()
        .map(|(start, length)| (start, length as i64))
        .collect();
    assert_eq!(lost, verdict.lost, "{case}");

    // What there should be afterwards: what is in front of the image stays if it has another length.
    let front = match (moved, usize::try_from(now)) {
        (true, Ok(now)) => bad.get(..now).unwrap_or_default().to_vec(),
        // Not protected: it stays as it is.
        _ if plans[0].start == 0 => bad.get(..offset as usize).unwrap_or_default().to_vec(),
        _ => whole[..offset as usize].to_vec(),
    };
    let expected = [&front[..], &whole[offset as usize..]].concat();

    // In memory: right, whatever the order of reads.
    if verdict.lost_groups == 0 && now >= 0 {
        let source: Arc<MemorySource> = Arc::new(MemorySource::new(bad.clone()));
        let listener = Box::new(|_: &_| {});
        let source = RepairingSource::new(source, &data, listener).unwrap();
        let len = redwarfs_io::Source::len(&source).unwrap() as usize;
        for plan in &plans {
            let from = (now + plan.start.max(0)) as usize;
            let to = ((now + plan.start + plan.length) as usize).min(len);
            let mut part = vec![0; to - from];
            redwarfs_io::Source::read_exact_at(&source, from as u64, &mut part).unwrap();
            assert!(part == expected[from..to], "{case}: in memory");
        }
    }

    // As a patch.
    let patch = files.dir.path().join("patch");
    fs::write(&patch, b"").unwrap();
    let out = LockedFile::open(&patch).unwrap();
    let made = data.write_patch(&file, &damage, &out, &|_| {}, &go());
    drop(out);
    let patched = files.dir.path().join("patched");
    if let Ok(done) = &made {
        fs::write(&patched, &bad).unwrap();
        let file = LockedFile::open(&patched).unwrap();
        apply_patch(&file, &FileSource::open(&patch).unwrap(), &|_| {}, &go()).unwrap();
        assert!(
            fs::read(&patched).unwrap() == expected,
            "{case}: patch {done:?}"
        );
    }
    assert!(fs::read(files.file()).unwrap() == bad, "{case}");

    let repaired = data.repair(&file, &damage, &go());
    drop((file, data));
    match repaired {
        Ok(done) => {
            assert_eq!(verdict.lost_groups, 0, "{case}");
            assert!(
                fs::read(files.file()).unwrap() == expected,
                "{case}: {done:?}"
            );
            if done.left == 0 {
                assert!(fs::read(files.sidecar()).unwrap() == side, "{case}");
            }
            assert!(made.is_ok(), "{case}");
            outcomes.healed += 1;
            outcomes.moved += u32::from(moved);
        }
        Err(Error::TooMuch { groups, .. }) => {
            assert_eq!(verdict.lost_groups, groups, "{case}");
            assert!(fs::read(files.file()).unwrap() == bad, "{case}: written");
            assert!(matches!(made, Err(Error::TooMuch { .. })), "{case}");
            outcomes.lost += 1;
        }
        Err(Error::LostStart) => {
            assert!(now < 0, "{case}");
            assert!(fs::read(files.file()).unwrap() == bad, "{case}: written");
            copy(case, &files, &bad, beside, &whole, outcomes);
        }
        Err(error) => panic!("{case}: {error}"),
    }
}

/// Repairs a copy of a file that has lost its start.
fn copy(case: u64, files: &Files, bad: &[u8], beside: bool, whole: &[u8], outcomes: &mut Outcomes) {
    let (file, data) = files.locate(beside).unwrap();
    let path = files.dir.path().join("copy");
    fs::write(&path, b"").unwrap();
    let out = LockedFile::open(&path).unwrap();
    data.copy(&file, &out, &|_| {}, &go()).unwrap();
    let lost = data.lost_at_start().unwrap() as usize;
    drop((file, data, out));
    let copied = fs::read(&path).unwrap();
    assert!(copied[..lost].iter().all(|byte| *byte == 0) && copied[lost..] == *bad);
    let sidecar = files.sidecar();
    let (file, data) = locate_in(&path, beside.then_some(sidecar.as_path())).unwrap();
    let damage = data.check(&file, &|_| {}, &go()).unwrap();
    match data.repair(&file, &damage, &go()) {
        Ok(_) => {
            let now = fs::read(&path).unwrap();
            // An unprotected front is gone.
            let from = whole.len() - now.len();
            assert!(now[..] == whole[from..], "{case}: copy");
            outcomes.healed += 1;
            outcomes.moved += 1;
        }
        Err(Error::TooMuch { .. }) => outcomes.lost += 1,
        Err(error) => panic!("{case}: {error}"),
    }
}
