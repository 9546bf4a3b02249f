//! The interface as a program uses it that knows no other crate.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use redwarfs::{BuildError, Builder, Error, ExtractOptions, File, FileType, Image, extract};

fn kind(error: Error) -> io::ErrorKind {
    io::Error::from(error).kind()
}

/// A tree with links of all kinds.
fn tree(dir: &Path) {
    fs::create_dir_all(dir.join("a/b")).unwrap();
    fs::write(dir.join("a/b/file"), "0123456789").unwrap();
    fs::write(dir.join("top"), "top").unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    for (link, target) in [
        ("a/relative", "b/file"),
        ("a/absolute", "/a/b"),
        ("a/above", "../../../../top"),
        ("nowhere", "a/missing"),
        ("round", "a/round"),
        ("a/round", "../round"),
    ] {
        symlink(target, dir.join(link)).unwrap();
    }
}

fn image() -> (tempfile::TempDir, PathBuf, Image) {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path().join("tree");
    tree(&dir);
    let path = work.path().join("image");
    Builder::new(&dir).level(1).write_to(&path).unwrap();
    let image = Image::open(&path).unwrap();
    (work, dir, image)
}

#[test]
fn links_are_followed_inside_the_image() {
    let (_work, _dir, image) = image();
    let read = |path: &str| {
        let mut text = String::new();
        image.file(path).unwrap().read_to_string(&mut text).unwrap();
        text
    };
    for path in [
        "a/b/file",
        "/a//b/./file",
        "a/relative",
        "a/absolute/file",
        "a/absolute/../../a/b/file",
        "../a/b/file",
    ] {
        assert_eq!(read(path), "0123456789", "{path}");
    }
    assert_eq!(read("a/above"), "top");
    let names: Vec<_> = image
        .read_dir("a/absolute")
        .unwrap()
        .map(|entry| entry.unwrap().path().to_owned())
        .collect();
    assert_eq!(names, [Path::new("a/absolute/file")]);

    assert_eq!(image.read_link("nowhere").unwrap(), Path::new("a/missing"));
    let stat = image.symlink_metadata("round").unwrap();
    assert_eq!(stat.file_type(), Some(FileType::Symlink));
    assert_eq!(
        image.metadata("").unwrap().file_type(),
        Some(FileType::Directory)
    );
}

#[test]
fn errors_have_kinds_and_one_line() {
    let (_work, dir, image) = image();
    let cases = [
        (
            image.file("nowhere").unwrap_err(),
            "not found in the image: nowhere",
            io::ErrorKind::NotFound,
        ),
        (
            image.file("a").unwrap_err(),
            "not a regular file in the image: a",
            io::ErrorKind::IsADirectory,
        ),
        (
            image.read_dir("top").unwrap_err(),
            "not a directory in the image: top",
            io::ErrorKind::NotADirectory,
        ),
        (
            image.metadata("top/more").unwrap_err(),
            "not a directory in the image: top/more",
            io::ErrorKind::NotADirectory,
        ),
        (
            image.read_link("top").unwrap_err(),
            "not a symbolic link in the image: top",
            io::ErrorKind::InvalidInput,
        ),
        (
            image.metadata("round").unwrap_err(),
            "too many symbolic links in the image: round",
            io::ErrorKind::Other,
        ),
    ];
    let odd = image.file("a\nb").unwrap_err();
    assert_eq!(odd.to_string(), "not found in the image: a\\nb");
    let empty = Arc::new(redwarfs::io::MemorySource::new(Vec::new()));
    let none = Image::from_source(empty, &redwarfs::OpenOptions::default()).unwrap_err();
    let text = none.to_string();
    assert!(
        text.starts_with("cannot open image: not a DwarFS image"),
        "{text}"
    );
    for (error, text, wanted) in cases {
        assert_eq!(error.to_string(), text);
        assert_eq!(kind(error), wanted, "{text}");
    }
    let missing = Image::open(dir.join("missing")).unwrap_err();
    let (text, path) = (missing.to_string(), dir.join("missing"));
    let start = format!("cannot open image: {}: ", path.display());
    assert!(text.starts_with(&start), "{text}");
    assert_eq!(text.matches("missing").count(), 1, "{text}");
    assert!(!missing.cause().contains("missing"), "{text}");
    assert_eq!(kind(missing), io::ErrorKind::NotFound);
    assert_eq!(
        kind(Image::open(dir.join("top")).unwrap_err()),
        io::ErrorKind::InvalidData
    );
    let missing = Builder::new(dir.join("missing")).write(&mut io::sink());
    assert_eq!(kind(missing.unwrap_err()), io::ErrorKind::NotFound);
}

#[test]
fn files_seek_and_are_shared_by_threads() {
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let (_work, _dir, image) = image();
    shared(&image);
    let mut file: File = image.file("a/b/file").unwrap();
    shared(&file);
    assert_eq!((file.len(), file.path()), (10, Path::new("a/b/file")));
    assert!(!file.is_empty() && image.file("empty").unwrap().is_empty());

    let mut two = [0; 2];
    assert_eq!(file.seek(SeekFrom::End(-3)).unwrap(), 7);
    file.read_exact(&mut two).unwrap();
    assert_eq!(&two, b"78");
    assert_eq!(file.seek(SeekFrom::Current(-4)).unwrap(), 5);
    let clones: Vec<_> = (0..4)
        .map(|_| {
            let mut clone = file.clone();
            thread::spawn(move || {
                let mut rest = String::new();
                clone.read_to_string(&mut rest).map(|_| rest)
            })
        })
        .collect();
    for clone in clones {
        assert_eq!(clone.join().unwrap().unwrap(), "56789");
    }
    assert_eq!(file.stream_position().unwrap(), 5);
    assert_eq!(file.read_at(9, &mut two).unwrap(), 1);
    assert_eq!(file.seek(SeekFrom::Start(u64::MAX)).unwrap(), u64::MAX);
    assert_eq!(file.read(&mut two).unwrap(), 0);
    for bad in [SeekFrom::Current(1), SeekFrom::End(-11)] {
        assert_eq!(
            file.seek(bad).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}

#[test]
fn output_is_complete_or_unchanged() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path().join("tree");
    tree(&dir);
    // In the directory that is packed.
    let path = dir.join("image");
    let builder = Builder::new(&dir).level(1);
    builder.write_to(&path).unwrap();
    let first = fs::read(&path).unwrap();

    let refused = builder.write_to(&path).unwrap_err();
    assert!(refused.to_string().contains("image"), "{refused}");
    assert_eq!(kind(refused), io::ErrorKind::AlreadyExists);
    assert!(fs::read(&path).unwrap() == first);

    let stop = Arc::new(AtomicBool::new(true));
    let stopped = builder.clone().overwrite(true).stop_flag(Arc::clone(&stop));
    let e = stopped.write_to(&path).unwrap_err();
    assert!(matches!(e, Error::Build(BuildError::Interrupted)), "{e}");
    assert!(fs::read(&path).unwrap() == first);
    stop.store(false, Ordering::Relaxed);
    stopped.write_to(&path).unwrap();
    let image = Image::open(&path).unwrap();
    let error = image.metadata("image").unwrap_err();
    assert!(
        matches!(error, Error::NotFound(_)),
        "it holds itself: {error}"
    );

    let names = fs::read_dir(&dir).unwrap().count();
    assert_eq!(names, 6, "scratch files are left");
}

#[test]
fn unreadable_input_ends_the_build_unless_asked_otherwise() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path().join("tree");
    let path = work.path().join("image");
    tree(&dir);
    // A file that vanishes when it has been listed cannot be read, by root either.
    let gone = dir.join("a/b/file");
    let builder = Builder::new(&dir).level(1).filter(move |path, _| {
        if path == "a/b/file" {
            let _ = fs::remove_file(&gone);
        }
        true
    });
    let e = builder.write_to(&path).unwrap_err();
    assert!(
        matches!(&e, Error::Incomplete(text) if text.contains("a/b/file")),
        "{e}"
    );
    assert!(!path.exists());

    fs::write(dir.join("a/b/file"), "0123456789").unwrap();
    let built = builder.continue_on_error(true).write_to(&path).unwrap();
    // One for the content, and on some systems one for the extended attributes.
    assert!(matches!(built.summary.errors, 1 | 2), "{built:?}");
    assert_eq!(built.summary.errors, built.problems.len() as u64);
    let named = |problem: &String| problem.contains("a/b/file");
    assert!(built.problems.iter().all(named), "{:?}", built.problems);
    assert_eq!(Image::open(&path).unwrap().metadata("top").unwrap().size, 3);
}

#[test]
fn extraction_restores_and_selects() {
    let (work, dir, image) = image();
    let all = work.path().join("new/all");
    let extracted = extract(&image, &all).unwrap();
    assert_eq!(extracted.summary.files, 3);
    assert_eq!(fs::read(all.join("a/relative")).unwrap(), b"0123456789");
    assert_eq!(
        fs::read_link(all.join("round")).unwrap(),
        fs::read_link(dir.join("round")).unwrap()
    );

    let mut options = ExtractOptions::default();
    options.select = Some(redwarfs::extractor::Selection::new(|path, _| {
        path == b"top"
    }));
    let some = work.path().join("some");
    let silent = redwarfs::extractor::Silent;
    redwarfs::extract_with(&image, &some, &options, &silent).unwrap();
    let names: Vec<_> = fs::read_dir(&some)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["top"]);

    let in_the_way = extract(&image, dir.join("top")).unwrap_err();
    assert!(in_the_way.to_string().contains("top"), "{in_the_way}");
}

#[test]
fn damage_is_an_error_of_the_files_that_it_affects() {
    let (work, _dir, image) = image();
    let mut bytes = fs::read(work.path().join("image")).unwrap();
    let block = image.reader().container().sections.first().unwrap();
    let at = usize::try_from(block.payload_offset).unwrap();
    bytes[at] ^= 1;
    let source = Arc::new(redwarfs::io::MemorySource::new(bytes));
    let damaged = Image::from_source(source, &redwarfs::OpenOptions::default()).unwrap();
    let mut file = damaged.file("top").unwrap();
    let e = file.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::InvalidData);
    assert!(
        file.read_at(0, &mut [0; 1])
            .unwrap_err()
            .to_string()
            .contains("top")
    );
    assert_eq!(damaged.walk().filter(Result::is_ok).count(), 12);
}

#[cfg(not(feature = "remote"))]
#[test]
fn urls_of_servers_need_a_feature() {
    let e = Image::open("http://someone:hidden@localhost:1/a?hidden").unwrap_err();
    assert_eq!(e.kind(), redwarfs::ErrorKind::Unsupported);
    let text = e.to_string();
    assert!(text.contains("http://localhost:1/a?...: unsupported: this program was built without the feature 'remote'"), "{text}");
}
