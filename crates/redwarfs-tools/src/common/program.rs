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

/// Where a SquashFS image is in a file: at its start, or behind the program in front, as in many AppImages.
#[must_use]
pub fn squashfs_in(path: &Path) -> Option<u64> {
    /// Where the version is in the first bytes.
    const VERSION: std::ops::Range<usize> = 28..30;
    let file = FileSource::open(path).ok()?;
    let read = |at: u64, out: &mut [u8]| file.read_exact_at(at, out);
    let behind = Elf::read(&read).and_then(Elf::end);
    [Some(0), behind].into_iter().flatten().find(|&at| {
        let mut start = [0; VERSION.end];
        read(at, &mut start).is_ok() && start.starts_with(b"hsqs") && start[VERSION] == [4, 0]
    })
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
}
