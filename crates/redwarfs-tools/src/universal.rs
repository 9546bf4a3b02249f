//! The universal program: picks a tool by the name it was called with.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::common::cli::banner;
use crate::common::console::write_stderr;
use crate::common::error::{EXIT_FAILURE, EXIT_OK, display_name};

/// A tool's entry point.
type Main = fn(Vec<OsString>) -> u8;

const TOOLS: [(&str, &str, Main); 4] = [
    (
        "mkdwarfs",
        "build an image from a directory",
        crate::mkdwarfs::main,
    ),
    ("dwarfs", "mount an image", crate::dwarfs::main),
    (
        "dwarfsck",
        "inspect and verify an image",
        crate::dwarfsck::main,
    ),
    (
        "dwarfsextract",
        "extract an image to a directory or an archive",
        crate::dwarfsextract::main,
    ),
];

/// What the arguments ask for.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// A tool by its name, found under that name or a longer one (with a version).
    Tool {
        name: &'static str,
        called: Option<String>,
        args: Vec<OsString>,
    },
    Unknown(String),
    Help,
}

fn tool_named(name: &OsStr) -> Option<&'static str> {
    TOOLS
        .iter()
        .map(|(tool, ..)| *tool)
        .find(|tool| name == *tool)
}

/// `name` up to the first `-` that is followed by a digit: `mkdwarfs-0.15.3` is `mkdwarfs`.
fn without_version(name: &str) -> &str {
    let bytes = name.as_bytes();
    let cut = bytes
        .windows(2)
        .position(|pair| pair[0] == b'-' && pair[1].is_ascii_digit());
    cut.map_or(name, |end| &name[..end])
}

fn choose(mut args: Vec<OsString>) -> Choice {
    let called = args
        .first()
        .map(|arg| Path::new(arg).file_name().unwrap_or_default().to_owned());
    let called = called.unwrap_or_default();
    if let Some(name) = tool_named(&called) {
        return Choice::Tool {
            name,
            called: None,
            args,
        };
    }
    let called = display_name(&called);
    if let Some(name) = tool_named(OsStr::new(without_version(&called))) {
        return Choice::Tool {
            name,
            called: Some(called),
            args,
        };
    }
    let wanted = args
        .get(1)
        .and_then(|arg| arg.to_str())
        .and_then(|arg| arg.strip_prefix("--tool="));
    match wanted.map(str::to_owned) {
        Some(wanted) => match tool_named(OsStr::new(&wanted)) {
            Some(name) => {
                args.remove(1);
                Choice::Tool {
                    name,
                    called: None,
                    args,
                }
            }
            None => Choice::Unknown(wanted),
        },
        None => Choice::Help,
    }
}

fn help() -> String {
    let mut text = banner("redwarfs");
    text.push_str("\nUsage: redwarfs --tool=NAME [OPTIONS...]\n");
    text.push_str("\nThe first argument selects a tool; so does a link to this program with the name of a tool,\n");
    text.push_str("optionally followed by a version (mkdwarfs-1.0).\n\nTools:\n");
    for (name, about, _) in TOOLS {
        text.push_str(&format!("  {name:<15} {about}\n"));
    }
    text
}

/// Runs the tool that `args` (program name first) selects. Returns the exit code.
#[must_use]
pub fn main(args: Vec<OsString>) -> u8 {
    match choose(args) {
        Choice::Tool { name, called, args } => {
            if let Some(called) = called {
                write_stderr(&format!("running {called} as {name}"));
            }
            match TOOLS.iter().find(|(tool, ..)| *tool == name) {
                Some((_, _, run)) => run(args),
                None => EXIT_FAILURE,
            }
        }
        Choice::Unknown(wanted) => crate::common::ToolError::new(format!("no tool '{wanted}'"))
            .hint("one of mkdwarfs, dwarfs, dwarfsck, dwarfsextract")
            .report("redwarfs"),
        Choice::Help => {
            use std::io::Write;
            let _ = std::io::stdout().write_all(help().as_bytes());
            EXIT_OK
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    #[test]
    fn selection() {
        let tool = |name, called: Option<&str>, rest: &[&str]| Choice::Tool {
            name,
            called: called.map(str::to_owned),
            args: args(rest),
        };
        let cases = [
            (
                vec!["/usr/bin/dwarfsck", "x"],
                tool("dwarfsck", None, &["/usr/bin/dwarfsck", "x"]),
            ),
            (
                vec!["mkdwarfs-0.15.3", "-h"],
                tool(
                    "mkdwarfs",
                    Some("mkdwarfs-0.15.3"),
                    &["mkdwarfs-0.15.3", "-h"],
                ),
            ),
            (
                vec!["redwarfs", "--tool=dwarfs", "a"],
                tool("dwarfs", None, &["redwarfs", "a"]),
            ),
            (
                vec!["redwarfs", "--tool=foo"],
                Choice::Unknown("foo".to_owned()),
            ),
            (vec!["redwarfs", "a", "--tool=dwarfs"], Choice::Help),
            (vec!["redwarfs"], Choice::Help),
            (vec!["mkdwarfs.old"], Choice::Help),
            (vec!["mkdwarfs-x"], Choice::Help),
            (vec![], Choice::Help),
        ];
        for (list, want) in cases {
            assert_eq!(choose(args(&list)), want, "{list:?}");
        }
    }
}
