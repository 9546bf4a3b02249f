//! `dwarfs-runtime`: the program in front of an image that makes the file run itself.
//!
//! The file is this program with a DwarFS image behind it. When it is started, it mounts its image and becomes the
//! program `AppRun` in it. Options and variables are those of the AppImage runtime of type 2 and of `uruntime`;
//! `docs/runtime.md` describes them.
//!
//! # The way of a start
//!
//! | step | file |
//! |---|---|
//! | The arguments say what to do, the environment how. | `arguments.rs`, `environment.rs` |
//! | The program finds its own file, and the image in it. | `program.rs` |
//! | It looks for a mount of this image that another process has made. | `place.rs`, `share.rs` |
//! | If there is none, it starts a keeper, which mounts and goes on as the driver. | `keeper.rs` |
//! | If there is no helper program for mounting, the keeper mounts in namespaces of its own. | `namespace.rs` |
//! | If there is no FUSE, the keeper extracts the image. | `keeper.rs` |
//! | The process becomes `AppRun`. It keeps a lock, by which the keeper knows that it lives. | `launch.rs` |

mod arguments;
mod check;
mod codecs;
mod environment;
mod error;
mod extract;
mod keeper;
mod launch;
mod namespace;
mod os;
mod pattern;
mod place;
mod portable;
mod program;
mod sections;
mod share;
mod tree;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use arguments::{Request, Way};
use environment::{Extraction, Settings};
use error::{Failure, Result, one_line};
use program::Program;
use share::Share;

const HELP: &str = include_str!("help.txt");

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&failure.text);
            ExitCode::from(failure.code)
        }
    }
}

/// Says something to the user, who may have closed standard error.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "dwarfs-runtime: {}", one_line(text));
}

/// Prints a line for a script.
fn print(line: &OsStr) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(&[line.as_bytes(), b"\n"].concat())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(format_args!("cannot write to standard output: {error}")))
}

/// Does what the arguments ask for.
fn run(arguments: &[OsString]) -> Result<()> {
    let called = arguments.first().map(OsString::as_os_str);
    let request = arguments::parse(arguments.get(1..).unwrap_or_default())?;
    match request {
        Request::Help => return print(OsStr::new(HELP.trim_end())),
        Request::Version => {
            let version = concat!("dwarfs-runtime ", env!("CARGO_PKG_VERSION"), " (RedwarFS)");
            return print(OsStr::new(version));
        }
        _ => {}
    }
    let program = Program::find(called)?;
    let (mut settings, ignored) = Settings::of_process();
    ignored.iter().for_each(|line| say(line));
    match request {
        Request::Run { way, arguments } => {
            match way {
                Way::Usual => {}
                Way::Extract => settings.extraction = Extraction::Always,
                Way::OwnNamespace => settings.own_namespace = true,
            }
            let contents = place::provide(&program, &settings)?;
            launch::run(&program, called, &contents, &arguments)
        }
        Request::Extract { patterns } => extract::run(&program, &settings, patterns),
        Request::Mount => {
            let contents = place::provide_mount(&program, &settings)?;
            os::end_by_signals();
            print(contents.directory.as_os_str())?;
            // A signal ends this process, and so its use of the mount.
            Share::wait_for_keeper(&contents.shared)
                .map_err(|error| Failure::io("cannot watch the mount", &contents.directory, &error))
        }
        Request::Check => check::run(&program, &settings),
        Request::Offset => print(OsStr::new(&program.image_offset()?.to_string())),
        Request::Portable(portable) => print(portable.create(&program.path)?.as_os_str()),
        Request::Section(name) => print(&program.section(name)?),
        Request::Help | Request::Version => Ok(()),
    }
}
