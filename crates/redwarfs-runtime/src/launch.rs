//! Becomes the program in the image.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::error::{Failure, Result};
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
    Err(Failure::io("cannot run", &path, &error))
}
