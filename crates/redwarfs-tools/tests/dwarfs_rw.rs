//! Mounts that programs may write to: `-o rw=DIR`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::driver;
use crate::driver::{
    DWARFS, Mount, alive, as_user, can_mount, driver_of, in_namespace, kill, run, stderr, stdout,
    table_line, temp, wait_until,
};
use redwarfs_testkit::skip;
use rustix::process::Signal;

const MKDWARFS: &str = env!("CARGO_BIN_EXE_mkdwarfs");

/// An image of a small tree.
fn image(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub/deep")).expect("mkdir");
    fs::write(tree.join("settings"), "one\n").expect("write");
    fs::write(tree.join("sub/data"), vec![7; 300_000]).expect("write");
    fs::write(tree.join("sub/deep/old"), "old\n").expect("write");
    let image = dir.join("image.dwarfs");
    let built = Command::new(MKDWARFS)
        .args(["--log-level=warn", "-l1", "-i"])
        .arg(&tree)
        .arg("-o")
        .arg(&image)
        .output()
        .expect("mkdwarfs can be started");
    assert!(built.status.success(), "{}", stderr(&built));
    image
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path.as_ref()).unwrap_or_else(|e| panic!("{:?}: {e}", path.as_ref()))
}

#[test]
fn changes_are_kept_and_the_image_stays_as_it_is() {
    if !can_mount("changes_are_kept_and_the_image_stays_as_it_is") {
        return;
    }
    let dir = temp();
    let image = image(dir.path());
    let before = fs::read(&image).expect("read");
    let layer = dir.path().join("layer");
    let options = format!("rw={}", layer.display());
    {
        let mount = Mount::background(&image, &options);
        let line = table_line(mount.point()).expect("mounted");
        assert!(line.contains(" rw,"), "{line}");
        fs::write(mount.point().join("settings"), "two\n").expect("writable");
        fs::remove_dir_all(mount.point().join("sub/deep")).expect("rm -r");
        fs::create_dir(mount.point().join("sub/deep")).expect("mkdir");
        let pid = driver_of(mount.point());
        driver::unmount(mount.point());
        wait_until("the end of the driver", || !alive(pid));
    }
    let private = fs::metadata(&layer).expect("made").permissions();
    assert_eq!(private.mode() & 0o777, 0o700);
    assert_eq!(read(layer.join("upper/settings")), "two\n");
    assert_eq!(fs::read(&image).expect("read"), before);
    let mount = Mount::background(&image, &options);
    assert_eq!(read(mount.point().join("settings")), "two\n");
    assert!(!mount.point().join("sub/deep/old").exists());
    assert_eq!(
        fs::metadata(mount.point().join("sub/data"))
            .expect("stat")
            .len(),
        300_000
    );
    // A second mount would change the same files behind the back of the first.
    let other = Mount::new_dir();
    let options = OsStr::new(&options);
    let refused = run(&[
        image.as_os_str(),
        other.path().as_os_str(),
        OsStr::new("-o"),
        options,
    ]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    let text = stderr(&refused);
    assert!(text.contains("another mount uses it"), "{text}");
    // What the driver says of itself is there, too.
    fs::write(mount.point().join("new"), "").expect("writable");
    assert!(alive(driver_of(mount.point())));
}

/// Directories of temporary changes.
fn temporaries(dir: &Path) -> usize {
    let names = fs::read_dir(dir).expect("readable");
    let names = names.map(|entry| entry.expect("an entry").file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("dwarfs-rw-"))
        .count()
}

#[test]
fn temporary_changes_are_forgotten() {
    if !can_mount("temporary_changes_are_forgotten") {
        return;
    }
    let dir = temp();
    let image = image(dir.path());
    for killed in [false, true] {
        let mount = Mount::on(Mount::new_dir());
        let output = driver::dwarfs()
            .env("TMPDIR", dir.path())
            .arg(&image)
            .arg(mount.point())
            .args(["-o", "rw=tmp"])
            .output()
            .expect("the program can be started");
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(read(mount.point().join("settings")), "one\n");
        fs::write(mount.point().join("settings"), "two\n").expect("writable");
        assert_eq!(temporaries(dir.path()), 1);
        let pid = driver_of(mount.point());
        match killed {
            true => kill(pid, Signal::KILL),
            false => driver::unmount(mount.point()),
        }
        wait_until("the changes to go", || temporaries(dir.path()) == 0);
        wait_until("the mount to go", || table_line(mount.point()).is_none());
    }
}

#[test]
fn options_that_contradict_writing_are_refused() {
    let dir = temp();
    let image = image(dir.path());
    let point = Mount::new_dir();
    for (other, message) in [
        ("ro", "rw=DIR cannot be used with ro"),
        ("readonly", "rw=DIR cannot be used with readonly"),
        (
            "case_insensitive",
            "rw=DIR cannot be used with case_insensitive",
        ),
        ("snapshots=all", "rw=DIR cannot be used with snapshots"),
        ("follow_newest", "rw=DIR cannot be used with follow_newest"),
        ("rw=", "option 'rw' needs a path"),
    ] {
        let options = format!("rw={},{other}", dir.path().join("layer").display());
        let output = run(&[
            image.as_os_str(),
            point.path().as_os_str(),
            OsStr::new("-o"),
            OsStr::new(&options),
        ]);
        assert_eq!(output.status.code(), Some(1), "{other}");
        assert!(
            stderr(&output).contains(message),
            "{other}: {}",
            stderr(&output)
        );
        assert!(!dir.path().join("layer").exists(), "{other}");
    }
    let file = dir.path().join("file");
    fs::write(&file, "").expect("write");
    let options = format!("rw={}", file.display());
    let output = run(&[
        image.as_os_str(),
        point.path().as_os_str(),
        OsStr::new("-o"),
        OsStr::new(&options),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("cannot use writable layer"), "{text}");
}

#[test]
fn users_write_without_privilege() {
    let test = "users_write_without_privilege";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let image = image(dir.path());
    for name in ["mnt", "layer", "layer2"] {
        fs::create_dir(dir.path().join(name)).expect("mkdir");
        let path = dir.path().join(name);
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("chown");
    }
    let script = r#"
        mnt=$1/mnt
        work='set -e; cd "$1"
            echo two >settings; rm -r sub/deep; mkdir -p sub/deep/new; chmod 700 sub
            mv sub/data data; ln data link; ln -s data soft; mkfifo pipe
            chmod 400 link; ! echo x 2>/dev/null >link
            find . -printf "%p %y %m %n %U:%G\n" | grep -v "^[.] " | sort'
        user "$2" "$3" "$mnt" -o "rw=$1/layer"
        user sh -c "$work" sh "$mnt" >"$1/seen"
        user fusermount3 -u "$mnt"
        user "$2" "$3" "$mnt" -o "rw=$1/layer"
        user sh -c 'cd "$1"; find . -printf "%p %y %m %n %U:%G\n" | grep -v "^[.] " | sort' sh "$mnt" >"$1/again"
        user fusermount3 -u "$mnt"
        diff "$1/seen" "$1/again"; cat "$1/seen"
        if user unshare -rm true 2>/dev/null; then
            user unshare -rm sh -ec '"$1" "$2" "$3" -o "rw=$4"; echo two >"$3/settings"; rm -r "$3/sub/deep"
                ls "$3/sub"; umount "$3"' sh "$2" "$3" "$mnt" "$1/layer2"
            echo "namespace: written"
        else
            echo "namespace: none"
        fi"#;
    let Some(output) = as_user(test, script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    for line in [
        "./data f 400 2 65534:65534",
        "./pipe p 644 1 65534:65534",
        "./settings f 644 1 65534:65534",
        "./soft l 777 1 65534:65534",
        "./sub/deep/new d 755 2 65534:65534",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line}: {text}{errors}"
        );
    }
    assert!(!text.contains("sub/deep/old"), "{text}");
    match text.contains("namespace: none") {
        true => skip(
            test,
            "users may not make namespaces here: that part is left out",
        ),
        false => assert!(text.contains("data\nnamespace: written"), "{text}{errors}"),
    }
}

/// What the kernel allows a user is done, whatever the modes of the files say to the driver of this user.
#[test]
fn modes_keep_no_change_of_a_user_out() {
    let test = "modes_keep_no_change_of_a_user_out";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    for name in ["ro", "ro2", "d", "w", "e", "o", "in"] {
        fs::create_dir_all(tree.join(name)).expect("mkdir");
        fs::write(tree.join(name).join("f"), "old\n").expect("write");
    }
    fs::remove_file(tree.join("w/f")).expect("rm");
    fs::write(tree.join("open"), "old\n").expect("write");
    let only = |name: &str| fs::set_permissions(tree.join(name), PermissionsExt::from_mode(0o555));
    only("ro").and_then(|()| only("ro2")).expect("chmod");
    let image = image(dir.path());
    for name in ["mnt", "layer", "tmp"] {
        fs::create_dir(dir.path().join(name)).expect("mkdir");
        let path = dir.path().join(name);
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("chown");
    }
    let script = r#"
        mnt=$1/mnt
        user "$2" "$3" "$mnt" -o "rw=$1/layer"
        user sh -ec 'cd "$1"
            echo new >ro/f; stat -c "ro %a" ro
            chmod u+w ro2; echo more >ro2/new
            rm -r d; mkdir -m 555 d; stat -c "d %a" d
            chmod 555 w; rmdir w; mkdir w; echo x >w/x
            chmod 555 w; rm -f w/x 2>/dev/null || chmod u+w w; rm w/x; chmod 555 w; rmdir w
            rm e/f; chmod 333 e
            rm -r o; mkdir o; chmod 333 o
            exec 7<open 8<in/f; chmod 000 open; chmod 000 in; cat <&7; cat <&8
            chmod 700 in; echo new >in/f; cat in/f' sh "$mnt"
        user fusermount3 -u "$mnt"
        user "$2" "$3" "$mnt" -o "rw=$1/layer"
        user sh -ec 'cd "$1"
            stat -c "%n %a" ro ro2 d e o open
            test ! -e e/f; test ! -e o/f; test ! -e w
            echo "now:"; cat ro/f ro2/new; ls d
            rmdir e o d
            ls' sh "$mnt"
        user fusermount3 -u "$mnt"
        user env "TMPDIR=$1/tmp" "$2" "$3" "$mnt" -o rw=tmp
        user sh -ec 'cd "$1"; echo new >ro/f; mkdir -p a/b; echo x >a/b/c; chmod 111 a/b; chmod 0 a' sh "$mnt"
        user fusermount3 -u "$mnt"
        tries=0
        while [ -n "$(ls "$1/tmp")" ] && [ "$tries" -lt 200 ]; do sleep 0.1; tries=$((tries + 1)); done
        ls "$1/tmp""#;
    let Some(output) = as_user(test, script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    let expected = "ro 555\nd 555\nold\nold\nnew\nro 555\nro2 755\nd 555\ne 333\no 333\nopen 0\n\
                    now:\nnew\nmore\nin\nopen\nro\nro2\nsettings\nsub\n";
    assert_eq!(text, expected, "{errors}");
}

/// A driver in the foreground whose syncing is recorded.
struct Traced {
    mount: Mount,
    tracer: Child,
    record: PathBuf,
}

impl Traced {
    /// None, with a note, if this machine cannot do so.
    fn new(test: &str, dir: &Path, options: &str) -> Option<Self> {
        let tries = Command::new("strace")
            .args(["-f", "-y", "-o", "/dev/null", "true"])
            .output();
        if !tries.is_ok_and(|tried| tried.status.success()) {
            skip(test, "strace cannot be used");
            return None;
        }
        let record = dir.join("record");
        let mount = Mount::on(Mount::new_dir());
        let tracer = Command::new("strace")
            .args(["-f", "-y", "-e", "trace=fsync,fdatasync", "-o"])
            .arg(&record)
            .args([DWARFS, "-f", "-o", options])
            .arg(image(dir))
            .arg(mount.point())
            .stderr(Stdio::null())
            .spawn()
            .expect("strace can be started");
        wait_until("the mount", || table_line(mount.point()).is_some());
        Some(Self {
            mount,
            tracer,
            record,
        })
    }

    /// The files of `upper` and `work` that were synced, with `data` for those of which only the data was.
    fn synced(&self) -> Vec<String> {
        let text = read(&self.record);
        let line = |line: &str| {
            let (call, rest) = line.split_once("sync(")?;
            let path = rest.split_once('<')?.1.split_once('>')?.0;
            let is_data = call.ends_with("fdata");
            let (_, place) = path.split_once("/layer/")?;
            let is_own = ["upper", "work"].contains(&place.split('/').next()?);
            is_own.then(|| format!("{path}{}", if is_data { " data" } else { "" }))
        };
        text.lines().filter_map(line).collect()
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        driver::unmount(self.mount.point());
        let _ = self.tracer.wait();
    }
}

#[test]
fn syncing_reaches_the_files_of_the_layer() {
    let test = "syncing_reaches_the_files_of_the_layer";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let layer = dir.path().join("layer");
    let options = format!("rw={}", layer.display());
    let Some(traced) = Traced::new(test, dir.path(), &options) else {
        return;
    };
    let root = traced.mount.point();
    let upper = |name: &str| layer.join("upper").join(name).display().to_string();
    let top = layer.join("upper").display().to_string();
    let reached = |what: &str, wanted: &[String], count: usize| {
        wait_until(what, || traced.synced().len() >= count);
        let synced = traced.synced();
        let last = &synced[synced.len() - wanted.len()..];
        assert_eq!((last, synced.len()), (wanted, count), "{what}: {synced:?}");
    };
    // A copy is on the medium before it takes its place.
    let data = File::options().write(true).open(root.join("sub/data"));
    let data = data.expect("open");
    wait_until("the copy", || !traced.synced().is_empty());
    let work = layer.join("work/#rw-").display().to_string();
    assert!(
        traced.synced()[0].starts_with(&work),
        "{:?}",
        traced.synced()
    );
    // Then its data and its names are, and those of the directories that lead to it.
    data.sync_all().expect("sync");
    reached("a copy", &[upper("sub/data"), upper("sub"), top.clone()], 4);
    data.sync_data().expect("sync");
    reached("the same again", &[upper("sub/data") + " data"], 5);
    fs::create_dir(root.join("new")).expect("a directory");
    let file = File::create(root.join("new/file")).expect("a file");
    file.sync_data().expect("sync");
    let wanted = [upper("new/file") + " data", upper("new"), top.clone()];
    reached("a new file", &wanted, 8);
    fs::rename(root.join("new/file"), root.join("new/renamed")).expect("rename");
    let directory = File::open(root.join("new")).expect("open");
    directory.sync_all().expect("sync");
    reached("a directory", &[upper("new")], 9);
    file.sync_all().expect("sync");
    reached("a new name", &[upper("new/renamed"), upper("new")], 11);
}

#[test]
fn what_was_synced_outlives_a_killed_driver() {
    if !can_mount("what_was_synced_outlives_a_killed_driver") {
        return;
    }
    let dir = temp();
    let image = image(dir.path());
    let layer = dir.path().join("layer");
    let options = format!("rw={}", layer.display());
    let rounds = 6;
    for round in 0..rounds {
        let mount = Mount::background(&image, &options);
        let pid = driver_of(mount.point());
        // Changes copies, new files and names, and says what it has synced.
        let script = r#"
            import os, sys
            round = sys.argv[1]
            os.chdir(sys.argv[2])
            number = 0
            try:
                while True:
                    name = f"sub/new-{round}-{number}"
                    with open(name + ".part", "wb") as file:
                        file.write(f"{round} {number}\n".encode() * 1000)
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(name + ".part", name)
                    with open("sub/data", "r+b") as file:
                        file.seek(number * 16)
                        file.write(f"{number:15}\n".encode())
                        os.fsync(file.fileno())
                    print(number, flush=True)
                    number += 1
            except OSError:
                pass
        "#;
        let script = script
            .lines()
            .map(|line| line.strip_prefix("            ").unwrap_or(line));
        let mut program = Command::new("python3")
            .arg("-c")
            .arg(script.collect::<Vec<_>>().join("\n"))
            .arg(round.to_string())
            .arg(mount.point())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python can be started");
        let lines = BufReader::new(program.stdout.take().expect("piped"));
        let mut synced = None;
        for line in lines.lines() {
            let number: usize = line.expect("text").parse().expect("a number");
            synced = Some(number);
            // Somewhere in the steps that follow.
            if number == 3 + 2 * round {
                kill(pid, Signal::KILL);
            }
        }
        assert!(program.wait().expect("wait").success());
        wait_until("the mount to go", || table_line(mount.point()).is_none());
        let synced = synced.expect("something was synced");
        let after = Mount::background(&image, &options);
        for number in 0..=synced {
            let text = read(after.point().join(format!("sub/new-{round}-{number}")));
            assert_eq!(text, format!("{round} {number}\n").repeat(1000));
        }
        let mut data = Vec::new();
        let mut file = File::open(after.point().join("sub/data")).expect("open");
        file.read_to_end(&mut data).expect("read");
        assert_eq!(data.len(), 300_000);
        for number in 0..=synced {
            let part = &data[number * 16..][..16];
            assert_eq!(part, format!("{number:15}\n").as_bytes());
        }
        assert_eq!(data[299_999], 7);
        drop(file);
        driver::unmount(after.point());
    }
}

#[test]
fn programs_are_built_inside() {
    let test = "programs_are_built_inside";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("src")).expect("mkdir");
    let makefile =
        "prog: src/main.o src/part.o\n\tcc -o $@ $^\n%.o: %.c src/part.h\n\tcc -c -o $@ $<\n";
    fs::write(tree.join("Makefile"), makefile).expect("write");
    fs::write(tree.join("src/part.h"), "int part(void);\n").expect("write");
    let main = "#include <stdio.h>\n#include \"part.h\"\nint main(void){printf(\"%d\\n\", part());return 0;}\n";
    fs::write(tree.join("src/main.c"), main).expect("write");
    fs::write(
        tree.join("src/part.c"),
        "#include \"part.h\"\nint part(void){return 41;}\n",
    )
    .expect("write");
    let image = image(dir.path());
    let script = r#"
        for tool in git make cc; do command -v "$tool" >/dev/null || exit 77; done
        mkdir "$1/mnt"; "$2" "$3" "$1/mnt" -o "rw=$1/layer"
        cd "$1/mnt"
        export GIT_CONFIG_NOSYSTEM=1 HOME="$1" GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git init -q; git add .; git commit -qm first
        git clone -q . clone
        cd clone; make >/dev/null; ./prog
        sed -i s/41/42/ src/part.c; make >/dev/null; ./prog
        git commit -qam second; git push -q origin HEAD:refs/heads/other
        cd ..; git merge -q other; git gc -q; git fsck --no-progress; git status --short; make >/dev/null; ./prog; make -q && echo done
        cd /; umount "$1/mnt"; "$2" "$3" "$1/mnt" -o "rw=$1/layer"; "$1/mnt/prog"; git -C "$1/mnt" log --oneline | wc -l; umount "$1/mnt""#;
    let Some(output) = in_namespace(test, script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    if output.status.code() == Some(77) {
        return skip(test, "there is no git, make or C compiler");
    }
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    let expected = "41\n42\n?? clone/\n42\ndone\n42\n2\n";
    assert_eq!(text, expected, "{}", stderr(&output));
}
