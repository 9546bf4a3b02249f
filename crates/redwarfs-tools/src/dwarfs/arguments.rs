//! The command line, which follows the conventions of FUSE programs and of mount(8).

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::entry::MountOption;
use super::exit::{EXIT_NO_IMAGE, EXIT_SETUP};
use super::table::OPTIONS;
use crate::common::error::{Result, ToolError, display_name};
use crate::common::os::{argument, argument_bytes, is_escaped};
use crate::common::suggest::similar;

/// The request of the user.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Help,
    Manual,
    Version,
    Mount(Box<Arguments>),
    Control(Control),
}

/// A request to change or list the images of a mount.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(windows, allow(dead_code))]
pub(super) struct Control {
    /// The socket or the mount point.
    pub(super) target: PathBuf,
    /// A command and its values.
    pub(super) command: Vec<OsString>,
    /// Print JSON.
    pub(super) json: bool,
}

/// A request to mount, with uninterpreted options.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) image: PathBuf,
    /// Not on Windows: arguments that name the images of a mount of several ones. Then `image` is empty.
    pub(super) several: Option<Vec<OsString>>,
    /// None with `--auto-mountpoint`.
    pub(super) mountpoint: Option<PathBuf>,
    pub(super) foreground: bool,
    pub(super) debug: bool,
    /// Do everything but mount.
    pub(super) fake: bool,
    /// Say what happens.
    pub(super) verbose: bool,
    /// Called by mount(8).
    pub(super) helper: bool,
    /// Single options without escapes, in order.
    pub(super) options: Vec<OsString>,
}

/// Whether a program of this name is called by mount(8), as a helper for a type of file system.
pub(crate) fn is_mount_helper(name: &OsStr) -> bool {
    [
        "mount.dwarfs",
        "mount.dwarfs2",
        "mount.fuse.dwarfs",
        "mount.fuse3.dwarfs",
    ]
    .iter()
    .any(|known| name == *known)
}

/// Understands `args` (without the program's name). For a `helper` of mount(8) some flags mean
/// something else: `-f` is "fake", and `-N` has a value.
pub(super) fn parse(args: impl IntoIterator<Item = OsString>, helper: bool) -> Result<Request> {
    let mut found = Arguments {
        helper,
        ..Arguments::default()
    };
    let mut positional = Vec::new();
    let mut auto = false;
    let (mut control, mut json) = (None, false);
    let mut only_positional = false;
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let bytes = argument_bytes(&arg);
        let bytes = bytes.as_ref();
        if only_positional || bytes.len() < 2 || bytes.first() != Some(&b'-') {
            positional.push(arg.clone());
            continue;
        }
        match bytes {
            b"--" => only_positional = true,
            b"--help" => return Ok(Request::Help),
            b"--version" => return Ok(Request::Version),
            b"--man" => return Ok(Request::Manual),
            b"--auto-mountpoint" => auto = true,
            b"--ctl" => {
                let value = args
                    .next()
                    .ok_or_else(|| ToolError::new("option '--ctl' needs a value"))?;
                control = Some(PathBuf::from(value));
            }
            b"--json" | b"-j" if control.is_some() => json = true,
            b"--prefetch" => {
                let value = args
                    .next()
                    .ok_or_else(|| ToolError::new("option '--prefetch' needs a value"))?;
                found.options.push(prefetch(&argument_bytes(&value)));
            }
            _ if bytes.starts_with(b"--prefetch=") => {
                let value = bytes.get(b"--prefetch=".len()..).unwrap_or_default();
                found.options.push(prefetch(value));
            }
            b"--log-file" => {
                let value = args
                    .next()
                    .ok_or_else(|| ToolError::new("option '--log-file' needs a value"))?;
                found.options.push(log_file(&argument_bytes(&value)));
            }
            _ if bytes.starts_with(b"--log-file=") => {
                let value = bytes.get(b"--log-file=".len()..).unwrap_or_default();
                found.options.push(log_file(value));
            }
            _ if bytes.starts_with(b"--") => return Err(unknown(&arg)),
            _ => {
                let flags = bytes.iter().skip(1).enumerate();
                for (at, flag) in flags {
                    match flag {
                        b'f' if helper => found.fake = true,
                        b'v' if helper => found.verbose = true,
                        b'f' => found.foreground = true,
                        b'd' => found.debug = true,
                        b'h' => return Ok(Request::Help),
                        b'V' => return Ok(Request::Version),
                        // One thread reads requests anyway; the others come from mount(8).
                        b's' | b'n' | b'v' | b'r' | b'w' => {}
                        b'o' | b't' | b'N' if helper || *flag != b'N' => {
                            let rest = bytes.get(at + 2..).unwrap_or_default();
                            let value = if rest.is_empty() {
                                args.next().ok_or_else(|| {
                                    ToolError::new(format!(
                                        "option '-{}' needs a value",
                                        char::from(*flag)
                                    ))
                                })?
                            } else {
                                argument(rest.to_vec())
                            };
                            if *flag == b'o' {
                                split(&argument_bytes(&value), &mut found.options);
                            }
                            break;
                        }
                        _ => return Err(unknown(&arg)),
                    }
                }
            }
        }
    }
    if let Some(target) = control {
        return Ok(Request::Control(Control {
            target,
            command: positional,
            json,
        }));
    }
    if let Some(directory) = directory_of_several(&found.options) {
        if positional.is_empty() {
            return Err(ToolError::new("no filesystem image specified")
                .hint(USAGE_OF_SEVERAL)
                .code(EXIT_NO_IMAGE));
        }
        if auto {
            return Err(ToolError::new("cannot combine dir with --auto-mountpoint"));
        }
        found.mountpoint = Some(directory);
        found.several = Some(positional);
        return Ok(Request::Mount(Box::new(found)));
    }
    let mut positional = positional.into_iter();
    let Some(image) = positional.next() else {
        return Err(ToolError::new("no filesystem image specified")
            .hint(USAGE)
            .code(EXIT_NO_IMAGE));
    };
    found.image = image_path(image);
    found.mountpoint = positional.next().map(PathBuf::from);
    if positional.next().is_some() {
        return Err(ToolError::new("too many non-option arguments"));
    }
    match (&found.mountpoint, auto) {
        (Some(_), true) => Err(ToolError::new(
            "cannot combine <mountpoint> with --auto-mountpoint",
        )),
        (None, false) => Err(ToolError::new("no mountpoint specified").hint(USAGE)),
        _ => Ok(Request::Mount(Box::new(found))),
    }
}

/// The value of the option `dir`, with which all other arguments are images.
fn directory_of_several(options: &[OsString]) -> Option<PathBuf> {
    let value = |option: &OsString| {
        let bytes = argument_bytes(option);
        let value = bytes.strip_prefix(b"dir=")?;
        Some(PathBuf::from(argument(value.to_vec())))
    };
    options.iter().rev().find_map(value)
}

/// Options with two dashes.
const LONG: [&str; 7] = [
    "--ctl",
    "--help",
    "--version",
    "--man",
    "--auto-mountpoint",
    "--log-file",
    "--prefetch",
];

fn unknown(arg: &OsStr) -> ToolError {
    let name = display_name(arg);
    let meant = name.strip_prefix("--").and_then(|bare| {
        let bare = bare.split('=').next().unwrap_or(bare);
        // What mount(8) calls `-o NAME` is often tried with dashes.
        let options = OPTIONS.iter().flat_map(MountOption::names);
        let exact = options.into_iter().find(|option| option == bare);
        let long = || similar(bare, LONG.map(|long| long.trim_start_matches('-')));
        match exact {
            Some(option) => Some(format!("-o {option}")),
            None => long().map(|long| format!("--{long}")),
        }
    });
    let hint = match meant {
        Some(meant) => format!("did you mean '{meant}'?"),
        None => "try 'dwarfs --help'".to_owned(),
    };
    ToolError::new(format!("unknown option: {name}"))
        .hint(hint)
        .code(EXIT_SETUP)
}

/// The mandatory arguments.
const USAGE: &str = "dwarfs IMAGE MOUNTPOINT";
const USAGE_OF_SEVERAL: &str = "dwarfs -o dir=MOUNTPOINT [NAME=]IMAGE...";

fn log_file(path: &[u8]) -> OsString {
    argument([b"log_file=", path].concat())
}

fn prefetch(pattern: &[u8]) -> OsString {
    argument([b"prefetch=", pattern].concat())
}

/// `/etc/fstab` may put the file system type before the path: `dwarfs#/path`.
fn image_path(arg: OsString) -> PathBuf {
    let path = argument_bytes(&arg);
    match path.strip_prefix(b"dwarfs#") {
        Some(path) => PathBuf::from(argument(path.to_vec())),
        None => PathBuf::from(arg),
    }
}

/// Splits an option list at its commas; a backslash can take the next byte literally.
fn split(list: &[u8], out: &mut Vec<OsString>) {
    let mut current = Vec::new();
    let mut bytes = list.iter().copied().peekable();
    let mut flush = |current: &mut Vec<u8>| {
        if !current.is_empty() {
            out.push(argument(std::mem::take(current)));
        }
    };
    while let Some(byte) = bytes.next() {
        match byte {
            b',' => flush(&mut current),
            b'\\' => current.push(bytes.next_if(|&next| is_escaped(next)).unwrap_or(b'\\')),
            _ => current.push(byte),
        }
    }
    flush(&mut current);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_list(list: &[&str]) -> Result<Request> {
        parse(list.iter().map(OsString::from), false)
    }

    fn mount(list: &[&str]) -> Arguments {
        match parse_list(list) {
            Ok(Request::Mount(arguments)) => *arguments,
            other => panic!("{list:?} gave {other:?}"),
        }
    }

    #[test]
    fn forms() {
        let found = mount(&[
            "-f",
            "a.dwarfs",
            "-o",
            "x=1,y",
            "mnt",
            "-oz,a\\,b",
            "-fo",
            "q",
        ]);
        assert_eq!(found.image, PathBuf::from("a.dwarfs"));
        assert_eq!(found.mountpoint, Some(PathBuf::from("mnt")));
        assert!(found.foreground && !found.debug);
        assert_eq!(found.options, ["x=1", "y", "z", "a,b", "q"]);
        let found = mount(&["-sdf", "-ox,,y,", "--", "dwarfs#-a", "-m"]);
        assert_eq!(found.image, PathBuf::from("-a"));
        assert_eq!(found.mountpoint, Some(PathBuf::from("-m")));
        assert!(found.foreground && found.debug);
        assert_eq!(found.options, ["x", "y"]);
        let found = mount(&["a", "--auto-mountpoint", "-t", "dwarfs", "-n"]);
        assert_eq!(found.mountpoint, None);
        let found = mount(&["a", "b", "--log-file", "x,y", "--log-file=z", "-o", "q"]);
        assert_eq!(found.options, ["log_file=x,y", "log_file=z", "q"]);
        let found = mount(&["a", "b", "--prefetch", "{x,y}", "--prefetch=z"]);
        assert_eq!(found.options, ["prefetch={x,y}", "prefetch=z"]);
    }

    #[test]
    fn backslashes_in_lists() {
        let [alone, before, path] = match cfg!(windows) {
            true => [r"a\\", r"a\b", r"p=C:\x\y"],
            false => [r"a\", "ab", "p=C:xy"],
        };
        for (list, want) in [
            (r"a\\", vec![alone]),
            (r"a\b", vec![before]),
            (r"p=C:\x\y", vec![path]),
            (r"a\", vec![r"a\"]),
            (r"a\,b,c", vec!["a,b", "c"]),
        ] {
            assert_eq!(mount(&["a", "b", "-o", list]).options, want, "{list}");
        }
    }

    #[test]
    fn helpers_of_mount_have_other_flags() {
        let list = [
            "a",
            "b",
            "-fnsv",
            "-N",
            "/proc/1/ns/mnt",
            "-t",
            "dwarfs",
            "-o",
            "rw,x",
        ];
        let found = parse(list.iter().map(OsString::from), true).expect("understood");
        let Request::Mount(found) = found else {
            panic!("{found:?}")
        };
        assert!(found.fake && found.verbose && !found.foreground);
        assert_eq!(found.options, ["rw", "x"]);
        assert_eq!(found.mountpoint, Some(PathBuf::from("b")));
        for (name, helper) in [
            ("mount.dwarfs", true),
            ("mount.fuse.dwarfs", true),
            ("mount", false),
            ("dwarfs", false),
        ] {
            assert_eq!(is_mount_helper(OsStr::new(name)), helper);
        }
    }

    #[test]
    fn questions() {
        for list in [&["-h"][..], &["a", "--help"], &["-fh"]] {
            assert_eq!(parse_list(list), Ok(Request::Help));
        }
        assert_eq!(parse_list(&["--version", "x"]), Ok(Request::Version));
        assert_eq!(parse_list(&["-V"]), Ok(Request::Version));
        assert_eq!(parse_list(&["x", "--man"]), Ok(Request::Manual));
    }

    #[test]
    fn mistyped_options_are_recognized() {
        for (option, want) in [
            ("--auto-mountpiont", "did you mean '--auto-mountpoint'?"),
            ("--logfile=x", "did you mean '--log-file'?"),
            ("--offset=auto", "did you mean '-o offset'?"),
            ("--allow_other", "did you mean '-o allow_other'?"),
            ("--xyzzy", "try 'dwarfs --help'"),
            ("-x", "try 'dwarfs --help'"),
        ] {
            let error = parse_list(&["a", "b", option]).expect_err("a mistake");
            let line = error.full_line("dwarfs");
            assert_eq!(line, format!("dwarfs: unknown option: {option} ({want})"));
        }
    }

    #[test]
    fn several_images() {
        let found = mount(&["-o", "dir=mnt,workers=1", "a", "n=b", "-f", "c"]);
        assert_eq!(found.mountpoint, Some(PathBuf::from("mnt")));
        assert_eq!(found.several.unwrap(), ["a", "n=b", "c"]);
        assert!(found.foreground);
        assert_eq!(
            mount(&["a", "-odir=x", "-odir=y"]).mountpoint,
            Some("y".into())
        );
        let control = parse_list(&["--ctl", "mnt", "add", "n=b", "c"]);
        let wanted = Control {
            target: PathBuf::from("mnt"),
            command: ["add", "n=b", "c"].map(OsString::from).to_vec(),
            json: false,
        };
        assert_eq!(control, Ok(Request::Control(wanted)));
        match parse_list(&["--ctl", "mnt", "list", "-j"]) {
            Ok(Request::Control(control)) => assert!(control.json),
            other => panic!("{other:?}"),
        }
        // Without `--ctl`, it is no option.
        assert!(parse_list(&["a", "b", "-j"]).is_err());
        for (list, text) in [
            (&["-odir=x"][..], "no filesystem image specified"),
            (&["-odir=x", "a", "--auto-mountpoint"], "cannot combine dir"),
            (&["--ctl"], "option '--ctl' needs a value"),
        ] {
            let line = parse_list(list).expect_err("a mistake").line("dwarfs");
            assert!(line.contains(text), "{line}");
        }
    }

    #[test]
    fn mistakes() {
        let table: [(&[&str], &str, u8); 9] = [
            (&[], "no filesystem image specified", 1),
            (&["a"], "no mountpoint specified", 1),
            (&["a", "b", "c"], "too many non-option arguments", 1),
            (
                &["a", "b", "--auto-mountpoint"],
                "cannot combine <mountpoint> with --auto-mountpoint",
                1,
            ),
            (&["a", "b", "-x"], "unknown option: -x", 3),
            (&["a", "b", "--bogus"], "unknown option: --bogus", 3),
            (&["a", "b", "-o"], "option '-o' needs a value", 1),
            (&["a", "--log-file"], "option '--log-file' needs a value", 1),
            (&["a", "b", "-N", "x"], "unknown option: -N", 3),
        ];
        for (list, text, code) in table {
            let error = parse_list(list).expect_err("a mistake");
            assert_eq!(error.line("dwarfs"), format!("dwarfs: {text}"), "{list:?}");
            assert_eq!(error.exit_code(), code, "{list:?}");
        }
    }
}
