//! Images with many combinations of options, what they have to show, and who reads them.

pub(crate) mod independent;
pub(crate) mod model;
pub(crate) mod options;
mod selection;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use redwarfs_testkit::assorted::{Extent, assorted_tree};
use redwarfs_testkit::{Manifest, skip};

use model::{Input, Model};
use options::{Parameter, Value};

/// What stands in front of images with a header.
const HEADER: &[u8] = b"#!/bin/sh\nexec dwarfs \"$0\" \"$@\"\n";

/// Inputs, and the files that options name.
pub(crate) struct TestDir {
    dir: tempfile::TempDir,
    pub(crate) plain: Input,
    pub(crate) full: Input,
}

impl TestDir {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("header"), HEADER).unwrap();
        fs::write(path("owners"), model::OWNERS).unwrap();
        fs::write(path("rules"), selection::RULES).unwrap();
        fs::write(path("script"), selection::SCRIPT).unwrap();
        fs::write(path("host"), "a file of the host\n".repeat(300)).unwrap();
        let host = path("host").into_os_string().into_string().unwrap();
        fs::write(path("pseudo"), format!("{}{host}\n", model::PSEUDO)).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(777_777_777, 123_456_789);
        for name in ["pseudo", "host"] {
            let file = fs::File::options().append(true).open(path(name)).unwrap();
            file.set_modified(time).unwrap();
        }
        let input = |name: &str, extent| {
            let root = path(name);
            fs::create_dir(&root).unwrap();
            if !assorted_tree(&root, extent).unwrap() {
                skip("devices in the matrix of options", "making them needs root");
            }
            let paths = every_path(&root);
            let lists = Lists::new(&paths);
            for (name, list) in [("list", &lists.listed), ("order", &lists.order)] {
                for (end, suffix) in [(b'\n', ""), (b'\0', "-null")] {
                    let text: Vec<u8> =
                        list.iter().flat_map(|p| [p, &[end][..]].concat()).collect();
                    let file = format!("{}-{name}{suffix}", root.display());
                    fs::write(file, text).unwrap();
                }
            }
            let hot: Vec<u8> = lists
                .hot
                .iter()
                .flat_map(|p| [p, &b"\n"[..]].concat())
                .collect();
            fs::write(format!("{}-hot", root.display()), hot).unwrap();
            let listed = lists.listed.into_iter().collect();
            Input::new(root, listed, path("pseudo"), path("host"))
        };
        let (plain, full) = (input("plain", Extent::Plain), input("full", Extent::Full));
        Self { dir, plain, full }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// An argument with the names of files in the place of those in braces.
    fn argument(&self, text: &str, input: &Input, model: &Model) -> String {
        let root = input.root.to_str().unwrap();
        let null = if model.null { "-null" } else { "" };
        let mut text = text.to_owned();
        for name in ["header", "owners", "rules", "pseudo", "script"] {
            let file = self.path(name);
            text = text.replace(&format!("{{{name}}}"), file.to_str().unwrap());
        }
        text.replace("{hot}", &format!("{root}-hot"))
            .replace("{list}", &format!("{root}-list{null}"))
            .replace("{order}", &format!("{root}-order{null}"))
    }
}

/// All paths below `root`.
fn every_path(root: &Path) -> Vec<Vec<u8>> {
    let manifest = Manifest::from_directory(root, false).unwrap();
    manifest.0.into_keys().filter(|path| path != b".").collect()
}

/// Choices of the paths of a tree. None has a newline, for some lists cannot hold one.
struct Lists {
    listed: Vec<Vec<u8>>,
    order: Vec<Vec<u8>>,
    hot: Vec<Vec<u8>>,
}

impl Lists {
    fn new(paths: &[Vec<u8>]) -> Self {
        let every = |step: usize| {
            let all = paths.iter().filter(|path| !path.contains(&b'\n'));
            all.step_by(step).cloned().collect::<Vec<_>>()
        };
        let mut listed: BTreeSet<Vec<u8>> = every(3).into_iter().collect();
        for always in ["text/keep", "links/dangling", "special/fifo", "empty/a"] {
            listed.insert(always.into());
        }
        let mut order = every(2);
        order.reverse();
        Self {
            listed: listed.into_iter().collect(),
            order,
            hot: every(5),
        }
    }
}

/// One value of every parameter.
pub(crate) struct Combination<'a>(pub(crate) Vec<&'a Value>);

impl<'a> Combination<'a> {
    pub(crate) fn new(parameters: &'a [Parameter], row: &[usize]) -> Self {
        Self(
            parameters
                .iter()
                .zip(row)
                .map(|(p, &v)| &p.values[v])
                .collect(),
        )
    }

    pub(crate) fn model(&self) -> Model {
        let mut model = Model::default();
        for value in &self.0 {
            (value.effect)(&mut model);
        }
        model
    }

    /// The arguments, for messages.
    pub(crate) fn shown(&self) -> String {
        let args: Vec<&str> = self.0.iter().flat_map(|v| v.args.iter().copied()).collect();
        args.join(" ")
    }

    /// Builds an image that lacks something if it is not to be `complete`.
    ///
    /// # Errors
    /// What is wrong with how that ended.
    pub(crate) fn build(
        &self,
        place: &TestDir,
        input: &Input,
        image: &Path,
        complete: bool,
    ) -> Result<(), String> {
        let model = self.model();
        let mut command = Command::new("sh");
        // Changes of modes depend on the umask.
        command.args(["-c", "umask 022; exec \"$0\" \"$@\""]);
        command.arg(env!("CARGO_BIN_EXE_mkdwarfs"));
        command
            .arg("--input")
            .arg(&input.root)
            .arg("--output")
            .arg(image);
        command.args(["--log-level=error", "--no-progress"]);
        command.env_remove("SOURCE_DATE_EPOCH");
        for value in &self.0 {
            let args = value.args.iter();
            command.args(args.map(|arg| place.argument(arg, input, &model)));
            if let Some(epoch) = value.epoch {
                command.env("SOURCE_DATE_EPOCH", epoch);
            }
        }
        let done = command.output().map_err(|e| e.to_string())?;
        let stderr = String::from_utf8_lossy(&done.stderr);
        let want = if complete { 0 } else { 2 };
        if done.status.code() != Some(want) || stderr.is_empty() != complete {
            return Err(format!("{}, not {want}: {stderr}", done.status));
        }
        Ok(())
    }
}

/// The image without what is in front of it.
pub(crate) fn without_header(image: &Path, model: &Model) -> Result<Vec<u8>, String> {
    let bytes = fs::read(image).map_err(|e| e.to_string())?;
    if !model.header {
        return Ok(bytes);
    }
    match bytes.strip_prefix(HEADER) {
        Some(rest) => Ok(rest.to_vec()),
        None => Err("the header is missing".to_owned()),
    }
}

/// Takes mode bits of symbolic links away, which no file system of the host keeps.
pub(crate) fn as_extracted(manifest: &Manifest) -> Manifest {
    let mut out = manifest.clone();
    for entry in out.0.values_mut() {
        if entry.mode & 0o170_000 == 0o120_000 {
            entry.mode = 0o120_777;
        }
    }
    out
}
