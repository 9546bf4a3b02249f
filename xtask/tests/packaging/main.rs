//! What is installed and packaged: the install script, the recipes, the files for the desktop, and the
//! texts that `xtask` generates.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use redwarfs_testkit::skip;

mod contents;

const XTASK: &str = env!("CARGO_BIN_EXE_xtask");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Whether a program can be found; says that `test` is skipped otherwise.
fn has(test: &str, program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        skip(test, &format!("{program} is not installed"));
    }
    found
}

fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// Runs a command that has to succeed. Its standard output.
fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that checks something: it succeeds and has nothing to say.
fn check(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success() && said(&output).is_empty(),
        "{command:?}: {}",
        said(&output)
    );
}

/// Everything that `xtask` generates, in `DIR/share`.
fn share(dir: &Path) -> PathBuf {
    let share = dir.join("share");
    run(Command::new(XTASK).arg("share").arg(&share));
    share
}

/// Writes a program. Another process writes it: if a test in another thread started a program while the file is
/// open here, the file could not be executed at once.
fn executable(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let script = r#"printf %s "$2" >"$1" && chmod 755 "$1""#;
    run(Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(path)
        .arg(text));
}

/// Paths of all files and links below a directory, as they would be below `/`.
fn tree(dir: &Path) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let mut next = vec![dir.to_owned()];
    while let Some(at) = next.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                next.push(path);
            } else {
                out.insert(format!("/{}", path.strip_prefix(dir).unwrap().display()));
            }
        }
    }
    out
}

const INSTALLED: &str = "\
/sbin/mount.dwarfs
/sbin/mount.fuse.dwarfs
/usr/local/bin/dwarfs
/usr/local/bin/dwarfsck
/usr/local/bin/dwarfsextract
/usr/local/bin/mkdwarfs
/usr/local/bin/redwarfs
/usr/local/lib/systemd/system/dwarfs-remote@.service
/usr/local/lib/systemd/system/dwarfs-scrub@.service
/usr/local/lib/systemd/system/dwarfs-scrub@.timer
/usr/local/lib/systemd/system/dwarfs@.service
/usr/local/libexec/redwarfs/open-image
/usr/local/share/applications/redwarfs-open.desktop
/usr/local/share/bash-completion/completions/dwarfs
/usr/local/share/bash-completion/completions/dwarfsck
/usr/local/share/bash-completion/completions/dwarfsextract
/usr/local/share/bash-completion/completions/mkdwarfs
/usr/local/share/bash-completion/completions/redwarfs
/usr/local/share/doc/redwarfs/CHANGELOG.md
/usr/local/share/doc/redwarfs/LICENSE-APACHE
/usr/local/share/doc/redwarfs/LICENSE-MIT
/usr/local/share/doc/redwarfs/README.md
/usr/local/share/doc/redwarfs/redwarfs.cdx.json
/usr/local/share/doc/redwarfs/third-party-licences.txt
/usr/local/share/fish/vendor_completions.d/dwarfs.fish
/usr/local/share/fish/vendor_completions.d/dwarfsck.fish
/usr/local/share/fish/vendor_completions.d/dwarfsextract.fish
/usr/local/share/fish/vendor_completions.d/mkdwarfs.fish
/usr/local/share/fish/vendor_completions.d/redwarfs.fish
/usr/local/share/man/man1/dwarfs.1
/usr/local/share/man/man1/dwarfsck.1
/usr/local/share/man/man1/dwarfsextract.1
/usr/local/share/man/man1/mkdwarfs.1
/usr/local/share/man/man1/redwarfs.1
/usr/local/share/man/man5/dwarfs-format.5
/usr/local/share/man/man7/redwarfs.7
/usr/local/share/man/man8/mount.dwarfs.8
/usr/local/share/man/man8/mount.fuse.dwarfs.8
/usr/local/share/mime/packages/redwarfs.xml
/usr/local/share/zsh/site-functions/_dwarfs
/usr/local/share/zsh/site-functions/_dwarfsck
/usr/local/share/zsh/site-functions/_dwarfsextract
/usr/local/share/zsh/site-functions/_mkdwarfs
/usr/local/share/zsh/site-functions/_redwarfs
";

#[test]
fn install_puts_every_file_in_its_place_and_removes_it() {
    let dir = temp();
    let share = share(dir.path());
    let binary = dir.path().join("program");
    executable(&binary, "#!/bin/sh\n");
    let target = dir.path().join("a target");
    let install = |args: &[&str], prefix: Option<&str>| {
        let mut command = Command::new(root().join("scripts/install"));
        command
            .args(args)
            .env("DESTDIR", &target)
            .env("SHARE", &share)
            .env("BINARY", &binary);
        match prefix {
            Some(prefix) => command.env("PREFIX", prefix),
            None => command.env_remove("PREFIX"),
        };
        run(&mut command)
    };
    let want: BTreeSet<String> = INSTALLED.lines().map(str::to_owned).collect();
    install(&[], None);
    assert_eq!(tree(&target), want);
    let listed: BTreeSet<String> = install(&["--list"], None)
        .lines()
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, want);

    // Links lead to the program, and no name of a directory is left open.
    let link = |path: &str| fs::read_link(target.join(path)).unwrap();
    assert_eq!(link("usr/local/bin/mkdwarfs"), Path::new("redwarfs"));
    assert_eq!(
        link("sbin/mount.dwarfs"),
        Path::new("/usr/local/bin/redwarfs")
    );
    for (file, part) in [
        (
            "share/applications/redwarfs-open.desktop",
            "Exec=/usr/local/libexec/redwarfs/open-image %f",
        ),
        (
            "lib/systemd/system/dwarfs@.service",
            "ExecStart=/usr/local/bin/dwarfs ",
        ),
        ("libexec/redwarfs/open-image", "/usr/local/bin/dwarfs "),
    ] {
        let text = fs::read_to_string(target.join("usr/local").join(file)).unwrap();
        assert!(
            text.contains(part) && !text.contains("DIR@") && !text.contains("BIN@"),
            "{file}: {text}"
        );
    }

    // Again over what is there, then away with it. What others have put there stays.
    install(&[], None);
    fs::write(target.join("usr/local/bin/other"), "").unwrap();
    install(&["--uninstall"], None);
    assert_eq!(
        tree(&target),
        BTreeSet::from(["/usr/local/bin/other".to_owned()])
    );
    assert!(!target.join("usr/local/share/doc/redwarfs").exists());

    // Below /usr the link is relative if both directories are.
    install(&["--uninstall"], Some("/usr"));
    let mut command = Command::new(root().join("scripts/install"));
    command
        .env("DESTDIR", &target)
        .env("SHARE", &share)
        .env("BINARY", &binary);
    run(command.env("PREFIX", "/usr").env("SBINDIR", "/usr/sbin"));
    assert_eq!(link("usr/sbin/mount.dwarfs"), Path::new("../bin/redwarfs"));
    // Every file that names a program names it where it is.
    let starts = |prefix: &str| {
        let directory = target.join(format!("{prefix}/lib/systemd/system"));
        let mut starts = Vec::new();
        for unit in fs::read_dir(directory).unwrap() {
            let text = fs::read_to_string(unit.unwrap().path()).unwrap();
            assert!(!text.contains("@UNITBIN@"), "{text}");
            starts.extend(text.lines().filter_map(|line| {
                let start = line.strip_prefix("ExecStart=")?;
                start.split(' ').next().map(str::to_owned)
            }));
        }
        starts.sort();
        starts
    };
    let programs = ["dwarfs", "dwarfs", "dwarfsck"];
    assert_eq!(
        starts("usr"),
        programs.map(|name| format!("/usr/bin/{name}"))
    );
    for file in [
        "share/applications/redwarfs-open.desktop",
        "libexec/redwarfs/open-image",
    ] {
        let text = fs::read_to_string(target.join("usr").join(file)).unwrap();
        assert!(!text.contains("/usr/local"), "{file}: {text}");
    }
    // Units for any of the two prefixes.
    let mut command = Command::new(root().join("scripts/install"));
    command
        .env("DESTDIR", &target)
        .env("SHARE", &share)
        .env("BINARY", &binary)
        .env("UNITBIN", "")
        .env_remove("PREFIX");
    run(&mut command);
    assert_eq!(starts("usr/local"), programs);
}

#[test]
fn install_without_what_it_installs_says_what_to_do() {
    let dir = temp();
    let mut command = Command::new(root().join("scripts/install"));
    command
        .env("DESTDIR", dir.path())
        .env("BINARY", dir.path().join("none"));
    let output = command.output().unwrap();
    assert!(!output.status.success());
    assert!(
        said(&output).contains("run 'cargo build --release' first"),
        "{}",
        said(&output)
    );
    assert!(tree(dir.path()).is_empty());
}

#[test]
fn manual_pages_have_no_warnings() {
    let test = "manual_pages_have_no_warnings";
    let dir = temp();
    run(Command::new(XTASK).arg("man").arg(dir.path()));
    let pages = tree(dir.path());
    for page in [
        "/dwarfs.1",
        "/dwarfs-format.5",
        "/redwarfs.7",
        "/mount.dwarfs.8",
    ] {
        assert!(pages.contains(page), "{page} in {pages:?}");
    }
    if !has(test, "groff") {
        return;
    }
    for page in pages.iter().filter(|page| *page != "/mount.dwarfs.8") {
        check(
            Command::new("groff")
                .args(["-man", "-Tascii", "-ww", "-z"])
                .arg(dir.path().join(&page[1..])),
        );
    }
}

#[test]
fn images_have_a_mime_type() {
    let test = "images_have_a_mime_type";
    if !has(test, "update-mime-database") {
        return;
    }
    let dir = temp();
    let packages = dir.path().join("packages");
    fs::create_dir(&packages).unwrap();
    fs::copy(
        root().join("packaging/share/redwarfs.xml"),
        packages.join("redwarfs.xml"),
    )
    .unwrap();
    // It notes that programs do not look here.
    run(Command::new("update-mime-database").arg(dir.path()));
    let globs = fs::read_to_string(dir.path().join("globs2")).unwrap();
    assert!(
        globs.contains(":application/x-dwarfs:*.dwarfs\n"),
        "{globs}"
    );
    // The magic number as this file format has it: offset, length, bytes.
    let magic = fs::read(dir.path().join("magic")).unwrap();
    let rule = b">0=\x00\x07DWARFS\x02\n";
    assert!(
        magic.windows(rule.len()).any(|part| part == rule),
        "{magic:?}"
    );
}

#[test]
fn desktop_file_and_unit_are_valid() {
    let test = "desktop_file_and_unit_are_valid";
    let dir = temp();
    executable(&dir.path().join("bin/dwarfs"), "#!/bin/sh\n");
    executable(&dir.path().join("bin/dwarfsck"), "#!/bin/sh\n");
    let fill = |name: &str| {
        let text = fs::read_to_string(root().join(format!("packaging/share/{name}.in"))).unwrap();
        let base = dir.path().display().to_string();
        let text = text.replace("@BINDIR@", &format!("{base}/bin"));
        let text = text.replace("@UNITBIN@", &format!("{base}/bin/"));
        let path = dir.path().join(name);
        fs::write(
            &path,
            text.replace("@LIBEXECDIR@", &format!("{base}/libexec")),
        )
        .unwrap();
        path
    };
    if has(test, "desktop-file-validate") {
        check(Command::new("desktop-file-validate").arg(fill("redwarfs-open.desktop")));
    }
    if has(test, "systemd-analyze") {
        check(
            Command::new("systemd-analyze")
                .args(["verify", "--man=no"])
                .arg(fill("dwarfs@.service"))
                .arg(fill("dwarfs-remote@.service"))
                .arg(fill("dwarfs-scrub@.service"))
                .arg(fill("dwarfs-scrub@.timer")),
        );
    }
}

/// systemd itself makes units of lines with images on servers: nothing of ours is needed for that.
#[test]
fn lines_of_fstab_with_urls_become_units() {
    let test = "lines_of_fstab_with_urls_become_units";
    let generator = "/usr/lib/systemd/system-generators/systemd-fstab-generator";
    if !Path::new(generator).exists() {
        return skip(test, "there is no systemd-fstab-generator");
    }
    let dir = temp();
    let fstab = dir.path().join("fstab");
    let lines = "\
https://example.org/a%20b/x.dwarfs?v=1 /mnt/x fuse.dwarfs ro,nofail,_netdev,x-systemd.automount 0 0
s3://bucket/y.dwarfs /mnt/y dwarfs noauto,_netdev,allow_other,x-systemd.mount-timeout=60s 0 0
http://example.org/z.dwarfs /mnt/z dwarfs defaults,_netdev 0 0
";
    fs::write(&fstab, lines).unwrap();
    let out = dir.path().join("units");
    fs::create_dir(&out).unwrap();
    // A program of systemd from before release 250 reads another file.
    run(Command::new(generator)
        .args([&out, &out, &out])
        .env("SYSTEMD_FSTAB", &fstab));
    let Ok(unit) = fs::read_to_string(out.join("mnt-x.mount")) else {
        return skip(test, "systemd-fstab-generator reads no other fstab");
    };
    for line in [
        "What=https://example.org/a%%20b/x.dwarfs?v=1\n",
        "Where=/mnt/x\n",
        "Type=fuse.dwarfs\n",
        "Options=ro,nofail,_netdev,x-systemd.automount\n",
    ] {
        assert!(unit.contains(line), "{line:?} in {unit}");
    }
    let made = |path: &str| fs::symlink_metadata(out.join(path)).is_ok();
    assert!(made("mnt-x.automount") && made("remote-fs.target.wants/mnt-x.automount"));
    assert!(made("remote-fs.target.requires/mnt-z.mount"));
    assert!(made("mnt-y.mount") && !made("remote-fs.target.requires/mnt-y.mount"));
    if has(test, "systemd-analyze") {
        let units = [
            "mnt-x.mount",
            "mnt-x.automount",
            "mnt-y.mount",
            "mnt-z.mount",
        ];
        check(
            Command::new("systemd-analyze")
                .args(["verify", "--man=no"])
                .args(units.map(|unit| out.join(unit))),
        );
    }
}

/// The program behind the desktop file, with other programs in the place of the driver and the file manager.
#[test]
fn a_double_click_mounts_the_image_once() {
    let test = "a_double_click_mounts_the_image_once";
    if !has(test, "mountpoint") {
        return;
    }
    let dir = temp();
    let base = dir.path().canonicalize().unwrap();
    let text = fs::read_to_string(root().join("packaging/share/open-image.in")).unwrap();
    let program = base.join("open-image");
    executable(
        &program,
        &text.replace("@BINDIR@", &format!("{}/bin", base.display())),
    );
    let calls = base.join("calls");
    let note = format!(
        "#!/bin/sh\necho \"${{0##*/}} $*\" >>'{}'\n",
        calls.display()
    );
    executable(&base.join("bin/dwarfs"), &note);
    executable(&base.join("bin/xdg-open"), &note);
    let image = base.join("an image.dwarfs");
    fs::write(&image, "x").unwrap();
    let runtime = base.join("run");
    fs::create_dir(&runtime).unwrap();
    let path = format!("{}/bin:{}", base.display(), std::env::var("PATH").unwrap());
    let open = |image: &Path| {
        let mut command = Command::new(&program);
        command
            .arg(image)
            .env("PATH", &path)
            .env("XDG_RUNTIME_DIR", &runtime);
        command
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY")
            .output()
            .unwrap()
    };
    let output = open(&image);
    assert!(output.status.success(), "{}", said(&output));
    let text = fs::read_to_string(&calls).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let dir = lines[1].strip_prefix("xdg-open ").unwrap();
    assert!(
        dir.starts_with(&format!("{}/redwarfs/", runtime.display())),
        "{dir}"
    );
    assert!(dir.ends_with("/an image"), "{dir}");
    assert_eq!(
        lines[0],
        format!("dwarfs {} {dir} -o timeout=10m", image.display())
    );

    // If the driver refuses, its message is shown, and no directory stays.
    executable(
        &base.join("bin/dwarfs"),
        "#!/bin/sh\necho broken image >&2\nexit 1\n",
    );
    fs::remove_dir_all(runtime.join("redwarfs")).unwrap();
    let output = open(&image);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("an image.dwarfs: broken image"),
        "{}",
        said(&output)
    );
    assert_eq!(fs::read_dir(runtime.join("redwarfs")).unwrap().count(), 0);
    let output = open(&base.join("none.dwarfs"));
    assert_eq!(output.status.code(), Some(1));
}

fn package(dist: &Path) -> Command {
    let mut command = Command::new(root().join("scripts/package"));
    command
        .env("DIST", dist)
        .env("MAINTAINER", "A Packager <packager@example.org>");
    command
}

/// Each recipe is filled in and can be parsed, as far as the programs for it are here.
#[test]
fn recipes_are_filled_in_and_parse() {
    let test = "recipes_are_filled_in_and_parse";
    let dir = temp();
    // The archive that the recipes name; what is in it does not matter here.
    let version = env!("CARGO_PKG_VERSION");
    fs::write(
        dir.path().join(format!("redwarfs-{version}.tar.gz")),
        "archive",
    )
    .unwrap();
    let url = "https://example.org/redwarfs";
    let out = run(package(dir.path()).args(["recipes", url]));
    assert_eq!(out.lines().count(), 5, "{out}");
    let open = regex::Regex::new("@[A-Z0-9]+@").unwrap();
    for path in out.lines() {
        let text = fs::read_to_string(path).unwrap();
        assert!(!open.is_match(&text), "{path}: {:?}", open.find(&text));
        assert!(text.contains(url) && text.contains(version), "{path}");
    }
    let recipe = |name: &str| dir.path().join(name);
    run(Command::new("bash").arg("-n").arg(recipe("PKGBUILD")));
    // .SRCINFO says what PKGBUILD says.
    let script = r#"source "$1"; echo "pkgver = $pkgver"; echo "source = ${source[0]}"
        printf 'arch = %s\n' "${arch[@]}"; printf 'depends = %s\n' "${depends[@]}"
        printf 'makedepends = %s\n' "${makedepends[@]}"; printf 'optdepends = %s\n' "${optdepends[@]}"
        echo "sha256sums = ${sha256sums[0]}"; echo "pkgdesc = $pkgdesc"; echo "license = ${license[0]}""#;
    let fields = run(Command::new("bash")
        .args(["-c", script, "bash"])
        .arg(recipe("PKGBUILD")));
    let info = fs::read_to_string(recipe(".SRCINFO")).unwrap();
    for field in fields.lines() {
        assert!(
            info.lines().any(|line| line.trim() == field),
            "{field} in {info}"
        );
    }
    for (program, args, name) in [
        ("ruby", &["-c"][..], "redwarfs.rb"),
        ("nix-instantiate", &["--parse"], "redwarfs.nix"),
        ("rpmspec", &["--parse"], "redwarfs.spec"),
    ] {
        if has(test, program) {
            run(Command::new(program)
                .args(args)
                .arg(recipe(name))
                .env("HOME", dir.path()));
        }
    }
    // What would break a recipe is refused.
    for (url, maintainer) in [
        ("https://example.org/a|b", "A <a@b>"),
        ("ftp://example.org", "A <a@b>"),
        (url, "nobody"),
    ] {
        let output = package(dir.path())
            .args(["recipes", url])
            .env("MAINTAINER", maintainer)
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(1),
            "{url} {maintainer}: {}",
            said(&output)
        );
    }
}

/// A package with a small program in the place of ours.
#[test]
fn a_debian_package_has_everything() {
    let test = "a_debian_package_has_everything";
    if !["dpkg-deb", "dpkg-shlibdeps", "strip"]
        .iter()
        .all(|program| has(test, program))
    {
        return;
    }
    let dir = temp();
    let share = share(dir.path());
    let make = |kind: &str, name: &str| {
        let dist = dir.path().join(name);
        let out = run(package(&dist)
            .args([kind, "/bin/true"])
            .env("SHARE", &share)
            .env("SOURCE_DATE_EPOCH", "1700000000"));
        PathBuf::from(out.trim())
    };
    let deb = make("deb", "one");
    assert!(
        fs::read(&deb).unwrap() == fs::read(make("deb", "two")).unwrap(),
        "the bytes can be repeated"
    );
    let fields = run(Command::new("dpkg-deb").arg("-f").arg(&deb));
    for field in [
        "Package: redwarfs\n",
        "Depends: libc6 (",
        "Conflicts: dwarfs\n",
        "Provides: dwarfs\n",
    ] {
        assert!(fields.contains(field), "{field:?} in {fields}");
    }
    let files = run(Command::new("dpkg-deb").arg("-c").arg(&deb));
    for file in [
        "./usr/bin/redwarfs\n",
        "./usr/bin/mkdwarfs -> redwarfs\n",
        "./usr/sbin/mount.dwarfs -> ../bin/redwarfs\n",
        "./usr/sbin/mount.fuse.dwarfs -> ../bin/redwarfs\n",
        "./usr/share/man/man1/mkdwarfs.1.gz\n",
        "./usr/share/man/man5/dwarfs-format.5.gz\n",
        "./usr/share/man/man7/redwarfs.7.gz\n",
        "./usr/share/man/man8/mount.fuse.dwarfs.8.gz\n",
        "./usr/share/doc/redwarfs/copyright\n",
        "./usr/share/doc/redwarfs/changelog.Debian.gz\n",
        "./usr/share/doc/redwarfs/third-party-notices.txt.gz\n",
        "./usr/share/zsh/vendor-completions/_mkdwarfs\n",
    ] {
        assert!(files.contains(file), "{file:?} in {files}");
    }
    assert!(
        files.lines().all(|line| line.contains(" root/root ")),
        "{files}"
    );

    let runtime = make("runtime-deb", "one");
    if has(test, "lintian") {
        for package in [&deb, &runtime] {
            check(
                Command::new("lintian")
                    .args(["--allow-root", "--fail-on", "error,warning"])
                    .arg(package),
            );
        }
    }
    let files = run(Command::new("dpkg-deb").arg("-c").arg(&runtime));
    assert!(
        files.contains("./usr/lib/redwarfs/dwarfs-runtime\n"),
        "{files}"
    );
}
