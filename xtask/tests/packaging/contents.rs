//! What `xtask` lists of the libraries that are linked.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::{XTASK, run, temp};

#[test]
fn the_bill_of_materials_is_complete_and_repeatable() {
    let (one, two) = (temp(), temp());
    for dir in [&one, &two] {
        run(Command::new(XTASK).arg("sbom").arg(dir.path()));
    }
    let text = fs::read_to_string(one.path().join("redwarfs.cdx.json")).unwrap();
    assert_eq!(
        text,
        fs::read_to_string(two.path().join("redwarfs.cdx.json")).unwrap()
    );
    let bill: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    let components = bill["components"].as_array().unwrap();
    let refs: BTreeSet<&str> = components
        .iter()
        .map(|c| c["bom-ref"].as_str().unwrap())
        .collect();
    assert_eq!(refs.len(), components.len(), "names are unique");
    for library in ["zstd", "lz4", "liblzma", "flac", "lua"] {
        let start = format!("pkg:generic/{library}@");
        assert!(
            refs.iter().any(|name| name.starts_with(&start)),
            "{library} in {refs:?}"
        );
    }
    // Every crate has its checksum; nothing of tests and builds is in it.
    for component in components {
        let name = component["bom-ref"].as_str().unwrap();
        assert_eq!(
            name.starts_with("pkg:cargo/"),
            component["hashes"].is_array(),
            "{component}"
        );
        assert!(
            !name.contains("/tempfile@") && !name.contains("/cc@"),
            "{name}"
        );
    }
    let mut used = BTreeSet::new();
    for dependency in bill["dependencies"].as_array().unwrap() {
        for name in dependency["dependsOn"].as_array().unwrap() {
            used.insert(name.as_str().unwrap());
        }
    }
    assert_eq!(
        used, refs,
        "every component is used by something, and everything used is there"
    );
}

#[test]
fn licences_of_everything_that_is_linked_are_listed() {
    let dir = temp();
    run(Command::new(XTASK).arg("licences").arg(dir.path()));
    let text = fs::read_to_string(dir.path().join("third-party-licences.txt")).unwrap();
    for part in [
        "Copyright (c) Meta Platforms, Inc.",
        "Yann Collet",
        "Permission to use, copy, modify, and/or distribute this\nsoftware for any",
        "Xiph.Org Foundation",
        "Lua.org, PUC-Rio",
    ] {
        assert!(text.contains(part), "no {part:?}");
    }
    assert!(
        !text.contains("GENERAL PUBLIC LICENSE"),
        "a text of the GPL"
    );
    run(Command::new(XTASK)
        .arg("licences")
        .arg(dir.path())
        .arg("x86_64-unknown-linux-musl"));
    let text = fs::read_to_string(dir.path().join("third-party-licences.txt")).unwrap();
    assert!(text.contains("\nmusl "), "static programs contain musl");
}
