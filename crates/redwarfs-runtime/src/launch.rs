//! Becomes the program in the image.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::StatVfsMountFlags;

use crate::error::{self, Failure, Result};
use crate::place::Contents;
use crate::portable;
use crate::program::Program;

/// The program in the root of the image.
const APP_RUN: &str = "AppRun";

/// Replaces this process by the program, which so gets every signal and gives its own exit status. Returns only if
/// that fails.
pub(crate) fn run(
    program: &Program,
    called: Option<&OsStr>,
    contents: &Contents,
    arguments: &[OsString],
) -> Result<()> {
    let path = contents.directory.join(APP_RUN);
    let mut command = Command::new(&path);
    command
        .args(arguments)
        .envs(portable::variables(&program.path))
        .env("APPDIR", &contents.directory)
        .env("APPIMAGE", &program.path)
        .env("ARGV0", called.unwrap_or_default());
    if let Ok(directory) = env::current_dir() {
        command.env("OWD", directory);
    }
    let error = command.exec();
    if path.symlink_metadata().is_err() {
        return Err(Failure::new(format_args!(
            "cannot run: {}: there is no {APP_RUN} in the image: --appimage-mount and --appimage-extract work \
             without one",
            program.path.display()
        )));
    }
    Err(Failure::io("cannot run", &path, &error).hint(&reason(&path, &error)))
}

/// Why the system does not run a program that is there, as far as its error does not say so.
fn reason(path: &Path, error: &io::Error) -> String {
    let found = path.metadata();
    match (error.kind(), found) {
        (io::ErrorKind::PermissionDenied, Ok(found)) if found.mode() & 0o111 == 0 => {
            ": it is not executable in the image (chmod +x, and build again)".to_owned()
        }
        (io::ErrorKind::PermissionDenied, _) if is_noexec(path) => {
            format!(
                ": its file system is mounted with noexec{}",
                error::EXECUTABLE
            )
        }
        (io::ErrorKind::NotFound, Err(_)) => {
            let target = path.read_link().unwrap_or_default();
            format!(": it is a link to {}", target.display())
        }
        (io::ErrorKind::NotFound, Ok(_)) => {
            let interpreter =
                interpreter(path).map_or_else(String::new, |name| format!(": {name}"));
            format!(": its interpreter is missing on this system{interpreter}")
        }
        _ => String::new(),
    }
}

fn is_noexec(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// What a script names as its interpreter.
fn interpreter(path: &Path) -> Option<String> {
    let mut line = [0; 128];
    let length = File::open(path).ok()?.read(&mut line).ok()?;
    let line = line.get(..length)?.strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?;
    let words = String::from_utf8_lossy(line);
    words.split_whitespace().next().map(str::to_owned)
}
