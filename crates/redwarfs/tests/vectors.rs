//! The test vectors that all languages share: `tests/vectors`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use redwarfs::{ErrorKind, FileType, Image};
use sha2::{Digest, Sha256};

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors")
}

fn rows(name: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(vectors().join(name)).unwrap();
    text.lines()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

fn images(expectation: &str) -> Vec<(String, PathBuf)> {
    let rows = rows("images.tsv").into_iter();
    rows.filter(|row| row[2] == expectation)
        .map(|row| (row[0].clone(), vectors().join(&row[1])))
        .collect()
}

fn encoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b'%' | 0..=0x20 | 0x7f.. => write!(text, "%{byte:02X}").unwrap(),
            _ => text.push(char::from(byte)),
        }
    }
    text
}

fn decoded(text: &str) -> PathBuf {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    OsString::from_vec(bytes).into()
}

fn hex(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The line of the entry at a path.
fn line(image: &Image, row: &[String]) -> Vec<String> {
    let path = decoded(&row[0]);
    let stat = image.symlink_metadata(&path).unwrap();
    let (letter, value) = match stat.file_type().unwrap() {
        FileType::Directory => ('d', "-".to_owned()),
        FileType::Fifo => ('p', "-".to_owned()),
        FileType::Socket => ('s', "-".to_owned()),
        FileType::Regular => ('f', digest(image, &path, &row[9])),
        FileType::Symlink => {
            let target = image.read_link(&path).unwrap();
            (
                'l',
                format!("target:{}", encoded(target.as_os_str().as_bytes())),
            )
        }
        kind => {
            let major = ((stat.rdev >> 32) & 0xffff_f000) | ((stat.rdev >> 8) & 0xfff);
            let minor = ((stat.rdev >> 12) & 0xffff_ff00) | (stat.rdev & 0xff);
            let letter = if kind == FileType::CharDevice {
                'c'
            } else {
                'b'
            };
            (letter, format!("device:{major},{minor}"))
        }
    };
    let time = i128::from(stat.mtime.sec) * 1_000_000_000 + i128::from(stat.mtime.nsec);
    vec![
        row[0].clone(),
        letter.to_string(),
        format!("{:o}", stat.mode & 0o7777),
        stat.uid.to_string(),
        stat.gid.to_string(),
        stat.size.to_string(),
        stat.nlink.to_string(),
        stat.ino.0.to_string(),
        if row[8] == "-" {
            "-".to_owned()
        } else {
            time.to_string()
        },
        value,
    ]
}

fn digest(image: &Image, path: &Path, wanted: &str) -> String {
    let mut file = image.file(path).unwrap();
    let last = wanted.starts_with("last4096:");
    if last {
        file.seek(SeekFrom::End(-4096)).unwrap();
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    let form = if last { "last4096" } else { "sha256" };
    format!("{form}:{}", hex(&bytes))
}

#[test]
fn entries_and_contents() {
    let images = images("ok");
    assert!(images.len() > 10);
    for (name, path) in images {
        let image = Image::open(&path).unwrap();
        let wanted = rows(&format!("{name}.tsv"));
        let shown: Vec<_> = wanted.iter().map(|row| line(&image, row)).collect();
        assert_eq!(shown, wanted, "{name}");
        let walked: Vec<_> = image
            .walk()
            .map(
                |entry| match encoded(entry.unwrap().path().as_os_str().as_bytes()) {
                    root if root.is_empty() => ".".to_owned(),
                    path => path,
                },
            )
            .collect();
        let mut listed: Vec<_> = wanted.iter().map(|row| row[0].clone()).collect();
        let mut sorted = walked.clone();
        listed.sort();
        sorted.sort();
        assert_eq!(sorted, listed, "{name}");
    }
}

#[test]
fn many_files_are_read_as_single_ones() {
    for (name, path) in images("ok") {
        let image = Image::open(&path).unwrap();
        let files: Vec<_> = image
            .walk()
            .map(Result::unwrap)
            .filter(|entry| entry.file_type().unwrap() == FileType::Regular)
            .filter(|entry| entry.metadata().unwrap().size < 1 << 24)
            .collect();
        let sizes = files.iter().map(|entry| entry.metadata().unwrap().size);
        let mut buffers: Vec<Vec<u8>> = sizes.map(|size| vec![1; size as usize]).collect();
        let jobs = files
            .iter()
            .cloned()
            .zip(buffers.iter_mut().map(Vec::as_mut_slice));
        image.read_many(jobs, 3).unwrap();
        for (entry, buffer) in files.iter().zip(&buffers) {
            let mut bytes = Vec::new();
            entry.open().unwrap().read_to_end(&mut bytes).unwrap();
            assert!(bytes == *buffer, "{name}: {entry:?}");
        }
    }
}

#[test]
fn files_have_their_first_block() {
    let (_, path) = images("ok")
        .into_iter()
        .find(|(name, _)| name == "many-fragmented")
        .unwrap();
    let image = Image::open(path).unwrap();
    let mut blocks = BTreeSet::new();
    for entry in image.walk().map(Result::unwrap) {
        if entry.file_type().unwrap() != FileType::Regular {
            continue;
        }
        let block = image.first_block(&entry).unwrap();
        let empty = entry.metadata().unwrap().size == 0;
        assert_eq!(block.is_none(), empty, "{entry:?}");
        blocks.extend(block);
    }
    assert!(blocks.len() > 10, "{}", blocks.len());
    assert!(
        blocks
            .iter()
            .all(|block| block.0 < image.reader().container().block_count())
    );
}

#[test]
fn failures() {
    for (expectation, kind) in [
        ("corrupt", ErrorKind::Corrupt),
        ("not-an-image", ErrorKind::NotAnImage),
    ] {
        for (name, path) in images(expectation) {
            let error = Image::open(&path).unwrap_err();
            assert_eq!(error.kind(), kind, "{name}: {error}");
            assert_eq!(error.path(), Some(path.as_path()));
        }
    }
    for (name, path) in images("damaged") {
        let image = Image::open(&path).unwrap();
        let files: Vec<_> = image
            .walk()
            .map(Result::unwrap)
            .filter(|entry| entry.file_type().unwrap() == FileType::Regular)
            .collect();
        let mut buffers: Vec<Vec<u8>> = Vec::new();
        for entry in &files {
            buffers.push(vec![0; entry.metadata().unwrap().size as usize]);
        }
        let jobs = files
            .into_iter()
            .zip(buffers.iter_mut().map(Vec::as_mut_slice));
        let error = image.read_many(jobs, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        assert_eq!(error.errno(), 5);
    }
}

#[test]
fn a_buffer_longer_than_its_file_is_an_error() {
    let (_, path) = images("ok").remove(0);
    let image = Image::open(path).unwrap();
    let entry = image
        .walk()
        .map(Result::unwrap)
        .find(|entry| entry.file_type().unwrap() == FileType::Regular)
        .unwrap();
    let mut buffer = vec![0; entry.metadata().unwrap().size as usize + 1];
    let error = image
        .read_many([(entry, buffer.as_mut_slice())], 1)
        .unwrap_err();
    assert!(error.to_string().contains("bytes and not"), "{error}");
    image.read_many([], 5).unwrap();
}
