//! A cargo feature of a program reaches every crate below it. In a build of the whole workspace it does in
//! any case, because Cargo unites features; the users build one package.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A feature of a crate.
type Feature = (String, String);

/// The crates of the workspace: what each feature turns on, and the crates that each one calls.
struct Workspace {
    enables: BTreeMap<Feature, Vec<String>>,
    calls: BTreeMap<String, Vec<String>>,
}

impl Workspace {
    fn read() -> Self {
        let out = Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .output()
            .unwrap();
        let metadata: Value = serde_json::from_slice(&out.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut found = Self {
            enables: BTreeMap::new(),
            calls: BTreeMap::new(),
        };
        for package in metadata["packages"].as_array().unwrap() {
            let name = text(&package["name"]);
            for (feature, values) in package["features"].as_object().unwrap() {
                let values = values.as_array().unwrap().iter().map(text).collect();
                found
                    .enables
                    .insert((name.clone(), feature.clone()), values);
            }
            let dependencies = package["dependencies"].as_array().unwrap().iter();
            let calls = dependencies
                .filter(|dependency| dependency["kind"].is_null())
                .map(|dependency| text(&dependency["name"]))
                .filter(|name| name.starts_with("redwarfs"));
            found.calls.insert(name, calls.collect());
        }
        found
    }

    /// All that a feature turns on, itself included.
    fn closure(&self, start: Feature) -> BTreeSet<Feature> {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(feature) = open.pop() {
            for value in self.enables.get(&feature).into_iter().flatten() {
                let (name, wanted) = value.split_once('/').unwrap_or((&feature.0, value));
                open.push((name.trim_end_matches('?').to_owned(), wanted.to_owned()));
            }
            if !seen.insert(feature) {
                continue;
            }
            open.retain(|feature| !seen.contains(feature));
        }
        seen
    }

    /// All crates below one.
    fn below(&self, name: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut open = vec![name.to_owned()];
        while let Some(name) = open.pop() {
            for called in self.calls.get(&name).into_iter().flatten() {
                if seen.insert(called.clone()) {
                    open.push(called.clone());
                }
            }
        }
        seen
    }

    /// Whether a feature turns on something besides features of other crates.
    fn has_effect(&self, feature: &Feature) -> bool {
        self.enables.get(feature).is_none_or(Vec::is_empty)
    }

    /// Features below `(name, feature)` that have the same name, would turn something on, and stay off.
    fn forgotten(&self, name: &str, feature: &str) -> Vec<Feature> {
        let on = self.closure((name.to_owned(), feature.to_owned()));
        let below = self.below(name).into_iter();
        let same = below.map(|called| (called, feature.to_owned()));
        same.filter(|same| {
            let parts = self.closure(same.clone());
            self.enables.contains_key(same)
                && parts
                    .iter()
                    .any(|part| self.has_effect(part) && !on.contains(part))
        })
        .collect()
    }
}

#[test]
fn a_feature_of_a_program_reaches_all_crates_below() {
    let workspace = Workspace::read();
    let mut checked = 0;
    for name in ["redwarfs-tools", "redwarfs", "redwarfs-runtime"] {
        let features = workspace
            .enables
            .keys()
            .filter(|(package, _)| package == name);
        for (_, feature) in features.filter(|(_, feature)| feature != "default") {
            let mut forgotten = workspace.forgotten(name, feature);
            // The runtime extracts directories. It writes no archives, which this feature compresses.
            if name == "redwarfs-runtime" {
                forgotten.retain(|(called, feature)| {
                    (called.as_str(), feature.as_str()) != ("redwarfs-extractor", "zstd")
                });
            }
            assert!(
                forgotten.is_empty(),
                "{name}/{feature} does not reach {forgotten:?}"
            );
            checked += 1;
        }
    }
    assert!(checked > 15, "{checked}");
}

#[test]
fn a_forgotten_feature_is_found() {
    let mut workspace = Workspace::read();
    let feature = ("redwarfs-tools".to_owned(), "zstd".to_owned());
    let values = workspace.enables.get_mut(&feature).unwrap();
    values.retain(|value| !value.starts_with("redwarfs-extractor"));
    let forgotten = workspace.forgotten("redwarfs-tools", "zstd");
    assert_eq!(
        forgotten,
        [("redwarfs-extractor".to_owned(), "zstd".to_owned())]
    );
}
