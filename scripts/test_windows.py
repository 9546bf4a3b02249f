"""Runs the programs for Windows under Wine, beside the same programs of this system.

    test_windows.py DIR_OF_LINUX_PROGRAMS DIR_OF_WINDOWS_PROGRAMS DIR_OF_THE_FAKE_OF_WINFSP

scripts/test-windows builds both and calls this.
"""

import hashlib
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib

LINUX, WINDOWS, WINFSP = (pathlib.Path(arg).resolve() for arg in sys.argv[1:4])
ROOT = pathlib.Path(__file__).resolve().parent.parent
IMAGES = sorted((ROOT / "tests/fixtures").glob("*/*.dwarfs"))
WORK = pathlib.Path(tempfile.mkdtemp(prefix="redwarfs-windows-"))
ENV = dict(os.environ, SOURCE_DATE_EPOCH="1600000000")

passed, failed, skipped = [], [], []


def run(tool, *args, wine=True, cwd=WORK, timeout=600, **env):
    """The completed process of a tool; wine is False for the one of this system."""
    program = ["wine", f"{WINDOWS / tool}.exe"] if wine else [str(LINUX / tool)]

    def once():
        return subprocess.run(
            [*program, *map(str, args)], cwd=cwd, env=ENV | env, timeout=timeout, capture_output=True, stdin=subprocess.DEVNULL
        )

    done = once()
    if wine and done.returncode == -signal.SIGKILL:
        # On a busy machine, the server of Wine kills a program that has ended but is slow to go: 8 of 360 runs, six at a time.
        done = once()
    return done


def text(done):
    return (done.stderr + done.stdout).decode(errors="replace")


def check(name):
    """Decorates a test, which runs at once."""

    def decorate(test):
        start = time.monotonic()
        try:
            note = test()
            passed.append(name)
            print(f"ok: {name}{f' ({note})' if note else ''} [{time.monotonic() - start:.0f} s]", flush=True)
        except Skip as why:
            skipped.append(name)
            print(f"SKIPPED: {name}: {why}", flush=True)
        except (AssertionError, OSError, subprocess.SubprocessError, KeyError) as e:
            failed.append(name)
            print(f"FAILED: {name}: {type(e).__name__} {e}", flush=True)
        return test

    return decorate


class Skip(Exception):
    pass


def expect(done, code=0):
    assert done.returncode == code, f"exit code {done.returncode}: {text(done)[-2000:]}"
    return done


def fresh(name):
    path = WORK / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def snapshot(root):
    """Contents of all files below a directory."""
    return {
        str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file() and not p.is_symlink()
    }


def tree(root, large=False):
    """A tree that both systems can hold."""
    (root / "docs/deep/er").mkdir(parents=True)
    (root / "empty").mkdir()
    shutil.copytree(ROOT / "crates/redwarfs-format/src", root / "text")
    for image in IMAGES[:10]:
        shutil.copy(image, root / "docs/deep")
    (root / "näme with späces — €.txt").write_text("unicode\n")
    (root / "docs/zeros").write_bytes(bytes(300_000))
    (root / "docs/same").write_bytes(IMAGES[0].read_bytes())
    (root / "run.exe").write_bytes(b"MZ" + bytes(range(256)) * 40)
    (root / "none").write_bytes(b"")
    if large:
        block = hashlib.sha256(b"x").digest() * 4096
        (root / "large").write_bytes(b"".join(bytes((n * 31 + b) & 255 for b in block) for n in range(80)))
    os.link(root / "text/lib.rs", root / "docs/twin")
    for path in [*root.rglob("*"), root]:
        os.utime(path, (1_600_000_000, 1_500_000_000))
    return root


# Images of this system, read on Windows.


def size_of(image):
    """Bytes of all files of an image, holes included."""
    info = json.loads(run("dwarfsck", "-j", image, wine=False).stdout)
    return info["original_filesystem_size"]


# Some images have a file with a hole of 6 GB.
SMALL = [image for image in IMAGES if size_of(image) < 50 << 20]


@check("golden images: the lists are the same, and the checksums of all files")
def golden_checksums():
    for image in IMAGES:
        for args in (["-q", "--check-integrity"], ["-l", "-j"], ["--checksum=sha256"]):
            if "--checksum=sha256" in args and image not in SMALL:
                continue
            here, there = run("dwarfsck", *args, image, wine=False), run("dwarfsck", *args, image)
            assert here.returncode == there.returncode, f"{image.name} {args}: {text(there)[-500:]}"
            # Threads finish in any order.
            assert sorted(here.stdout.splitlines()) == sorted(there.stdout.splitlines()), f"{image.name} {args}"
    return f"{len(IMAGES)} images, checksums of {len(SMALL)}"


@check("golden images: tar and zip streams are the same bytes")
def golden_archives():
    different = []
    for image in SMALL:
        for args in (["-f", "pax"], ["-f", "zip", "--continue-on-error"]):
            here, there = run("dwarfsextract", image, *args, wine=False), run("dwarfsextract", image, *args)
            if (here.returncode, here.stdout) != (there.returncode, there.stdout):
                different.append(f"{image.name} {args[1]}")
    assert not different, different
    return f"{2 * len(SMALL)} archives"


@check("contents of a file go to standard output without changes")
def contents():
    source = fresh("raw")
    (source / "raw").write_bytes(bytes(range(256)) + b"\n\r\n\x1a\n" * 10)
    expect(run("mkdwarfs", "-i", source, "-o", "raw.dwarfs", "-l1", "--force", wine=False))
    assert expect(run("dwarfsextract", "raw.dwarfs", "--stdout", "raw")).stdout == (source / "raw").read_bytes()


# Images made on Windows.

NEUTRAL = ["--no-create-timestamp", "--no-history", "--set-owner=0", "--set-group=0", "--force"]


@check("an image of the same tree is the same bytes")
def same_image():
    source = tree(fresh("same"), large=True)
    for options in (["-l1"], ["-l5"], ["-l7"], ["-C", "brotli:quality=4"], ["-l5", "--categorize", "--order=path"]):
        args = ["-i", source.name, *NEUTRAL, "--chmod=D755,F644", *options]
        expect(run("mkdwarfs", *args, "-o", "here.dwarfs", wine=False))
        expect(run("mkdwarfs", *args, "-o", "there.dwarfs"))
        here, there = (WORK / "here.dwarfs").read_bytes(), (WORK / "there.dwarfs").read_bytes()
        if here != there:
            details = [json.loads(run("dwarfsck", "-j", "-d", "section_details", f"{n}.dwarfs", wine=False).stdout) for n in ("here", "there")]
            raise AssertionError(f"{options}: {len(here)} and {len(there)} bytes: {str(details)[:1500]}")
    return "5 sets of options, modes and owners made equal"


@check("without that, only modes, owners and status change times differ")
def same_data():
    source = WORK / "same"
    args = ["-i", source.name, "--no-create-timestamp", "--force", "-l5"]
    expect(run("mkdwarfs", *args, "-o", "here.dwarfs", wine=False))
    expect(run("mkdwarfs", *args, "-o", "there.dwarfs"))
    entries = []
    for name in ("here", "there"):
        lines = expect(run("dwarfsck", "-l", "-j", f"{name}.dwarfs", wine=False)).stdout.splitlines()
        entries.append([json.loads(line) for line in lines])
    differing = set()
    assert len(entries[0]) == len(entries[1])
    for here, there in zip(*entries):
        assert here.keys() == there.keys(), (here, there)
        differing |= {key for key in here if here[key] != there[key]}
    allowed = {"mode", "modestring", "permissions", "posix_mode", "uid", "gid", "owner", "group", "ctime", "ctime_nsec"}
    assert differing <= allowed, differing
    sums = [run("dwarfsck", "--checksum=sha256", f"{name}.dwarfs", wine=False).stdout for name in ("here", "there")]
    assert sums[0] == sums[1] and sums[0]
    return ", ".join(sorted(differing)) or "nothing differs"


@check("modes: programs by their name, and the read-only attribute")
def modes():
    source = fresh("modes")
    for name in ("a.txt", "b.exe", "C.BAT", "ro.txt"):
        (source / name).write_text(name)
    os.chmod(source / "ro.txt", 0o444)
    expect(run("mkdwarfs", "-i", "modes", "-o", "modes.dwarfs", "-l1", "--force"))
    lines = expect(run("dwarfsck", "-l", "-j", "modes.dwarfs", wine=False)).stdout.splitlines()
    found = {}
    for entry in map(json.loads, lines):
        mode = next(entry[key] for key in ("mode", "posix_mode", "permissions") if key in entry)
        found[entry["path"]] = int(str(mode), 8) & 0o7777 if isinstance(mode, str) else mode & 0o7777
    want = {"a.txt": 0o644, "b.exe": 0o755, "C.BAT": 0o755, "ro.txt": 0o444}
    assert {path: found[path] for path in want} == want, found


@check("hard links and times survive a build and an extraction on Windows")
def links_and_times():
    source, out = tree(fresh("links")), fresh("links-out")
    expect(run("mkdwarfs", "-i", source.name, "-o", "links.dwarfs", "-l3", "--force"))
    expect(run("dwarfsextract", "links.dwarfs", "-o", out.name))
    assert snapshot(source) == snapshot(out)
    assert (out / "docs/twin").stat().st_ino == (out / "text/lib.rs").stat().st_ino
    for name in ("none", "docs/twin", "docs", "empty"):
        assert (out / name).stat().st_mtime == 1_500_000_000, name


@check("both separators are accepted, and slashes are stored")
def separators():
    source = tree(fresh("seps"))
    (WORK / "list").write_text("text\\lib.rs\r\ndocs/zeros\n".replace("\r", ""))
    expect(run("mkdwarfs", "-i", ".\\seps\\docs\\..", "-o", ".\\seps.dwarfs", "-l1", "--force", "--input-list=list"))
    listed = expect(run("dwarfsck", "-l", "seps.dwarfs")).stdout.decode().split()
    assert listed == ["docs", "docs/zeros", "text", "text/lib.rs"], listed
    stdout = expect(run("dwarfsextract", ".\\seps.dwarfs", "--stdout", "text\\lib.rs")).stdout
    assert stdout == (source / "text/lib.rs").read_bytes()
    rules = ["-F", "- /docs/", "-F", "- same/seps/none"]
    expect(run("mkdwarfs", "-i", "seps", "-o", "rules.dwarfs", "-l1", "--force", *rules))
    listed = expect(run("dwarfsck", "-l", "rules.dwarfs")).stdout.decode().splitlines()
    assert not any(line.startswith("docs") for line in listed) and "none" in listed, listed


@check("long paths are built and extracted")
def long_paths():
    source = fresh("long")
    deep = source
    for _ in range(8):
        deep = deep / ("d" * 60)
    deep.mkdir(parents=True)
    (deep / ("f" * 200)).write_text("deep\n")
    expect(run("mkdwarfs", "-i", "long", "-o", "long.dwarfs", "-l1", "--force"))
    out = fresh("long-out")
    expect(run("dwarfsextract", "long.dwarfs", "-o", "long-out"))
    assert snapshot(source) == snapshot(out)
    return f"{len(str((deep / 'f').relative_to(WORK))) + 200} characters"


# Names.


def image_of(files, name, **more):
    source = fresh(name)
    for path, contents in files.items():
        target = os.path.join(os.fsencode(source), path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        pathlib.Path(os.fsdecode(target)).write_text(contents)
    expect(run("mkdwarfs", "-i", name, "-o", f"{name}.dwarfs", "-l1", "--force", wine=False))
    return source


BAD = [b"CON", b"nul.txt", b"aux", b"com1.log", b"end.", b"end ", b"a:b", b"what?", b"star*", b"back\\slash", b"pipe|", b"<", b"new\nline", b"bad\xff"]


@check("names that Windows cannot hold end the extraction, or are counted")
def bad_names():
    files = {name: "bad" for name in BAD} | {b"good": "good", b"dir/good": "good", b"dir?/inside": "lost"}
    image_of(files, "bad")
    out = fresh("bad-out")
    done = run("dwarfsextract", "bad.dwarfs", "-o", out.name)
    assert done.returncode == 1 and "--continue-on-error" in text(done), text(done)
    out = fresh("bad-out")
    done = expect(run("dwarfsextract", "bad.dwarfs", "-o", out.name, "--continue-on-error"), 2)
    lost = len(BAD) + 2
    assert f"{lost} error(s)" in text(done), text(done)
    for reason in ("name of a device", "no name ends with a dot", "no '?' is allowed", "not UTF-8"):
        assert reason in text(done), reason
    assert sorted(snapshot(out)) == ["dir/good", "good"], snapshot(out)
    return f"{lost} entries counted"


@check("names that differ only in case are never merged")
def case():
    image_of({b"README": "first", b"readme": "second", b"Dir/a": "1", b"dir/b": "2", b"x/\xc3\x84": "3", b"x/\xc3\xa4": "4"}, "case")
    out = fresh("case-out")
    done = run("dwarfsextract", "case.dwarfs", "-o", out.name)
    assert done.returncode == 1 and not (out / "readme").exists() or "first" in (out / "README").read_text(), text(done)
    out = fresh("case-out")
    done = expect(run("dwarfsextract", "case.dwarfs", "-o", out.name, "--continue-on-error"), 2)
    found = {str(p.relative_to(out)): p.read_text() for p in out.rglob("*") if p.is_file()}
    assert found == {"README": "first", "Dir/a": "1", "x/Ä": "3"}, (found, text(done))
    assert "4 error(s)" in text(done), text(done)
    assert "takes it for" in text(done), text(done)


@check("symbolic links, devices and sockets are made or counted")
def specials():
    source = fresh("special")
    (source / "file").write_text("x")
    os.symlink("file", source / "link")
    os.mkfifo(source / "fifo")
    expect(run("mkdwarfs", "-i", "special", "-o", "special.dwarfs", "-l1", "--force", "--with-specials", wine=False))
    out = fresh("special-out")
    done = expect(run("dwarfsextract", "special.dwarfs", "-o", out.name, "--continue-on-error"), 2)
    assert "there are no FIFOs on Windows" in text(done), text(done)
    assert (out / "file").read_text() == "x"
    if not (out / "link").is_symlink():
        assert "link: cannot create symbolic link" in text(done) and "2 error(s)" in text(done), text(done)
    expect(run("dwarfsextract", "special.dwarfs", "-o", fresh("special-out").name, "--skip-symlinks", "--skip-specials"))
    return "made" if (out / "link").is_symlink() else "Wine makes no symbolic links: counted"


@check("the read-only attribute is set, and does not keep a second extraction from replacing the file")
def read_only():
    source = fresh("ro")
    (source / "f").write_text("x")
    os.chmod(source / "f", 0o444)
    expect(run("mkdwarfs", "-i", "ro", "-o", "ro.dwarfs", "-l1", "--force"))
    out = fresh("ro-out")
    for _ in range(2):
        expect(run("dwarfsextract", "ro.dwarfs", "-o", out.name))
        assert os.stat(out / "f").st_mode & 0o222 == 0
    assert (out / "f").read_text() == "x"


# Outputs.


@check("an output is replaced as a whole, and only on request")
def replaced():
    source = tree(fresh("out"))
    (WORK / "out.dwarfs").write_bytes(b"old")
    done = expect(run("mkdwarfs", "-i", "out", "-o", "out.dwarfs", "-l1"), 1)
    assert "--force" in text(done) and (WORK / "out.dwarfs").read_bytes() == b"old"
    expect(run("mkdwarfs", "-i", "out", "-o", "out.dwarfs", "-l1", "--force"))
    expect(run("dwarfsck", "-q", "--check-integrity", "out.dwarfs"))
    os.chmod(WORK / "out.dwarfs", 0o444)
    before = (WORK / "out.dwarfs").read_bytes()
    done = expect(run("mkdwarfs", "-i", "out", "-o", "out.dwarfs", "-l1", "--force"), 1)
    assert "read-only" in text(done), text(done)
    assert (WORK / "out.dwarfs").read_bytes() == before
    assert not [p for p in WORK.iterdir() if p.name.endswith(".tmp")]
    expect(run("dwarfsextract", "out.dwarfs", "-f", "auto", "-o", "out.zip"))
    with zipfile.ZipFile(WORK / "out.zip") as archive:
        assert archive.testzip() is None
    stream = expect(run("dwarfsextract", "out.dwarfs", "-f", "gnutar")).stdout
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        assert archive.extractfile("docs/zeros").read() == bytes(300_000)
    assert source.exists()


@check("Ctrl-C leaves no output")
def interrupted():
    source = fresh("slow")
    state = b"seed"
    with open(source / "big", "wb") as big:
        for _ in range(300):
            state = hashlib.sha512(state).digest()
            big.write(b"".join(hashlib.sha512(state + n.to_bytes(4, "little")).digest().hex().encode() for n in range(800)))
    args = ["wine", f"{WINDOWS / 'mkdwarfs'}.exe", "-i", "slow", "-o", "slow.dwarfs", "-C", "lzma:level=9", "--force", "-N1"]
    started = subprocess.Popen(args, cwd=WORK, env=ENV, stderr=subprocess.PIPE, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not [p for p in WORK.iterdir() if p.name.startswith(".slow.dwarfs")]:
        assert time.monotonic() < until and started.poll() is None, "it did not start to write"
        time.sleep(0.05)
    time.sleep(0.5)
    # Wine makes a Ctrl-C of this signal.
    started.send_signal(signal.SIGINT)
    err = started.communicate(timeout=120)[0 + 1].decode(errors="replace")
    assert started.returncode == 1, (started.returncode, err)
    assert "interrupted, no image was written" in err, err
    assert not (WORK / "slow.dwarfs").exists()
    assert not [p for p in WORK.iterdir() if p.name.endswith(".tmp")]


@check("messages and lists show Unicode")
def unicode():
    image_of({"ä€😀.txt".encode(): "x"}, "unicode")
    assert expect(run("dwarfsck", "-l", "unicode.dwarfs")).stdout.decode() == "ä€😀.txt\n"
    done = expect(run("dwarfsck", "-l", "näme-€.dwarfs"), 1)
    assert "näme-€.dwarfs" in text(done), text(done)
    out = fresh("unicode-out")
    expect(run("dwarfsextract", "unicode.dwarfs", "-o", out.name))
    assert [p.name for p in out.iterdir()] == ["ä€😀.txt"]


# Mounting, with a fake of WinFsp: scripts/winfsp_fake.c.

KEY = r"HKLM\SOFTWARE\WOW6432Node\WinFsp"


def registry(*args):
    subprocess.run(["wine", "reg", *args], env=ENV, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)


@check("dwarfs says that WinFsp is not installed")
def no_winfsp():
    registry("delete", KEY, "/f")
    done = expect(run("dwarfs", "unicode.dwarfs", "X:"), 3)
    assert text(done).strip().endswith("dwarfs: WinFsp is not installed (get it from https://winfsp.dev)"), text(done)
    registry("add", KEY, "/v", "InstallDir", "/d", "C:\\no such directory\\", "/f")
    done = expect(run("dwarfs", "unicode.dwarfs", "X:"), 3)
    assert "WinFsp is not installed" in text(done), text(done)
    registry("add", KEY, "/v", "InstallDir", "/d", "Z:" + str(WINFSP).replace("/", "\\") + "\\", "/f")


def mounted(image, *options):
    """What the fake got from a mount, which ends when it has read everything."""
    done = expect(run("dwarfs", image, *options, REDWARFS_FAKE_LIST="list", REDWARFS_FAKE_STOP="1"), 7)
    assert "WinFsp has ended the mount" in text(done), text(done)
    lines = (WORK / "list").read_text(errors="replace").splitlines()
    assert not [line for line in lines if line.startswith("ERROR")], lines
    assert lines[-5:] == ["write\tc00000a2", "end", "removed", "stopped", "deleted"], lines[-5:]
    return [line.split("\t") for line in lines]


def shown(name):
    """A name as Windows shows it."""
    private = lambda c: chr(0xF000 | ord(c))
    out = "".join(private(c) if c in '<>:"\\|?*' or c < " " else c for c in name)
    out = "".join(chr(0xF000 | ord(c) & 0xFF) if "\udc80" <= c <= "\udcff" else c for c in out)
    return out[:-1] + private(out[-1]) if out[-1:] in (".", " ") and out not in (".", "..") else out


def windows_path(path):
    return "\\".join(map(shown, path.split("/")))


def in_archive(image):
    """What a mount of an image should show, from its archive."""
    stream = run("dwarfsextract", image, "-f", "pax", wine=False).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(stream), encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            # What shares its data with an earlier name has the attributes, too.
            file = archive.getmember(member.linkname) if member.islnk() else member
            name = member.name.strip("/").removeprefix("./")
            if name in ("", "."):
                continue
            path = "\\" + windows_path(name)
            if file.isdir():
                found[path] = ("dir",)
            elif file.isreg():
                contents = archive.extractfile(file).read()
                found[path] = ("file", "80" if file.mode & 0o200 else "1", f"{zlib.crc32(contents):08x}", int(file.mtime // 1))
            elif file.issym():
                target = "\\".join(shown(part) for part in file.linkname.split("/") if part)
                found[path] = ("link", "a000000c", "\\" + target if file.linkname[0] == "/" else target)
            else:
                found[path] = ("link", "80000014", "")
    return found


def in_mount(lines):
    found = {}
    for kind, *rest in lines:
        if kind == "dir" and rest != ["\\"]:
            found[rest[0]] = ("dir",)
        elif kind == "file":
            attributes, checksum, ticks, path = rest
            found[path] = ("file", attributes, checksum, int(ticks) // 10**7 - 11_644_473_600)
        elif kind == "link":
            _, tag, target, path = rest
            found[path] = ("link", tag, target)
    return found


@check("golden images: a mount shows the files of the archives")
def golden_mounts():
    entries = 0
    for image in SMALL:
        want, found = in_archive(image), in_mount(mounted(image, "X:"))
        assert found == want, f"{image.name}: {[(k, want.get(k), found.get(k)) for k in want | found if want.get(k) != found.get(k)][:5]}"
        entries += len(want)
    return f"{len(SMALL)} images, {entries} entries"


@check("the volume of a mount has the parameters that the options ask for")
def mount_parameters():
    lines = dict((line[0], line[1:]) for line in mounted("unicode.dwarfs", "*", "-o", "case_insensitive,subtype=NTFS"))
    assert lines["point"] == ["X:"], lines
    assert lines["params"] == ["504", "4096", "255", "ffffffff"], lines
    assert lines["flags"] == ["01111111"], lines
    assert lines["type"] == ["NTFS"] and lines["volume"] == ["4096", "unicode"], lines
    lines = dict((line[0], line[1:]) for line in mounted("unicode.dwarfs", "new dir", "-o", "fsname=My label,no_cache_files"))
    assert lines["point"][0].endswith("\\new dir") and lines["point"][0][1:3] == ":\\", lines
    assert lines["flags"] == ["11111111"] and lines["params"][3] == "3e8", lines
    assert lines["volume"] == ["4096", "My label"], lines
    shutil.copy(WORK / "unicode.dwarfs", WORK / "auto.dwarfs")
    lines = dict((line[0], line[1:]) for line in mounted("auto.dwarfs", "--auto-mountpoint"))
    assert lines["point"][0].endswith("\\auto"), lines


@check("mount points that cannot be used are refused")
def mount_points():
    fresh("there")
    for point, code, reason in [
        ("there", 4, "it exists, and WinFsp makes the directory itself"),
        ("none/below", 4, "the directory above it does not exist"),
        ("Z:", 4, "it is in use already"),
    ]:
        done = expect(run("dwarfs", "unicode.dwarfs", point, REDWARFS_FAKE_LIST="list"), code)
        assert reason in text(done), text(done)
    done = expect(run("dwarfs", "unicode.dwarfs", "X:", "-o", "syslog", REDWARFS_FAKE_LIST="list"), 1)
    assert "there is no system log on Windows" in text(done), text(done)
    done = expect(run("dwarfs", "none.dwarfs", "X:", REDWARFS_FAKE_LIST="list"), 1)
    assert "none.dwarfs" in text(done), text(done)


@check("a mount ends with Ctrl-C, and after some time without use")
def mount_ends():
    env = ENV | {"REDWARFS_FAKE_LIST": "list"}
    (WORK / "list").unlink(missing_ok=True)
    args = ["wine", f"{WINDOWS / 'dwarfs'}.exe", "unicode.dwarfs", "X:", "-o", "guard"]
    started = subprocess.Popen(args, cwd=WORK, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not ((WORK / "list").exists() and "end\n" in (WORK / "list").read_text(errors="replace")):
        assert time.monotonic() < until and started.poll() is None, "it did not mount"
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    err = started.communicate(timeout=60)[1].decode(errors="replace")
    assert started.returncode == 0, (started.returncode, err)
    for line in ("mounted on X:", "guard has no effect on Windows", "file system unmounted"):
        assert line in err, (line, err)
    assert (WORK / "list").read_text(errors="replace").endswith("end\nremoved\nstopped\ndeleted\n")
    done = expect(run("dwarfs", "unicode.dwarfs", "X:", "-o", "timeout=1", REDWARFS_FAKE_LIST="list"))
    assert "nobody has used the file system" in text(done), text(done)


@check("scripts in Lua run")
def lua():
    tree(fresh("lua"))
    (WORK / "hook.lua").write_text('function filter(entry)\n  return entry.path ~= "none"\nend\n')
    done = run("mkdwarfs", "-i", "lua", "-o", "lua.dwarfs", "-l1", "--force", "--script=hook.lua")
    here = run("mkdwarfs", "-i", "lua", "-o", "lua-here.dwarfs", "-l1", "--force", "--script=hook.lua", wine=False)
    assert done.returncode == here.returncode, text(done)


shutil.rmtree(WORK, ignore_errors=True)
print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
sys.exit(1 if failed else 0)
