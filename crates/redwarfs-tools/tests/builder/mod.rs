//! Running `mkdwarfs` on small trees and looking into what it makes.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use redwarfs_format::metadata::Stat;
use redwarfs_reader::{Image, OpenOptions};

/// A directory with an input `in` and room for outputs.
pub(crate) struct TestDir(tempfile::TempDir);

/// What a run did.
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The program, not influenced by where it is started.
pub(crate) fn mkdwarfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mkdwarfs"));
    command.env_remove("SOURCE_DATE_EPOCH").stdin(Stdio::null());
    command
}

impl TestDir {
    /// A place whose input has these files, each with its path as content; paths that end in `/`
    /// are directories.
    pub(crate) fn new(paths: &[&str]) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("in")).unwrap();
        for path in paths {
            let at = place.path("in").join(path);
            if path.ends_with('/') {
                fs::create_dir_all(at).unwrap();
            } else {
                fs::create_dir_all(at.parent().unwrap()).unwrap();
                fs::write(at, path).unwrap();
            }
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes a file outside of the input; returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), content).unwrap();
        self.text(name)
    }

    /// The program with the input and an output that is replaced, at level 1, errors only.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = mkdwarfs();
        command
            .arg("-i")
            .arg(self.path("in"))
            .arg("-fo")
            .arg(self.path("out"))
            .args(["-l1", "--log-level=warn"])
            .args(args);
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Done {
        self.command(args).output().unwrap().into()
    }

    /// Builds without any message.
    pub(crate) fn image<S: AsRef<OsStr>>(&self, args: &[S]) -> Built {
        let done = self.run(args);
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
        self.built()
    }

    /// The image that was built last.
    pub(crate) fn built(&self) -> Built {
        let mut options = OpenOptions::default();
        options.check = true;
        Built(Image::open(self.path("out"), &options).unwrap())
    }
}

/// An image.
pub(crate) struct Built(pub(crate) Image);

impl Built {
    /// Everything but the root.
    pub(crate) fn paths(&self) -> Vec<String> {
        let all = self.0.walk().map(|entry| entry.unwrap().path.clone());
        all.filter(|path| !path.is_empty())
            .map(|path| String::from_utf8(path).unwrap())
            .collect()
    }

    pub(crate) fn stat(&self, path: &str) -> Stat {
        let inode = self.0.find_path(path.as_bytes()).unwrap();
        let inode = inode.unwrap_or_else(|| panic!("{path} is not in the image"));
        self.0.stat(inode).unwrap()
    }

    pub(crate) fn permissions(&self, path: &str) -> u32 {
        self.stat(path).mode & 0o7777
    }

    pub(crate) fn read(&self, path: &str) -> Vec<u8> {
        let inode = self.0.find_path(path.as_bytes()).unwrap().unwrap();
        let mut data = vec![0; usize::try_from(self.stat(path).size).unwrap()];
        assert_eq!(self.0.read_at(inode, 0, &mut data).unwrap(), data.len());
        data
    }
}
