//! The binary interface stays as it is: symbols, and sizes and offsets of structs, are those that are
//! stored in `tests/abi`. With `REDWARFS_UPDATE=1`, the test writes them. New lines are additions;
//! a line that goes or changes needs a new soname (`build.rs`).
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::fs;
use std::mem::offset_of;
use std::path::Path;

use redwarfs_capi::{Attributes, Code, DirEntry, Info, Io, OpenOptions};
#[cfg(feature = "write")]
use redwarfs_capi::{EntryAttributes, Summary};

fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/abi")
        .join(name);
    if std::env::var_os("REDWARFS_UPDATE").is_some() {
        fs::write(&path, found).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(stored, found, "tests/abi/{name}");
}

macro_rules! layout {
    ($text:ident, $type:ident { $($field:ident),* $(,)? }) => {
        writeln!($text, "{} {}", stringify!($type), size_of::<$type>()).unwrap();
        $(
            let name = stringify!($field).trim_end_matches('_');
            writeln!($text, "    {name} {}", offset_of!($type, $field)).unwrap();
        )*
    };
}

#[test]
#[cfg(feature = "write")]
fn structs_have_their_layout() {
    let mut text = String::new();
    layout!(
        text,
        OpenOptions {
            size,
            flags,
            threads,
            cache_size,
            offset,
            image_size,
            verification,
            reserved
        }
    );
    layout!(
        text,
        Io {
            size,
            context,
            length,
            read_at,
            release
        }
    );
    layout!(
        text,
        Info {
            version_major,
            version_minor,
            offset,
            image_size,
            original_size,
            block_size,
            blocks,
            inodes,
            files,
            digests_time,
            reserved
        }
    );
    layout!(
        text,
        Attributes {
            size,
            allocated,
            rdev,
            atime,
            mtime,
            ctime,
            atime_nsec,
            mtime_nsec,
            ctime_nsec,
            inode,
            mode,
            links,
            uid,
            gid,
            reserved
        }
    );
    layout!(
        text,
        DirEntry {
            name,
            name_length,
            inode,
            type_
        }
    );
    layout!(
        text,
        EntryAttributes {
            size,
            permissions,
            uid,
            gid,
            mtime_nsec,
            mtime
        }
    );
    layout!(
        text,
        Summary {
            image_size,
            original_size,
            blocks,
            inodes,
            errors,
            messages,
            reserved
        }
    );
    writeln!(text, "Code {}", size_of::<Code>()).unwrap();
    check("layout.txt", &text);
}

/// The functions and values of a header.
fn declared(header: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("include")
        .join(header);
    let text = fs::read_to_string(path).unwrap();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("#define REDWARFS_")
            && value.contains(' ')
        {
            found.push(format!("REDWARFS_{value}"));
        } else if let Some((name, value)) = line.trim().split_once(" = ")
            && name.starts_with("REDWARFS_")
        {
            found.push(format!("{name} {}", value.trim_end_matches(',')));
        } else if let Some((before, _)) = line.split_once('(')
            && !line.starts_with(' ')
            && let Some(at) = before.find("redwarfs_")
        {
            let name = before.rsplit([' ', '*']).next().unwrap();
            assert!(at <= before.len() - name.len());
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn the_headers_declare_the_stored_symbols() {
    let mut text = String::new();
    for header in ["redwarfs.h", "redwarfs_writer.h"] {
        let found = declared(header);
        assert!(found.len() > 10, "{found:?}");
        writeln!(text, "{header}").unwrap();
        for name in found {
            writeln!(text, "    {name}").unwrap();
        }
    }
    check("symbols.txt", &text);
}

/// The functions of both headers.
fn functions() -> Vec<String> {
    let mut found: Vec<_> = ["redwarfs.h", "redwarfs_writer.h"]
        .into_iter()
        .flat_map(declared)
        .filter(|name| name.starts_with("redwarfs_") && !name.contains(' '))
        .collect();
    found.sort();
    found
}

#[test]
fn every_function_has_a_version() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("redwarfs.map");
    let mut listed: Vec<_> = fs::read_to_string(script)
        .unwrap()
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|line| line.starts_with("redwarfs_"))
        .map(str::to_owned)
        .collect();
    listed.sort();
    assert_eq!(listed, functions());
}

#[test]
#[cfg(feature = "write")]
fn the_library_exports_what_the_headers_declare() {
    let dir = std::env::current_exe().unwrap();
    let library = dir.parent().unwrap().join("libredwarfs_capi.so");
    let nm = std::process::Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&library)
        .output();
    let Ok(nm) = nm else {
        return redwarfs_testkit::skip("the symbols of the C library", "there is no nm");
    };
    assert!(nm.status.success(), "{nm:?}");
    let text = String::from_utf8(nm.stdout).unwrap();
    let mut exported: Vec<_> = text
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .filter(|name| name.starts_with("redwarfs_"))
        .map(str::to_owned)
        .collect();
    exported.sort();
    assert_eq!(exported, functions());
}
