//! The table of the generations of a file (format chapter 12).

use std::ops::Range;

use super::hidden::{Binding, Footer, GenerationId, HiddenPayload, MetadataId, Prelude};
use super::index::OFFSET_MASK;
use super::{Container, ReadAt, Section, SectionHeader, SectionType};
use crate::error::{Error, Result};
use crate::ids::GenerationNo;

/// Most generations of a file. Each takes a whole index and metadata, so a file with more would be
/// larger than a terabyte.
pub const MAX_SNAPSHOTS: usize = 1 << 20;
/// Longest name of a snapshot in bytes, as that of a directory.
pub const MAX_SNAPSHOT_NAME: usize = 255;

const HEAD: usize = 32;
const ENTRY: usize = 96;
const PINNED: u32 = 1;
const DELETED: u32 = 2;
const ARCHIVED: u32 = 8;
const TAG: [u8; 4] = *b"DWSN";
/// Major versions of tables with all entries, with the last ones, and of either kind with archived snapshots.
const WHOLE: u8 = 1;
const PARTIAL: u8 = 2;
const WITH_ARCHIVED: u8 = 3;

/// Bytes of a payload that [`may_have_archived`] needs.
pub const SNAPSHOTS_START: usize = 5;

/// Whether a table, whose payload begins like this, has archived snapshots.
#[must_use]
pub fn may_have_archived(start: &[u8]) -> bool {
    start.starts_with(&TAG) && start.get(TAG.len()) == Some(&WITH_ARCHIVED)
}

/// Largest number of tables that lead to each other. Of 2^20 entries, they are about 20.
const MOST_TABLES: usize = 64;

/// A generation of a file: the state of the tree at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its number, from 1, ascending in the table, and never used again.
    pub number: GenerationNo,
    /// The name: UTF-8 of 1 to [`MAX_SNAPSHOT_NAME`] bytes, without slashes and control characters.
    pub name: String,
    /// Offset of the header of its section index, from the start of the image.
    pub index: u64,
    /// The first so many bytes of the file are the image of that time. None if they are not any more.
    pub end: Option<u64>,
    /// Kept by rules that delete old ones.
    pub pinned: bool,
    /// Not shown; its space may be given back.
    pub deleted: bool,
    /// Its tree is a [directory](Self::directory) of the generation, which has trees of other snapshots beside it.
    /// `end` is that of the generation.
    pub archived: bool,
    /// The time that it shows, seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, below 10^9.
    pub nanoseconds: u32,
    /// The identity of its tree.
    pub tree: MetadataId,
    /// Sizes of all files together.
    pub size: u64,
    /// Bytes by which the file has grown for it.
    pub added: u64,
    /// Number of inodes.
    pub inodes: u32,
    /// The generation that it continues.
    pub parent: Option<GenerationNo>,
}

/// Why a name cannot be that of a snapshot.
#[must_use]
pub fn snapshot_name_error(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("it is empty")
    } else if name.len() > MAX_SNAPSHOT_NAME {
        Some("it has more than 255 bytes")
    } else if name == "." || name == ".." {
        Some("it has a meaning for directories")
    } else if name.contains(|c: char| c == '/' || c.is_control()) {
        Some("it has a slash or a control character")
    } else {
        None
    }
}

/// The name of a snapshot that has no other: its time in UTC, such as `2026-05-03_21-30-00`.
#[must_use]
pub fn snapshot_time_name(seconds: i64) -> String {
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days-to-civil conversion by H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    let z = days + 719_468;
    let (era, doe) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    let day = doy - (153 * mp + 2) / 5 + 1;
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}_{hour:02}-{minute:02}-{second:02}")
}

/// All generations of a file, or the last ones of them, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotTable {
    /// In the order of their numbers.
    pub snapshots: Vec<Snapshot>,
    /// Offset of the header of the table with those before the first one, which may again have only the last ones
    /// of them. None if there are none before it.
    pub previous: Option<u64>,
}

/// The tables of a file that together list its generations.
///
/// A new table repeats only the last entries, and leads to an older table for the others. Of n entries, it has as
/// many as the largest power of 2 that divides n. So each entry is stored about log n times in n tables, and a
/// reader needs at most log n tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableChain(Vec<StoredTable>);

/// A table in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StoredTable {
    /// Offset of its header.
    at: u64,
    /// Number of entries up to its end.
    entries: usize,
}

impl TableChain {
    /// The table that a file with the generations of `table` gets next.
    #[must_use]
    pub fn next(&self, table: &SnapshotTable) -> SnapshotTable {
        let all = table.snapshots.len();
        let before = all - (1 << all.trailing_zeros().min(usize::BITS - 1)).min(all);
        let stored = self.0.iter().filter(|stored| stored.entries > 0);
        let nearest = stored.clone().rfind(|stored| stored.entries <= before);
        // After a change of the table there is none but the changed one.
        let found = nearest.or(stored.clone().next()).filter(|_| before > 0);
        let first = found.map_or(0, |stored| stored.entries);
        SnapshotTable {
            snapshots: table.snapshots.get(first..).unwrap_or_default().to_vec(),
            previous: found.map(|stored| stored.at),
        }
    }

    /// Reads a table of a generation, which is a trailer of an image, and all tables that it leads to. Returns them
    /// as one, and where they are. `payload` reads the payload of a section and verifies its checksum.
    ///
    /// # Errors
    /// Those of [`SnapshotTable::parse`] and of reading, [`Error::Corrupt`] if a table leads to something else than
    /// an earlier table, or a generation ends behind the image.
    pub fn read(
        image: &Container,
        newest: &Section,
        generation: GenerationId,
        read: &ReadAt<'_>,
        payload: &dyn Fn(&Section) -> Result<Vec<u8>>,
    ) -> Result<(SnapshotTable, Self)> {
        let table = SnapshotTable::parse(&payload(newest)?, Some(generation))?;
        // From the newest one to the oldest one.
        let mut tables = vec![(newest.header_offset, table)];
        let mut count = 0;
        while let Some((at, table)) = tables.last() {
            count += table.snapshots.len();
            if count > MAX_SNAPSHOTS {
                return Err(Error::Limit(format!("more than {MAX_SNAPSHOTS} snapshots")));
            }
            let Some(previous) = table.previous else {
                break;
            };
            if tables.len() >= MOST_TABLES {
                return Err(Error::Limit(format!("more than {MOST_TABLES} tables")));
            }
            if previous >= *at {
                return Err(bad("leads to no earlier one"));
            }
            let section = image.hidden_section(read, SectionType::SNAPSHOTS, previous)?;
            // Tables that contain each other would be read again and again.
            let end = section.payload_offset.saturating_add(section.length);
            if end > *at || table.snapshots.is_empty() {
                return Err(bad("leads to no earlier one"));
            }
            let table = SnapshotTable::parse(&payload(&section)?, None)?;
            tables.push((previous, table));
        }
        let (mut all, mut chain) = (SnapshotTable::default(), Self::default());
        for (at, mut table) in tables.into_iter().rev() {
            chain.push(at, &table);
            all.snapshots.append(&mut table.snapshots);
        }
        let mut ends = all.snapshots.iter().filter_map(|s| s.end);
        if ends.any(|end| end > image.size) {
            return Err(bad("has a generation that ends behind the image"));
        }
        if !all.snapshots.is_sorted_by(|a, b| a.number < b.number) {
            return Err(bad("has numbers that do not ascend"));
        }
        Ok((all, chain))
    }

    /// Notes a table that is stored with its header at an offset.
    pub fn push(&mut self, at: u64, table: &SnapshotTable) {
        let before = table.previous.and_then(|previous| {
            let number = self.0.iter().position(|stored| stored.at == previous)?;
            Some((number + 1, self.0.get(number)?.entries))
        });
        let (tables, entries) = before.unwrap_or((0, 0));
        self.0.truncate(tables);
        self.0.push(StoredTable {
            at,
            entries: entries + table.snapshots.len(),
        });
    }
}

impl SnapshotTable {
    /// The prelude of the section, which belongs to the generation with an identity.
    #[must_use]
    pub fn prelude(&self, generation: GenerationId) -> Prelude {
        Prelude {
            // Readers that know only whole tables ignore others.
            major: match self.previous {
                _ if self.snapshots.iter().any(|snapshot| snapshot.archived) => WITH_ARCHIVED,
                Some(_) => PARTIAL,
                None => WHOLE,
            },
            ..Prelude::of_generation(TAG, generation)
        }
    }

    /// Encodes the body of the section.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut entries = Vec::with_capacity(self.snapshots.len() * ENTRY);
        for snapshot in &self.snapshots {
            let name = names.len() as u64;
            names.extend_from_slice(snapshot.name.as_bytes());
            let flags = u32::from(snapshot.pinned) * PINNED
                + u32::from(snapshot.deleted) * DELETED
                + u32::from(snapshot.archived) * ARCHIVED;
            entries.extend(snapshot.index.to_le_bytes());
            entries.extend(snapshot.end.unwrap_or(0).to_le_bytes());
            entries.extend(snapshot.number.0.to_le_bytes());
            entries.extend(flags.to_le_bytes());
            entries.extend(snapshot.seconds.to_le_bytes());
            entries.extend(snapshot.nanoseconds.to_le_bytes());
            entries.extend((snapshot.name.len() as u32).to_le_bytes());
            entries.extend(name.to_le_bytes());
            entries.extend(snapshot.tree.0);
            entries.extend(snapshot.size.to_le_bytes());
            entries.extend(snapshot.added.to_le_bytes());
            entries.extend(snapshot.inodes.to_le_bytes());
            entries.extend(snapshot.parent.map_or(0, |n| n.0).to_le_bytes());
            entries.extend([0; 8]);
        }
        let mut body = Vec::with_capacity(HEAD + entries.len() + names.len());
        body.extend((self.snapshots.len() as u32).to_le_bytes());
        body.extend((ENTRY as u32).to_le_bytes());
        body.extend(((Prelude::LEN + HEAD + entries.len()) as u64).to_le_bytes());
        body.extend((names.len() as u64).to_le_bytes());
        body.extend(self.previous.unwrap_or(0).to_le_bytes());
        body.extend(entries);
        body.extend(names);
        body
    }

    /// Decodes the payload of the section, if it belongs to the generation with an identity. Without one, any
    /// generation does.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the table does not fit the payload, numbers do not ascend, a name is no name, or
    /// an index is not in front of its end; [`Error::Limit`] for more than [`MAX_SNAPSHOTS`] entries;
    /// [`Error::Unsupported`] for a later version or another generation.
    pub fn parse(payload: &[u8], generation: Option<GenerationId>) -> Result<Self> {
        let hidden = HiddenPayload::parse(payload)?;
        let prelude = hidden.prelude;
        if prelude.tag != TAG {
            return Err(bad("has another tag"));
        }
        if !(WHOLE..=WITH_ARCHIVED).contains(&prelude.major) || prelude.flags >> 16 != 0 {
            return Err(Error::Unsupported("a later table of snapshots".into()));
        }
        if generation.is_some_and(|generation| prelude.binding != Binding::Generation(generation)) {
            return Err(Error::Unsupported(
                "table of snapshots of another generation".into(),
            ));
        }
        let end = payload.len() - Footer::LEN;
        let at = end - hidden.body.len();
        let count = number32(hidden.body, 0).ok_or_else(cut_off)? as usize;
        let size = number32(hidden.body, 4).ok_or_else(cut_off)? as usize;
        let names = number64(hidden.body, 8).ok_or_else(cut_off)?;
        let names_length = number64(hidden.body, 16).ok_or_else(cut_off)?;
        if count > MAX_SNAPSHOTS {
            return Err(Error::Limit(format!("more than {MAX_SNAPSHOTS} snapshots")));
        }
        if size < ENTRY {
            return Err(bad("has entries that are too short"));
        }
        let names = range(names, names_length)
            .filter(|names| names.start >= at && names.end <= end)
            .and_then(|names| payload.get(names))
            .ok_or_else(cut_off)?;
        let entries = count
            .checked_mul(size)
            .and_then(|length| hidden.body.get(HEAD..HEAD.checked_add(length)?))
            .ok_or_else(cut_off)?;
        let mut snapshots: Vec<Snapshot> = Vec::with_capacity(count);
        let mut has_archived = false;
        for entry in entries.chunks_exact(size) {
            let snapshot = Snapshot::parse(entry, names)?;
            // Readers of such a table would take the trees of all for that of one.
            if snapshot.archived && prelude.major != WITH_ARCHIVED {
                return Err(bad(
                    "has an archived snapshot, and is of an earlier version",
                ));
            }
            has_archived |= snapshot.archived;
            if snapshots
                .last()
                .is_some_and(|last| last.number >= snapshot.number)
            {
                return Err(bad("has numbers that do not ascend"));
            }
            snapshots.push(snapshot);
        }
        let previous = number64(hidden.body, 24).ok_or_else(cut_off)?;
        let fits = match prelude.major {
            WHOLE => previous == 0,
            PARTIAL => previous != 0,
            _ => has_archived,
        };
        if !fits || previous > OFFSET_MASK {
            return Err(bad("is of a version that does not fit what it has"));
        }
        Ok(Self {
            snapshots,
            previous: (previous != 0).then_some(previous),
        })
    }

    /// The snapshot with a number.
    #[must_use]
    pub fn number(&self, number: GenerationNo) -> Option<&Snapshot> {
        let found = self.snapshots.binary_search_by_key(&number, |s| s.number);
        found.ok().and_then(|at| self.snapshots.get(at))
    }

    /// The newest snapshot with a name that is not deleted.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Snapshot> {
        self.present().rfind(|snapshot| snapshot.name == name)
    }

    /// Those that are not deleted, the oldest first.
    pub fn present(&self) -> impl DoubleEndedIterator<Item = &Snapshot> {
        self.snapshots.iter().filter(|snapshot| !snapshot.deleted)
    }
}

impl Snapshot {
    /// The name of the directory in the root of the generation that is its tree. None if the root is.
    #[must_use]
    pub fn directory(&self) -> Option<String> {
        // All numbers have the same length, so the directories have their order.
        self.archived.then(|| Self::directory_name(self.number))
    }

    /// The name of the directory that is the tree of an archived snapshot with a number.
    #[must_use]
    pub fn directory_name(number: GenerationNo) -> String {
        format!("{:010}", number.0)
    }

    fn parse(entry: &[u8], names: &[u8]) -> Result<Self> {
        let n32 = |at| number32(entry, at).ok_or_else(cut_off);
        let n64 = |at| number64(entry, at).ok_or_else(cut_off);
        let name = range(n64(40)?, u64::from(n32(36)?))
            .and_then(|name| names.get(name))
            .ok_or_else(cut_off)?;
        let name = std::str::from_utf8(name).map_err(|_| bad("has a name that is no text"))?;
        if snapshot_name_error(name).is_some() {
            return Err(bad("has a name that cannot be one"));
        }
        let (index, end) = (n64(0)?, n64(8)?);
        let least = index.saturating_add(SectionHeader::LEN as u64);
        if index > OFFSET_MASK || (end != 0 && end <= least) {
            return Err(bad("has an index behind the end of its generation"));
        }
        let (number, nanoseconds) = (n32(16)?, n32(32)?);
        if number == 0 || nanoseconds >= 1_000_000_000 {
            return Err(bad("has a number or a time out of range"));
        }
        let flags = n32(20)?;
        let mut tree = MetadataId([0; 16]);
        tree.0
            .copy_from_slice(entry.get(48..64).ok_or_else(cut_off)?);
        let parent = n32(84)?;
        Ok(Self {
            number: GenerationNo(number),
            name: name.to_owned(),
            index,
            end: (end != 0).then_some(end),
            pinned: flags & PINNED != 0,
            deleted: flags & DELETED != 0,
            archived: flags & ARCHIVED != 0,
            seconds: n64(24)?.cast_signed(),
            nanoseconds,
            tree,
            size: n64(64)?,
            added: n64(72)?,
            inodes: n32(80)?,
            parent: (parent != 0).then_some(GenerationNo(parent)),
        })
    }
}

fn bad(what: &str) -> Error {
    Error::corrupt(format!("table of snapshots {what}"))
}

fn cut_off() -> Error {
    bad("is cut off")
}

pub(super) fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

pub(super) fn number64(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

fn range(start: u64, length: u64) -> Option<Range<usize>> {
    let end = start.checked_add(length)?;
    Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::encode_hidden_section;
    use super::*;

    const GENERATION: GenerationId = GenerationId([7; 16]);

    fn snapshot(number: u32, name: &str) -> Snapshot {
        Snapshot {
            number: GenerationNo(number),
            name: name.into(),
            index: 1000 * u64::from(number),
            end: Some(1000 * u64::from(number) + 100),
            pinned: number.is_multiple_of(2),
            deleted: number.is_multiple_of(3),
            archived: false,
            seconds: -5,
            nanoseconds: 999_999_999,
            tree: MetadataId([number as u8; 16]),
            size: u64::MAX,
            added: 12,
            inodes: 3,
            parent: number.checked_sub(1).filter(|n| *n > 0).map(GenerationNo),
        }
    }

    fn payload(table: &SnapshotTable) -> Vec<u8> {
        let footer = Footer {
            open_offset: 1,
            open_length: 2,
            index: Some(3),
        };
        let prelude = table.prelude(GENERATION);
        let section = encode_hidden_section(
            9,
            SectionType::SNAPSHOTS,
            &prelude,
            &table.encode(),
            &footer,
        );
        section[SectionHeader::LEN..].to_vec()
    }

    fn table() -> SnapshotTable {
        let mut snapshots = vec![
            snapshot(1, "first"),
            snapshot(2, "größer"),
            snapshot(6, "b"),
        ];
        snapshots[2].end = None;
        SnapshotTable {
            snapshots,
            previous: None,
        }
    }

    #[test]
    fn later_tables_lead_to_earlier_ones() {
        let (mut all, mut chain) = (SnapshotTable::default(), TableChain::default());
        let mut stored: Vec<SnapshotTable> = Vec::new();
        let (mut written, mut most) = (0, 0);
        for number in 1..=100_u32 {
            all.snapshots.push(snapshot(number, "x"));
            if number == 37 {
                // All anew, as after a change.
                chain = TableChain::default();
            }
            let next = chain.next(&all);
            let at = stored.len() as u64 + 1;
            chain.push(at, &next);
            written += next.snapshots.len();
            stored.push(SnapshotTable::parse(&payload(&next), None).unwrap());
            assert_eq!(stored.last(), Some(&next));
            let (mut read, mut table, mut tables) = (Vec::new(), stored.last().unwrap(), 1);
            loop {
                read.splice(0..0, table.snapshots.iter().cloned());
                let Some(previous) = table.previous else {
                    break;
                };
                table = &stored[previous as usize - 1];
                tables += 1;
            }
            assert_eq!(read, all.snapshots);
            most = most.max(tables);
        }
        assert!(written < 500 && most < 8, "{written} {most}");
        let mut wrong = payload(&stored[1]);
        assert_eq!((stored[1].previous, wrong[4]), (None, 1));
        wrong[4] = 2;
        assert!(SnapshotTable::parse(&wrong, None).is_err());
    }

    #[test]
    fn tables_come_back() {
        for table in [SnapshotTable::default(), table()] {
            let parsed = SnapshotTable::parse(&payload(&table), Some(GENERATION)).unwrap();
            assert_eq!(parsed, table);
        }
        let table = table();
        assert_eq!(table.number(GenerationNo(2)).unwrap().name, "größer");
        assert!(table.number(GenerationNo(3)).is_none());
        assert_eq!(table.named("first").unwrap().number, GenerationNo(1));
        // It is deleted.
        assert!(table.named("b").is_none());
        assert_eq!(table.present().count(), 2);
    }

    #[test]
    fn the_layout_is_as_documented() {
        let bytes = payload(&table());
        assert_eq!(&bytes[..6], b"DWSN\x01\x00");
        let body = &bytes[32..];
        assert_eq!(&body[..8], [3, 0, 0, 0, 96, 0, 0, 0]);
        assert_eq!(number64(body, 8), Some(32 + 32 + 3 * 96));
        assert_eq!(number64(body, 16), Some(14));
        let second = &body[32 + 96..];
        assert_eq!(number64(second, 0), Some(2000));
        assert_eq!(number64(second, 8), Some(2100));
        assert_eq!(number32(second, 16), Some(2));
        assert_eq!(number32(second, 20), Some(1));
        assert_eq!(
            (number64(second, 40), number32(second, 36)),
            (Some(5), Some(8))
        );
        assert_eq!(second[48..64], [2; 16]);
        assert_eq!(number32(second, 84), Some(1));
    }

    #[test]
    fn wrong_tables_are_refused() {
        let good = table();
        let fails = |change: &dyn Fn(&mut SnapshotTable)| {
            let mut table = good.clone();
            change(&mut table);
            SnapshotTable::parse(&payload(&table), Some(GENERATION)).unwrap_err()
        };
        fails(&|t| t.snapshots[1].number = GenerationNo(1));
        fails(&|t| t.snapshots[0].number = GenerationNo(0));
        fails(&|t| t.snapshots[0].name = "a/b".into());
        fails(&|t| t.snapshots[0].name.clear());
        fails(&|t| t.snapshots[0].end = Some(1064));
        fails(&|t| t.snapshots[0].nanoseconds = 1_000_000_000);
        fails(&|t| t.snapshots[0].index = 1 << 48);
        let bytes = payload(&good);
        let other = SnapshotTable::parse(&bytes, Some(GenerationId([8; 16])));
        assert!(matches!(other, Err(Error::Unsupported(_))));
        for (at, value) in [
            (32, 200),
            (35, 255),
            (36, 95),
            (40, 255),
            (48, 200),
            (4, 2),
            (0, 0),
        ] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert!(
                SnapshotTable::parse(&bytes, Some(GENERATION)).is_err(),
                "{at}"
            );
        }
        for length in 0..bytes.len() {
            assert!(SnapshotTable::parse(&bytes[..length], Some(GENERATION)).is_err());
        }
    }

    #[test]
    fn tables_with_archived_snapshots_have_a_version_of_their_own() {
        let mut archived = table();
        archived.snapshots[0].archived = true;
        archived.snapshots[1].archived = true;
        let names = archived.snapshots.iter().map(Snapshot::directory);
        let names: Vec<Option<String>> = names.collect();
        let of = |name: &str| Some(name.to_owned());
        assert_eq!(names, [of("0000000001"), of("0000000002"), None]);
        for previous in [None, Some(700)] {
            archived.previous = previous;
            let bytes = payload(&archived);
            assert_eq!(bytes[4], 3);
            let parsed = SnapshotTable::parse(&bytes, Some(GENERATION)).unwrap();
            assert_eq!(parsed, archived);
            // Readers of the earlier versions take no other one: they see no snapshots, and no wrong tree.
            assert!(bytes[4] != WHOLE && bytes[4] != PARTIAL);
            // Another version does not make a root of the directory.
            for major in [1, 2, 4] {
                let mut bytes = bytes.clone();
                bytes[4] = major;
                assert!(SnapshotTable::parse(&bytes, Some(GENERATION)).is_err());
            }
        }
    }

    #[test]
    fn the_version_of_archives_is_only_that_of_tables_with_archived_snapshots() {
        let mut bytes = payload(&table());
        assert!(!may_have_archived(&bytes));
        bytes[4] = WITH_ARCHIVED;
        assert!(may_have_archived(&bytes));
        assert!(SnapshotTable::parse(&bytes, Some(GENERATION)).is_err());
    }

    #[test]
    fn times_as_names() {
        assert_eq!(snapshot_time_name(0), "1970-01-01_00-00-00");
        assert_eq!(snapshot_time_name(951_868_799), "2000-02-29_23-59-59");
        assert_eq!(snapshot_time_name(-1), "1969-12-31_23-59-59");
        assert_eq!(snapshot_name_error(&snapshot_time_name(i64::MAX / 4)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes: Vec<u8>, at in 0_usize..500, value: u8) {
            let _ = SnapshotTable::parse(&bytes, Some(GENERATION));
            let mut changed = payload(&table());
            let at = at % changed.len();
            changed[at] = value;
            if let Ok(table) = SnapshotTable::parse(&changed, Some(GENERATION)) {
                prop_assert!(table.snapshots.len() <= 3);
                prop_assert_eq!(SnapshotTable::parse(&payload(&table), Some(GENERATION)).unwrap(), table);
            }
        }
    }
}
