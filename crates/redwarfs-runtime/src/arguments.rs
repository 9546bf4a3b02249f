//! What the command line asks for.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use redwarfs_format::elf::appimage::{SIGNATURE, UPDATE_INFORMATION};

use crate::error::{EXIT_FAILURE, Failure, Result};
use crate::portable::Portable;

/// Beginnings of the names of our options. Everything else belongs to the program.
const PREFIXES: [&[u8]; 2] = [b"--appimage-", b"--runtime-"];

/// How the contents of the image become a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// As the environment says.
    Usual,
    /// By extraction.
    Extract,
    /// By a mount in a namespace of its own.
    OwnNamespace,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Run the program in the image with these arguments.
    Run {
        way: Way,
        arguments: Vec<OsString>,
    },
    /// Extract what matches one of the patterns, or everything.
    Extract {
        patterns: Vec<OsString>,
    },
    /// Mount, print the mount point and wait.
    Mount,
    /// Compare the image with its checksums.
    Check,
    /// Print where the image starts.
    Offset,
    /// Create a directory that the program gets in place of one of the user's.
    Portable(Portable),
    /// Print what a tool for AppImages has put into a section of the program.
    Section(&'static str),
    Help,
    Version,
}

/// Reads the arguments behind the program's name. Only the first one can be an option of the runtime, so that a
/// program can get every other argument, whatever it looks like.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Request> {
    let run = |way, arguments: &[OsString]| Request::Run {
        way,
        arguments: arguments.to_vec(),
    };
    let Some((first, rest)) = arguments.split_first() else {
        return Ok(run(Way::Usual, &[]));
    };
    let Some(name) = option_name(first) else {
        return Ok(run(Way::Usual, arguments));
    };
    if let Some(portable) = Portable::of_option(name) {
        return Ok(Request::Portable(portable));
    }
    Ok(match name {
        b"extract" => Request::Extract {
            patterns: rest.to_vec(),
        },
        b"extract-and-run" => run(Way::Extract, rest),
        b"unshare" => run(Way::OwnNamespace, rest),
        b"mount" => Request::Mount,
        b"check" => Request::Check,
        b"offset" => Request::Offset,
        b"updateinfo" | b"updateinformation" => Request::Section(UPDATE_INFORMATION),
        b"signature" => Request::Section(SIGNATURE),
        b"help" => Request::Help,
        b"version" => Request::Version,
        _ => {
            let shown = first.display();
            return Err(
                Failure::new(format_args!("no such option: {shown}: see --appimage-help"))
                    .code(EXIT_FAILURE),
            );
        }
    })
}

/// The name of an option of the runtime behind its prefix.
fn option_name(argument: &OsStr) -> Option<&[u8]> {
    let bytes = argument.as_bytes();
    PREFIXES
        .iter()
        .find_map(|prefix| bytes.strip_prefix(*prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Request> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        parse(&arguments)
    }

    fn run(way: Way, arguments: &[&str]) -> Result<Request> {
        Ok(Request::Run {
            way,
            arguments: arguments.iter().map(OsString::from).collect(),
        })
    }

    #[test]
    fn only_the_first_argument_is_an_option() {
        assert_eq!(parsed(&[]), run(Way::Usual, &[]));
        assert_eq!(parsed(&["-h", "x"]), run(Way::Usual, &["-h", "x"]));
        assert_eq!(
            parsed(&["x", "--appimage-help"]),
            run(Way::Usual, &["x", "--appimage-help"])
        );
        assert_eq!(
            parsed(&["--appimage-extract-and-run", "--appimage-help"]),
            run(Way::Extract, &["--appimage-help"])
        );
        assert_eq!(
            parsed(&["--runtime-unshare", "a"]),
            run(Way::OwnNamespace, &["a"])
        );
    }

    #[test]
    fn both_prefixes_name_the_same_options() {
        for prefix in ["--appimage-", "--runtime-"] {
            for (name, request) in [
                ("mount", Request::Mount),
                ("check", Request::Check),
                ("offset", Request::Offset),
                ("help", Request::Help),
                ("version", Request::Version),
                ("signature", Request::Section(".sha256_sig")),
                ("updateinfo", Request::Section(".upd_info")),
                ("updateinformation", Request::Section(".upd_info")),
                ("portable-home", Request::Portable(Portable::Home)),
                ("extract", Request::Extract { patterns: vec![] }),
            ] {
                assert_eq!(parsed(&[&format!("{prefix}{name}")]), Ok(request));
            }
        }
        assert_eq!(
            parsed(&["--appimage-extract", "usr/*", "lib"]),
            Ok(Request::Extract {
                patterns: vec!["usr/*".into(), "lib".into()]
            })
        );
    }

    #[test]
    fn unknown_options_are_refused() {
        let failure = parsed(&["--appimage-frobnicate"]).unwrap_err();
        assert_eq!(failure.code, EXIT_FAILURE);
        assert!(failure.text.contains("--appimage-frobnicate"));
    }
}
