//! What the tests of the programs share.

pub(crate) mod lasting;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use redwarfs_testkit::{Manifest, no_mount, skip};

pub(crate) const MKDWARFS: &str = env!("CARGO_BIN_EXE_mkdwarfs");
pub(crate) const DWARFS: &str = env!("CARGO_BIN_EXE_dwarfs");
pub(crate) const DWARFSCK: &str = env!("CARGO_BIN_EXE_dwarfsck");
pub(crate) const DWARFSEXTRACT: &str = env!("CARGO_BIN_EXE_dwarfsextract");

/// Runs a program and returns what it did.
pub(crate) fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Output {
    Command::new(program.as_ref())
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", program.as_ref().display()))
}

/// Runs a program that has to succeed.
pub(crate) fn must<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Output {
    let out = run(program.as_ref(), args);
    assert!(
        out.status.success(),
        "{}: {}\n{}",
        program.as_ref().display(),
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    out
}

/// Builds `image` from `tree`.
pub(crate) fn build(tree: &Path, image: &Path, options: &[&str]) {
    let mut args: Vec<&OsStr> = vec!["-i".as_ref(), tree.as_ref(), "-o".as_ref(), image.as_ref()];
    args.push("--log-level=warn".as_ref());
    args.extend(options.iter().map(OsStr::new));
    must(MKDWARFS, args);
}

/// A mount that is taken down when it goes out of scope.
pub(crate) struct Mount(PathBuf);

impl Mount {
    /// Mounts `image`, or says why that cannot be tested here.
    pub(crate) fn new(image: &Path, at: &Path, options: &[&str]) -> Option<Self> {
        Self::with(DWARFS, image, at, options)
    }

    /// Mounts `image` with another driver.
    pub(crate) fn with(
        driver: impl AsRef<OsStr>,
        image: &Path,
        at: &Path,
        options: &[&str],
    ) -> Option<Self> {
        if let Some(reason) = no_mount() {
            skip("tests with a real mount", reason);
            return None;
        }
        std::fs::create_dir_all(at).expect("a mount point");
        let mut args: Vec<&OsStr> = vec![image.as_ref(), at.as_ref()];
        args.extend(options.iter().map(OsStr::new));
        must(driver, args);
        Some(Mount(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let gone = |mut c: Command| c.output().is_ok_and(|o| o.status.success());
        let mut fusermount = Command::new("fusermount3");
        fusermount.arg("-u").arg(&self.0);
        if !gone(fusermount) {
            let mut umount = Command::new("umount");
            umount.arg("-l").arg(&self.0);
            gone(umount);
        }
    }
}

/// The same tree with times cut to whole seconds, as an image with the default resolution has
/// them.
pub(crate) fn whole_seconds(mut manifest: Manifest) -> Manifest {
    for entry in manifest.0.values_mut() {
        for time in [
            &mut entry.mtime_ns,
            &mut entry.atime_ns,
            &mut entry.ctime_ns,
        ] {
            *time = time.div_euclid(1_000_000_000) * 1_000_000_000;
        }
    }
    manifest
}

/// Directory with the reference's programs: `REDWARFS_REFERENCE`, else where `mkdwarfs` lies in
/// `PATH` if that one is the reference.
pub(crate) fn reference() -> Option<PathBuf> {
    let dir = match std::env::var_os("REDWARFS_REFERENCE") {
        Some(dir) => Some(PathBuf::from(dir)),
        None => std::env::var_os("PATH").and_then(|path| {
            std::env::split_paths(&path).find(|dir| {
                let tool = dir.join("mkdwarfs");
                tool.is_file()
                    && !String::from_utf8_lossy(&run(tool, ["-h"]).stdout).contains("RedwarFS")
            })
        }),
    };
    if dir.is_none() {
        skip(
            "comparison with the reference",
            "not here; set REDWARFS_REFERENCE to the directory of its programs",
        );
    }
    dir
}
