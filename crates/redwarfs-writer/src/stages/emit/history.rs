//! The record in an image of the program that wrote it.

use redwarfs_format::history::{HistoryEntry, HistoryVersion};

use crate::options::HistoryOptions;

/// What metadata says about the program that wrote it.
#[must_use]
pub fn program_version() -> Vec<u8> {
    concat!("redwarfs ", env!("CARGO_PKG_VERSION"))
        .as_bytes()
        .to_vec()
}

/// The history entry of an image that this version of the library writes.
#[must_use]
pub fn history_entry(options: &HistoryOptions) -> HistoryEntry {
    let number = |text: &str| text.parse().unwrap_or(0);
    HistoryEntry {
        version: HistoryVersion::of_this_library(
            number(env!("CARGO_PKG_VERSION_MAJOR")),
            number(env!("CARGO_PKG_VERSION_MINOR")),
            number(env!("CARGO_PKG_VERSION_PATCH")),
        ),
        system_id: format!("{} [{}]", system_name(), std::env::consts::ARCH),
        compiler_id: "rustc".into(),
        arguments: options.arguments.clone(),
        timestamp: options.timestamp,
        library_versions: Some(redwarfs_codec::library_versions().into_iter().collect()),
    }
}

fn system_name() -> &'static str {
    match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Darwin",
        "freebsd" => "FreeBSD",
        other => other,
    }
}
