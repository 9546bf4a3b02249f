//! The tools: `mkdwarfs`, `dwarfs`, `dwarfsck`, `dwarfsextract`, and `redwarfs`, which contains all four.
//!
//! This crate parses arguments, prints messages, and calls the libraries. It is a library so that the
//! programs and the generator of manual pages can share it. Each tool has `main`, which takes the
//! arguments (program name first) and returns the exit code.

pub mod common;
pub mod dwarfs;
pub mod dwarfsck;
pub mod dwarfsextract;
pub mod mkdwarfs;
#[cfg(target_env = "musl")]
mod musl;
mod pages;
pub mod universal;

pub use pages::pages;

/// All programs, for generated documentation.
#[must_use]
pub fn tools() -> Vec<common::tool::Tool> {
    vec![
        mkdwarfs::tool(),
        dwarfs::tool(),
        dwarfsck::tool(),
        dwarfsextract::tool(),
        universal::tool(),
    ]
}

/// The manual of `dwarfs-runtime`, which is no part of this library: it has none of its own code.
#[must_use]
pub fn runtime_manual() -> common::man::Manual {
    let summary = "run the program in the image behind this one";
    let text = include_str!("../manual/dwarfs-runtime.md");
    common::man::Manual::page("dwarfs-runtime", 1, summary, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_a_manual() {
        for tool in tools() {
            let manual = tool.manual();
            let titles: Vec<_> = manual.sections.iter().map(|s| s.title.as_str()).collect();
            for title in [
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "EXIT STATUS",
                "SEE ALSO",
            ] {
                assert!(titles.contains(&title), "{}: {titles:?}", manual.name);
            }
            let mut unique = titles.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), titles.len(), "{}: {titles:?}", manual.name);
            let text = manual.to_text(80, false);
            let shown = tool
                .command
                .get_arguments()
                .filter(|arg| !arg.is_hide_set());
            for arg in shown.filter_map(clap::Arg::get_long) {
                assert!(text.contains(&format!("--{arg}")), "{}: {arg}", manual.name);
            }
        }
    }
}
