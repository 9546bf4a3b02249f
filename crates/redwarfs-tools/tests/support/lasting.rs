//! Images to damage, for the tests of what repairs, salvages and proves them.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::{DWARFSCK, DWARFSEXTRACT, build, run};

/// Bytes that do not compress.
pub(crate) fn noise(len: usize, mut state: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        out.extend((state ^ state >> 29).to_le_bytes());
    }
    out.truncate(len);
    out
}

/// What a program has printed, on both outputs.
pub(crate) fn said(out: &Output) -> String {
    let both = [&out.stdout[..], &out.stderr[..]].concat();
    String::from_utf8(both).expect("text")
}

/// A directory with a tree, and an image of it.
pub(crate) struct TestDir {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) image: PathBuf,
}

impl TestDir {
    /// With what `make` puts into the tree.
    pub(crate) fn of(make: impl FnOnce(&Path), options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("image");
        let place = Self { dir, image };
        fs::create_dir(place.tree()).expect("a tree");
        make(&place.tree());
        build(&place.tree(), &place.image, options);
        place
    }

    /// With four files of so many bytes each.
    pub(crate) fn new(size: usize, options: &[&str]) -> Self {
        Self::of(|tree| add(tree, 0..4, size), options)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(&self.image).expect("the image")
    }

    /// Changes the image, and returns its new bytes.
    pub(crate) fn damage(&self, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = self.bytes();
        change(&mut bytes);
        fs::write(&self.image, &bytes).expect("the image");
        bytes
    }

    /// What the checker prints on both outputs, and that it ends with a code.
    pub(crate) fn check(&self, code: i32, options: &[&str]) -> String {
        let out = self.run_check(options);
        let text = said(&out);
        assert_eq!(out.status.code(), Some(code), "{options:?}: {text}");
        text
    }

    pub(crate) fn run_check(&self, options: &[&str]) -> Output {
        let mut args = vec![self.image.to_str().expect("a path")];
        args.extend(options);
        run(DWARFSCK, &args)
    }

    /// What the checker prints on standard output if all is well.
    pub(crate) fn good(&self, options: &[&str]) -> String {
        let out = self.run_check(options);
        assert_eq!(out.status.code(), Some(0), "{options:?}: {}", said(&out));
        String::from_utf8(out.stdout).expect("text")
    }

    /// What it prints on both outputs if something is wrong.
    pub(crate) fn bad(&self, options: &[&str]) -> String {
        self.check(1, options)
    }

    /// Extracts to the new directory `name`.
    pub(crate) fn extract(&self, name: &str, more: &[&str]) -> (Output, PathBuf) {
        let to = self.path(name);
        fs::create_dir(&to).expect("a directory");
        let mut args = vec!["-i", self.image.to_str().expect("a path")];
        args.extend(["-o", to.to_str().expect("a path")]);
        args.extend(more);
        (run(DWARFSEXTRACT, &args), to)
    }

    /// Salvages to the new directories `NAME` and `NAME-parts`, which it returns.
    pub(crate) fn salvage(&self, name: &str, more: &[&str]) -> (Output, PathBuf, PathBuf) {
        let parts = self.path(&format!("{name}-parts"));
        let option = format!("--salvage={}", parts.display());
        let options: Vec<&str> = [&[option.as_str()], more].concat();
        let (out, to) = self.extract(name, &options);
        (out, to, parts)
    }

    /// Whether a directory has the files of the tree, and no others.
    pub(crate) fn same_as_tree(&self, found: &Path) {
        let names = |dir: &Path| -> Vec<_> {
            let entries = fs::read_dir(dir).expect("a directory");
            let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(found), names(&self.tree()));
        for name in names(&self.tree()) {
            let read = |dir: &Path| fs::read(dir.join(&name)).expect("a file");
            assert!(read(found) == read(&self.tree()), "{name:?}");
        }
    }
}

/// Puts files into a tree.
pub(crate) fn add(tree: &Path, numbers: Range<u64>, size: usize) {
    for number in numbers {
        let file = tree.join(format!("file{number}"));
        fs::write(file, noise(size, number + 1)).expect("a file");
    }
}
