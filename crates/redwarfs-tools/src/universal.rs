//! The universal program: picks a tool by the name it was called with, or by its first argument.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

use clap::{Arg, Command};

use crate::common::cli::{parse, prepare};
use crate::common::console::write_stderr;
use crate::common::error::{EXIT_FAILURE, EXIT_OK, display_name};
use crate::common::tool::Tool;

/// A tool's entry point.
type Main = fn(Vec<OsString>) -> u8;

/// Name, purpose and entry point of a tool.
type Member = (&'static str, &'static str, Main);

const MKDWARFS: Member = (
    "mkdwarfs",
    "build an image from a directory",
    crate::mkdwarfs::main,
);
const DWARFS: Member = ("dwarfs", "mount an image", crate::dwarfs::main);
const DWARFSCK: Member = (
    "dwarfsck",
    "inspect and verify an image",
    crate::dwarfsck::main,
);
const DWARFSEXTRACT: Member = (
    "dwarfsextract",
    "extract an image to a directory or an archive",
    crate::dwarfsextract::main,
);

/// A program that is several tools.
struct Bundle {
    name: &'static str,
    about: &'static str,
    tools: &'static [Member],
    manual: &'static str,
}

const UNIVERSAL: Bundle = Bundle {
    name: "redwarfs",
    about: "All DwarFS tools in one program",
    tools: &[MKDWARFS, DWARFS, DWARFSCK, DWARFSEXTRACT],
    manual: include_str!("../manual/redwarfs.md"),
};

const FUSE_EXTRACT: Bundle = Bundle {
    name: "redwarfs-fuse-extract",
    about: "The DwarFS tools that mount and extract, in one program",
    tools: &[DWARFS, DWARFSEXTRACT],
    manual: include_str!("../manual/redwarfs-fuse-extract.md"),
};

/// The choice that the arguments make.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// A tool by its name, found under that name or a longer one (with a version).
    Tool {
        name: &'static str,
        called: Option<String>,
        args: Vec<OsString>,
    },
    Unknown(String),
    /// The arguments name no tool.
    None(Vec<OsString>),
}

/// `name` up to the first `-` that is followed by a digit: `mkdwarfs-0.15.3` is `mkdwarfs`.
fn without_version(name: &str) -> &str {
    let bytes = name.as_bytes();
    let cut = bytes
        .windows(2)
        .position(|pair| pair[0] == b'-' && pair[1].is_ascii_digit());
    cut.map_or(name, |end| &name[..end])
}

impl Bundle {
    fn named(&self, name: &OsStr) -> Option<&'static str> {
        let name = if crate::dwarfs::is_mount_helper(name) {
            OsStr::new(DWARFS.0)
        } else {
            name
        };
        self.tools
            .iter()
            .map(|(tool, ..)| *tool)
            .find(|tool| name == *tool || (cfg!(windows) && *name == *format!("{tool}.exe")))
    }

    fn names(&self) -> Vec<&'static str> {
        self.tools.iter().map(|(tool, ..)| *tool).collect()
    }

    fn choose(&self, mut args: Vec<OsString>) -> Choice {
        let called = args
            .first()
            .map(|arg| Path::new(arg).file_name().unwrap_or_default().to_owned());
        let called = called.unwrap_or_default();
        if let Some(name) = self.named(&called) {
            return Choice::Tool {
                name,
                called: None,
                args,
            };
        }
        let called = display_name(&called);
        if let Some(name) = self.named(OsStr::new(without_version(&called))) {
            return Choice::Tool {
                name,
                called: Some(called),
                args,
            };
        }
        let first = args.get(1);
        if let Some(name) = first.and_then(|arg| self.named(arg)) {
            args.remove(1);
            return Choice::Tool {
                name,
                called: None,
                args,
            };
        }
        let wanted = first
            .and_then(|arg| arg.to_str())
            .and_then(|arg| arg.strip_prefix("--tool="));
        match wanted.map(str::to_owned) {
            Some(wanted) => match self.named(OsStr::new(&wanted)) {
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
            None => Choice::None(args),
        }
    }

    fn tool(&self) -> Tool {
        Tool::new(self.command(), self.manual)
    }

    fn command(&self) -> Command {
        let mut tools = String::from("Tools:\n");
        for (name, about, _) in self.tools {
            tools.push_str(&format!("  {name:<15} {about}\n"));
        }
        tools.push_str(&format!(
            "\nCalled by the name of a tool, through a link for example, this program is that\n\
             tool. A version may follow the name: {}-1.0. mount(8) looks for the name\n\
             mount.dwarfs.",
            self.tools.first().map_or("", |(tool, ..)| tool)
        ));
        let name = self.name;
        prepare(Command::new(name))
            .about(self.about)
            .override_usage(format!(
                "{name} NAME [OPTIONS...]\n       {name} --tool=NAME [OPTIONS...]"
            ))
            .arg(
                Arg::new("tool")
                    .long("tool")
                    .value_name("NAME")
                    .require_equals(true)
                    .value_parser(self.names())
                    .help(
                        "The tool to be; must come first, all other arguments are the tool's own",
                    ),
            )
            .after_help(tools)
    }

    fn run(&self, args: Vec<OsString>) -> u8 {
        match self.choose(args) {
            Choice::Tool { name, called, args } => {
                if let Some(called) = called {
                    write_stderr(&format!("running {called} as {name}"));
                }
                match self.tools.iter().find(|(tool, ..)| *tool == name) {
                    Some((_, _, run)) => run(args),
                    None => EXIT_FAILURE,
                }
            }
            Choice::Unknown(wanted) => crate::common::ToolError::new(format!("no tool '{wanted}'"))
                .hint(format!("one of {}", self.names().join(", ")))
                .report(self.name),
            Choice::None(args) if args.len() > 1 => match parse(&self.tool(), &args) {
                Ok(_) => crate::common::ToolError::new("the tool has to be the first argument")
                    .report(self.name),
                Err(code) => code,
            },
            Choice::None(_) => {
                let help = self.command().render_help().to_string();
                let _ = std::io::stdout().write_all(help.as_bytes());
                EXIT_OK
            }
        }
    }
}

/// The command line and the manual.
#[must_use]
pub fn tool() -> Tool {
    UNIVERSAL.tool()
}

/// Runs the tool that `args` (program name first) selects. Returns the exit code.
#[must_use]
pub fn main(args: Vec<OsString>) -> u8 {
    UNIVERSAL.run(args)
}

/// The same for the program that mounts and extracts and can do nothing else, which makes it small.
#[must_use]
pub fn fuse_extract_main(args: Vec<OsString>) -> u8 {
    FUSE_EXTRACT.run(args)
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
                vec!["redwarfs", "mkdwarfs", "-h"],
                tool("mkdwarfs", None, &["redwarfs", "-h"]),
            ),
            (
                vec!["/opt/redwarfs-1.0", "dwarfsck", "--tool=dwarfs"],
                tool("dwarfsck", None, &["/opt/redwarfs-1.0", "--tool=dwarfs"]),
            ),
            (
                vec!["dwarfsck", "mkdwarfs"],
                tool("dwarfsck", None, &["dwarfsck", "mkdwarfs"]),
            ),
            (
                vec!["redwarfs", "--tool=foo"],
                Choice::Unknown("foo".to_owned()),
            ),
            (
                vec!["/sbin/mount.dwarfs2", "a"],
                tool("dwarfs", None, &["/sbin/mount.dwarfs2", "a"]),
            ),
        ];
        for list in [
            vec!["redwarfs", "a", "--tool=dwarfs"],
            vec!["redwarfs", "a", "mkdwarfs"],
            vec!["redwarfs", "mkdwarfs-1.0"],
            vec!["redwarfs"],
            vec!["mkdwarfs.old"],
            vec!["mkdwarfs-x"],
            vec![],
        ] {
            assert_eq!(UNIVERSAL.choose(args(&list)), Choice::None(args(&list)));
        }
        for (list, want) in cases {
            assert_eq!(UNIVERSAL.choose(args(&list)), want, "{list:?}");
        }
        let called = ["/tmp/dwarfsextract-1.0", "-h"];
        assert!(matches!(
            FUSE_EXTRACT.choose(args(&called)),
            Choice::Tool {
                name: "dwarfsextract",
                ..
            }
        ));
        for list in [["mkdwarfs", "-h"], ["x", "dwarfsck"]] {
            assert_eq!(FUSE_EXTRACT.choose(args(&list)), Choice::None(args(&list)));
        }
        assert_eq!(
            FUSE_EXTRACT.choose(args(&["x", "--tool=mkdwarfs"])),
            Choice::Unknown("mkdwarfs".to_owned())
        );
    }
}
