//! The program in front of an image, and files of others that look like one with an image.

use std::io;
use std::path::Path;

use redwarfs_format::elf::{Elf, appimage};
use redwarfs_format::section::ReadAt;
use redwarfs_io::{FileSource, Source};

/// What a system can start by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// An ELF file, for this processor if it is a known one.
    Elf(Option<&'static str>),
    /// A file that begins with `#!`.
    Script,
}

impl Program {
    /// What these bytes are, if they are a program.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"#!") {
            return Some(Self::Script);
        }
        let elf = || Elf::read(&reader(bytes)).and_then(Elf::machine);
        bytes.starts_with(b"\x7fELF").then(|| Self::Elf(elf()))
    }
}

/// Reads from bytes in memory.
pub fn reader(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<()> {
    |at, out| {
        let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
        let part = rest.and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The places of a signature and its key in the program in front of an image, if there is a signature.
pub fn signature(read: &ReadAt<'_>, image: u64) -> Vec<(u64, u64)> {
    let holds_something = |name: &str| {
        appimage::sections(read, image, &[name])
            .iter()
            .any(|section| {
                let mut bytes = vec![0; section.size as usize];
                read(section.offset, &mut bytes).is_ok() && bytes.iter().any(|&byte| byte != 0)
            })
    };
    if !holds_something(appimage::SIGNATURE) {
        return Vec::new();
    }
    let sections = appimage::sections(read, image, &[appimage::SIGNATURE, appimage::KEY]);
    let place = |section: redwarfs_format::elf::ElfSection| (section.offset, section.size);
    sections.into_iter().map(place).collect()
}

/// Takes a signature and its key out of a program. Whether there was one.
pub fn clear_signature(program: &mut [u8]) -> bool {
    let places = signature(&reader(program), program.len() as u64);
    for (at, length) in &places {
        let place = *at as usize..(at + length) as usize;
        program.get_mut(place).unwrap_or_default().fill(0);
    }
    !places.is_empty()
}

/// What a SquashFS image begins with.
const SQUASHFS: &[u8] = b"hsqs";
/// The first block of a SquashFS image, which describes it.
const SUPERBLOCK: usize = 96;
/// How much of a file is searched for a SquashFS image, and how much of it at a time.
const SEARCHED: u64 = 64 << 20;
const PIECE: u64 = 1 << 20;

/// Where a SquashFS image is in a file: at its start, or behind the program in front, as in many AppImages.
#[must_use]
pub fn squashfs_in(path: &Path) -> Option<u64> {
    squashfs_at_its_place(&FileSource::open(path).ok()?)
}

fn squashfs_at_its_place(file: &FileSource) -> Option<u64> {
    /// Where the version is in the first bytes.
    const VERSION: std::ops::Range<usize> = 28..30;
    let read = |at: u64, out: &mut [u8]| file.read_exact_at(at, out);
    let behind = Elf::read(&read).and_then(Elf::end);
    [Some(0), behind].into_iter().flatten().find(|&at| {
        let mut start = [0; VERSION.end];
        read(at, &mut start).is_ok() && start.starts_with(SQUASHFS) && start[VERSION] == [4, 0]
    })
}

/// Where a SquashFS image is in a file of no other known format: also behind a script, or behind other data, within the
/// first 64 MiB. Only a superblock whose numbers fit together and to the file counts there.
#[must_use]
pub fn squashfs_behind(path: &Path) -> Option<u64> {
    let file = FileSource::open(path).ok()?;
    if let Some(at) = squashfs_at_its_place(&file) {
        return Some(at);
    }
    let size = file.len().ok()?;
    let mut start = 0;
    while start < size.min(SEARCHED) {
        // A superblock may begin in this piece and end in the next one.
        let length = (size - start).min(PIECE + SUPERBLOCK as u64 - 1);
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        file.read_exact_at(start, &mut bytes).ok()?;
        let found = bytes
            .windows(SUPERBLOCK)
            .zip(start..)
            .find(|(bytes, at)| bytes.starts_with(SQUASHFS) && is_superblock(bytes, size - at));
        if let Some((_, at)) = found {
            return Some(at);
        }
        start += PIECE;
    }
    None
}

/// Whether these bytes describe a SquashFS image of format 4.0 that fits into `room`.
fn is_superblock(bytes: &[u8], room: u64) -> bool {
    let short = |at: usize| {
        let part = bytes.get(at..).and_then(<[u8]>::first_chunk);
        part.map_or(0, |part| u16::from_le_bytes(*part))
    };
    let long = |at: usize| {
        let part = bytes.get(at..).and_then(<[u8]>::first_chunk);
        part.map_or(0, |part| u64::from_le_bytes(*part))
    };
    let block_size = u64::from(short(12)) | u64::from(short(14)) << 16;
    let log = short(22);
    let (used, inodes, directories) = (long(40), long(64), long(72));
    (short(28), short(30)) == (4, 0)
        && (12..=20).contains(&log)
        && block_size == 1 << log
        && (1..=6).contains(&short(20))
        && used <= room
        && (SUPERBLOCK as u64..used).contains(&inodes)
        && (inodes..used).contains(&directories)
}

/// What a file with a SquashFS image is, and what to do with it.
#[must_use]
pub fn squashfs_advice(at: u64) -> (String, String) {
    (
        format!("it has a SquashFS image at byte {at}"),
        format!("unsquashfs -o {at} extracts it"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_recognised() {
        assert_eq!(Program::of(b"#!/bin/sh"), Some(Program::Script));
        let elf = redwarfs_testkit::program::elf(&[]);
        assert_eq!(Program::of(&elf), Some(Program::Elf(Some("x86_64"))));
        assert_eq!(Program::of(&elf[..20]), Some(Program::Elf(None)));
        for other in [&b""[..], b"\x7fEL", b"# text"] {
            assert_eq!(Program::of(other), None);
        }
    }

    #[test]
    fn squashfs_is_found_behind_a_program() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut image = vec![0; 96];
        image[..4].copy_from_slice(b"hsqs");
        image[28] = 4;
        let elf = redwarfs_testkit::program::elf(&[]);
        for front in [&b""[..], &elf] {
            std::fs::write(&path, [front, &image].concat()).unwrap();
            assert_eq!(squashfs_in(&path), Some(front.len() as u64));
        }
        image[28] = 3;
        for other in [&image, &elf] {
            std::fs::write(&path, other).unwrap();
            assert_eq!(squashfs_in(&path), None);
        }
    }

    /// A superblock of an image that is as long as it says.
    fn squashfs() -> Vec<u8> {
        let mut image = vec![0; 400];
        image[..4].copy_from_slice(SQUASHFS);
        for (at, value) in [(14, 2_u16), (20, 1), (22, 17), (28, 4)] {
            image[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        for (at, value) in [(40, 400_u64), (64, 96), (72, 200)] {
            image[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        image
    }

    #[test]
    fn squashfs_is_found_behind_other_data() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let found = |parts: &[&[u8]]| {
            std::fs::write(&path, parts.concat()).unwrap();
            squashfs_behind(&path)
        };
        let image = squashfs();
        let script = b"#!/bin/sh\ngrep hsqs \"$0\"\n";
        let elf = redwarfs_testkit::program::elf(&[]);
        for front in [
            &b""[..],
            script,
            &elf,
            &[&elf[..], b"padding"].concat(),
            // Over the end of a piece.
            &[&script[..], &vec![0; PIECE as usize - script.len() - 50]].concat(),
        ] {
            let at = front.len() as u64;
            assert_eq!(found(&[front, &image]), Some(at));
            assert_eq!(found(&[front, &image, b"signature"]), Some(at));
        }
        // Each number that does not fit makes it something else.
        for (at, value) in [
            (12, 1),
            (14, 1),
            (20, 9),
            (22, 12),
            (28, 3),
            (41, 0),
            (42, 1),
            (64, 0),
            (72, 0),
        ] {
            let mut other = image.clone();
            other[at] = value;
            assert_eq!(found(&[script, &other]), None, "{at}");
        }
        assert_eq!(found(&[script, &image[..399]]), None);
        assert_eq!(
            found(&[&vec![0; SEARCHED as usize + PIECE as usize], &image]),
            None
        );
    }
}
