//! Programs in C use the library: against the test vectors, under valgrind, with sanitizers, and as a
//! user installs it. What needs a program that is missing is skipped.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use redwarfs_testkit::skip;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn repository() -> PathBuf {
    root().join("../..").canonicalize().unwrap()
}

/// The directory with the libraries that cargo has built for this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

fn newest(prefix: &str, suffix: &str) -> PathBuf {
    let matches = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with(prefix) && name.ends_with(suffix)
    };
    let entries = fs::read_dir(built()).unwrap();
    let found = entries.map(|entry| entry.unwrap().path()).filter(matches);
    found
        .max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap())
        .unwrap_or_else(|| panic!("no {prefix}*{suffix} in {}", built().display()))
}

fn works(program: &str, arguments: &[&str]) -> bool {
    let run = Command::new(program).args(arguments).output();
    run.is_ok_and(|output| output.status.success())
}

/// Whether there is a compiler; says that the test is skipped if not.
fn can_compile(what: &str) -> bool {
    let can = works("cc", &["--version"]);
    if !can {
        skip(what, "there is no cc");
    }
    can
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A directory with libredwarfs.so as the dynamic linker wants it.
fn installed() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let shared = newest("libredwarfs_capi", ".so");
    fs::copy(shared, dir.path().join("libredwarfs.so.0")).unwrap();
    std::os::unix::fs::symlink("libredwarfs.so.0", dir.path().join("libredwarfs.so")).unwrap();
    dir
}

/// Compiles a program of `tests/c` in a directory of [`installed`].
fn compiled(dir: &Path, name: &str, more: &[&str]) -> PathBuf {
    let program = dir.join(name);
    let mut cc = Command::new("cc");
    cc.args([
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
    ]);
    cc.arg(root().join("include")).args(more);
    cc.arg(root().join("tests/c").join(format!("{name}.c")));
    cc.arg("-L").arg(dir).arg("-lredwarfs").arg("-lpthread");
    cc.arg(format!("-Wl,-rpath,{}", dir.display()));
    succeeds(cc.arg("-o").arg(&program));
    program
}

fn vectors() -> PathBuf {
    repository().join("tests/vectors")
}

#[test]
fn the_vectors_are_read() {
    if !can_compile("the C library reads the test vectors") {
        return;
    }
    let dir = installed();
    let reader = compiled(dir.path(), "reader", &[]);
    let output = succeeds(Command::new(reader).arg(vectors()));
    let index = fs::read_to_string(vectors().join("images.tsv")).unwrap();
    let wanted = format!("{} images\n", index.lines().count());
    assert_eq!(String::from_utf8_lossy(&output.stdout), wanted);
}

#[test]
fn images_are_built() {
    if !can_compile("the C library builds images") {
        return;
    }
    let dir = installed();
    let writer = compiled(dir.path(), "writer", &[]);
    let work = tempfile::tempdir().unwrap();
    let output = succeeds(Command::new(writer).arg(work.path()));
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        let skipped = line.strip_prefix("SKIPPED: ");
        let (what, why) = skipped.and_then(|line| line.split_once(": ")).unwrap();
        skip(what, why);
    }
}

/// Images of the oldest and of the newest format, to be damaged.
fn victims() -> [PathBuf; 2] {
    ["0.2.0", "0.9.10"]
        .map(|version| repository().join(format!("tests/fixtures/compat/compat-v{version}.dwarfs")))
}

#[test]
fn damaged_images_give_errors() {
    if !can_compile("the C library with damaged images") {
        return;
    }
    let dir = installed();
    let hostile = compiled(dir.path(), "hostile", &[]);
    succeeds(Command::new(&hostile).arg("10000").args(victims()));
    let corpus = fs::read_dir(repository().join("fuzz/corpus/capi")).unwrap();
    let inputs: Vec<_> = corpus.map(|entry| entry.unwrap().path()).collect();
    assert!(!inputs.is_empty());
    succeeds(Command::new(&hostile).arg("0").args(inputs));
}

/// Images that are small and have different codecs.
const FEW: [&str; 5] = [
    "compat-v0.2.0",
    "compat-v0.9.10",
    "damaged-block",
    "truncated",
    "fits-categorize",
];

#[test]
fn valgrind_finds_nothing() {
    if !can_compile("the C library under valgrind") {
        return;
    }
    if !works("valgrind", &["--version"]) {
        return skip("the C library under valgrind", "there is no valgrind");
    }
    let dir = installed();
    let work = tempfile::tempdir().unwrap();
    let valgrind = || {
        let mut command = Command::new("valgrind");
        command.args([
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite,indirect",
        ]);
        command
    };
    let reader = compiled(dir.path(), "reader", &[]);
    succeeds(valgrind().arg(reader).arg(vectors()).args(FEW));
    let writer = compiled(dir.path(), "writer", &[]);
    succeeds(valgrind().arg(writer).arg(work.path()));
    let hostile = compiled(dir.path(), "hostile", &[]);
    succeeds(valgrind().arg(hostile).arg("60").args(victims()));
}

#[test]
fn sanitizers_find_nothing() {
    if !can_compile("the C library with sanitizers") {
        return;
    }
    let probe = tempfile::tempdir().unwrap();
    let source = probe.path().join("probe.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let out = probe.path().join("probe");
    let sanitizers = "-fsanitize=address,undefined";
    let (from, to) = (source.to_str().unwrap(), out.to_str().unwrap());
    if !works("cc", &[sanitizers, from, "-o", to]) || !works(to, &[]) {
        return skip("the C library with sanitizers", "cc has no sanitizers");
    }
    let dir = installed();
    let work = tempfile::tempdir().unwrap();
    let more = [sanitizers, "-fno-sanitize-recover=all"];
    let reader = compiled(dir.path(), "reader", &more);
    succeeds(Command::new(reader).arg(vectors()).args(FEW));
    let writer = compiled(dir.path(), "writer", &more);
    succeeds(Command::new(writer).arg(work.path()));
    let hostile = compiled(dir.path(), "hostile", &more);
    succeeds(Command::new(hostile).arg("1000").args(victims()));
}

#[test]
fn the_headers_are_plain_c_and_cpp() {
    if !can_compile("the headers of the C library") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("header.c");
    let text =
        "#include \"redwarfs_writer.h\"\n#include \"redwarfs.h\"\nint main(void) { return 0; }\n";
    fs::write(&source, text).unwrap();
    let check = |compiler: &str, standard: &str| {
        let mut command = Command::new(compiler);
        command.args([
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-pedantic-errors",
            "-Werror",
        ]);
        command.arg(standard).arg("-I").arg(root().join("include"));
        succeeds(command.arg(&source));
    };
    for standard in ["-std=c99", "-std=c11", "-std=gnu17"] {
        check("cc", standard);
    }
    if works("c++", &["--version"]) {
        fs::rename(&source, dir.path().join("header.cc")).unwrap();
        fs::write(&source, "").unwrap();
        let mut command = Command::new("c++");
        command.args(["-fsyntax-only", "-std=c++11", "-Wall", "-Werror", "-I"]);
        succeeds(
            command
                .arg(root().join("include"))
                .arg(dir.path().join("header.cc")),
        );
    } else {
        skip("the headers of the C library in C++", "there is no c++");
    }
}

/// Every exported function of the installed library has a version, and nothing else is exported.
fn versions_of_symbols(library: &Path) {
    let Ok(listing) = Command::new("objdump").arg("-T").arg(library).output() else {
        return skip(
            "versions of the symbols of the C library",
            "there is no objdump",
        );
    };
    let text = String::from_utf8(listing.stdout).unwrap();
    let exported: Vec<_> = text
        .lines()
        .filter(|line| line.contains("DF .text"))
        .collect();
    assert!(exported.len() > 20, "{text}");
    for line in exported {
        assert!(
            line.contains(" REDWARFS_0.1 ") && line.contains(" redwarfs_"),
            "{line}"
        );
    }
}

#[test]
fn an_installed_library_is_found_by_pkg_config() {
    let what = "installing the C library";
    if !can_compile(what) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("usr");
    let mut install = Command::new(repository().join("scripts/install-capi"));
    // Only this build: other builds may have left libraries beside it.
    let libraries = dir.path().join("built");
    fs::create_dir(&libraries).unwrap();
    fs::copy(
        newest("libredwarfs_capi", ".a"),
        libraries.join("libredwarfs_capi.a"),
    )
    .unwrap();
    succeeds(install.arg("--from").arg(&libraries).arg(&prefix));
    versions_of_symbols(&prefix.join("lib/libredwarfs.so.0"));
    let flags = |link: &str| -> Vec<String> {
        let mut pkg = Command::new("pkg-config");
        pkg.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let output = succeeds(
            pkg.args(["--cflags", "--libs"])
                .args([link])
                .arg("redwarfs"),
        );
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().map(str::to_owned).collect()
    };
    if !works("pkg-config", &["--version"]) {
        return skip(what, "there is no pkg-config");
    }
    let image = repository().join("tests/fixtures/compat/compat-v0.9.10.dwarfs");
    let source = root().join("examples/print_file.c");
    // The name of the archive makes the linker take it.
    for (link, name) in [("--shared", "-lredwarfs"), ("--static", "-l:libredwarfs.a")] {
        let program = dir.path().join("print_file");
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Werror"]).arg(&source);
        for flag in flags(link) {
            cc.arg(if flag == "-lredwarfs" {
                name.to_owned()
            } else {
                flag
            });
        }
        succeeds(cc.arg("-o").arg(&program));
        let run = |path: &str| {
            let mut command = Command::new(&program);
            command.env("LD_LIBRARY_PATH", prefix.join("lib"));
            command.arg(&image).arg(path);
            command
        };
        let listed = succeeds(&mut run("/")).stdout;
        assert!(String::from_utf8(listed).unwrap().contains("format.sh\n"));
        let printed = succeeds(&mut run("format.sh")).stdout;
        assert!(printed.starts_with(b"#!") && printed.len() == 94);
        let failed = run("missing").output().unwrap();
        assert_eq!(failed.status.code(), Some(1));
        assert_eq!(
            String::from_utf8_lossy(&failed.stderr),
            "print_file: missing: not found in the image: missing\n"
        );
        let needed = Command::new("readelf").arg("-d").arg(&program).output();
        match needed {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                assert_eq!(
                    text.contains("libredwarfs.so.0"),
                    link == "--shared",
                    "{text}"
                );
            }
            Err(_) => skip("the soname of the C library", "there is no readelf"),
        }
    }
}
