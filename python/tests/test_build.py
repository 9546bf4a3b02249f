"""Images from directories and from programs."""

import io
import os
import signal
import stat
import threading
import time

import pytest

import redwarfs


@pytest.fixture
def tree(tmp_path):
    tree = tmp_path / "tree"
    (tree / "deep/er").mkdir(parents=True)
    (tree / "deep/er/file").write_bytes(b"file" * 1000)
    (tree / "text.txt").write_text("text")
    (tree / "text.bak").write_text("backup")
    (tree / "link").symlink_to("deep/er")
    os.utime(tree / "text.txt", (1_500_000_000, 1_500_000_000))
    return tree


def test_a_directory_becomes_an_image(tree, tmp_path):
    target = tmp_path / "out.dwarfs"
    result = redwarfs.build(tree, target)
    assert result.image_size == target.stat().st_size and result.errors == 0
    assert result.inodes == 7 and result.original_size == 4000 + 4 + 6 + 7
    image = redwarfs.open(target)
    assert sorted(image) == ["deep/er/file", "text.bak", "text.txt"]
    assert image["deep/er/file"] == b"file" * 1000
    assert image.stat("text.txt").st_mtime == 1_500_000_000


def test_the_same_input_gives_the_same_bytes(tree):
    images = []
    for workers in (1, 4):
        target = io.BytesIO()
        redwarfs.build(str(tree), target, level=5, num_workers=workers, set_owner=0)
        images.append(target.getvalue())
    assert images[0] == images[1]
    assert redwarfs.open(io.BytesIO(images[0])).stat("text.txt").st_uid == 0


def test_an_existing_file_stays_unless_the_caller_says_so(tree, tmp_path):
    target = tmp_path / "out"
    target.write_text("mine")
    with pytest.raises(FileExistsError):
        redwarfs.build(tree, target)
    with pytest.raises(FileNotFoundError):
        redwarfs.build(tmp_path / "missing", target, overwrite=True)
    assert target.read_text() == "mine"
    redwarfs.build(tree, target, overwrite=True)
    assert "text.txt" in redwarfs.open(target)
    with pytest.raises(FileNotFoundError):
        redwarfs.build(tree, tmp_path / "no/directory")


def test_options_are_those_of_mkdwarfs(tree, tmp_path):
    names = redwarfs.option_names()
    assert names["order"] and all("-" not in name for name in names)
    target = io.BytesIO()
    redwarfs.build(
        tree,
        target,
        level=1,
        block_size_bits=12,
        compression=["lz4", "incompressible::null"],
        categorize=["pcmaudio", "incompressible"],
        order="revpath",
        no_history=True,
        memory_limit="1g",
        keep_all_times=True,
        time_resolution="1ns",
    )
    image = redwarfs.open(target)
    assert image.info().block_size == 4096
    for options, error, words in [
        ({"order": "random"}, redwarfs.OptionError, "no such order"),
        ({"block_size_bits": 99}, redwarfs.OptionError, "10 to 30"),
        ({"colour": "red"}, TypeError, "colour"),
        ({"order": 1.5}, TypeError, "order"),
        ({"level": 10}, ValueError, "level"),
    ]:
        with pytest.raises(error, match=words):
            redwarfs.build(tree, io.BytesIO(), **options)
    with pytest.raises(TypeError):
        redwarfs.build(tree, None)


def test_a_function_selects_entries(tree):
    seen = {}

    def select(path, kind):
        seen[path] = kind
        return not path.endswith(".bak") and path != "deep"

    target = io.BytesIO()
    redwarfs.build(tree, target, select=select)
    assert list(redwarfs.open(target)) == ["text.txt"]
    assert seen["deep"] == stat.S_IFDIR and seen["link"] == stat.S_IFLNK
    assert "deep/er" not in seen

    def fails(path, kind):
        raise LookupError(path)

    with pytest.raises(LookupError):
        redwarfs.build(tree, io.BytesIO(), select=fails)


def test_progress_is_reported_and_can_end_the_build(tree, tmp_path):
    calls = []
    redwarfs.build(tree, io.BytesIO(), progress=lambda phase, counters: calls.append((phase, counters)))
    phase, counters = calls[-1]
    assert phase == "done" and counters["files_found"] == 3
    assert counters["bytes_written"] > 0

    class Slow:
        """A target that the build waits for."""

        def write(self, data):
            time.sleep(0.3)
            return len(data)

    def stops(phase, counters):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        redwarfs.build(tree, Slow(), progress=stops)


def test_signals_end_a_build(tree):
    class Slow:
        def write(self, data):
            time.sleep(0.5)
            return len(data)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            redwarfs.build(tree, Slow())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_targets_that_fail_end_the_build(tree):
    class Full:
        def write(self, data):
            raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space left"):
        redwarfs.build(tree, Full())

    class Odd:
        """Takes one byte at a time, and returns None for some."""

        def __init__(self):
            self.data = bytearray()

        def write(self, data):
            if len(self.data) == 0:
                self.data += data
                return None
            self.data += data[:1000]
            return len(data[:1000])

    target = Odd()
    redwarfs.build(tree, target)
    assert "text.txt" in redwarfs.open(target.data)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_input_that_cannot_be_read_ends_the_build(tree):
    (tree / "text.txt").chmod(0)
    with pytest.raises(redwarfs.BuildError, match="text.txt"):
        redwarfs.build(tree, io.BytesIO())


def test_input_that_cannot_be_read_is_listed_if_asked(tree):
    target = io.BytesIO()

    def select(path, kind):
        # A file that is listed and then gone cannot be read, also by root.
        if path == "deep/er/file":
            (tree / path).unlink()
        return True

    result = redwarfs.build(
        tree, target, select=select, continue_on_error=True, num_workers=1
    )
    # One for the content, and on some systems one for the extended attributes.
    assert result.errors == len(result.problems) in (1, 2)
    assert all("deep/er/file" in problem for problem in result.problems)
    assert "text.bak" in redwarfs.open(target)


def test_entries_of_all_kinds_are_written(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(b"on disk" * 100_000)
    disk.chmod(0o751)
    os.utime(disk, ns=(7, 1_400_000_000_000_000_005))
    (tmp_path / "linked").symlink_to("somewhere")
    os.mkfifo(tmp_path / "fifo", 0o600)
    target = tmp_path / "out"
    with redwarfs.Writer(target, level=1, with_specials=True, time_resolution="1ns") as writer:
        writer.add("bytes", b"bytes", mode=0o600, uid=7, gid=8, mtime=1.5)
        writer.add("bytearray", bytearray(b"array"), mtime_ns=123)
        writer.add("memoryview", memoryview(b"xviewx")[1:5])
        writer.add("text", "äöü")
        writer.add("pieces", (b"%d" % n for n in range(10)))
        writer.add("list", [b"a", bytearray(b"b"), b"", memoryview(b"c")])
        with open(disk, "rb") as file:
            file.seek(7)
            writer.add("object", file)
        writer.add_path("disk", disk)
        writer.add_path("linked", tmp_path / "linked")
        writer.add_path("directory", tmp_path)
        writer.add_path("fifo", tmp_path / "fifo")
        writer.symlink("symlink", b"bytes")
        writer.link("hard", "bytes")
        writer.mkdir("sub/dir", mode=0o750)
        writer.mkdir("", mode=0o711)
    assert writer.result.image_size == target.stat().st_size == writer.close().image_size
    image = redwarfs.open(target)
    assert image["bytes"] == b"bytes" and image["bytearray"] == b"array"
    assert image["memoryview"] == b"view" and image["text"].decode() == "äöü"
    assert image["pieces"] == b"0123456789" and image["list"] == b"abc"
    assert image["object"] == b"on disk" * 99_999 and image["disk"] == b"on disk" * 100_000
    found = image.stat("bytes")
    assert stat.S_IMODE(found.st_mode) == 0o600 and (found.st_uid, found.st_gid) == (7, 8)
    assert found.st_mtime_ns == 1_500_000_000 and found.st_nlink == 2
    assert image.stat("bytearray").st_mtime_ns == 123
    found = image.stat("disk")
    assert stat.S_IMODE(found.st_mode) == 0o751
    assert found.st_mtime_ns == 1_400_000_000_000_000_005
    assert image.readlink("linked") == "somewhere" and image.readlink("symlink") == "bytes"
    assert stat.S_ISFIFO(image.stat("fifo").st_mode) and image.is_dir("directory")
    assert stat.S_IMODE(image.stat("sub/dir").st_mode) == 0o750
    assert stat.S_IMODE(image.stat("").st_mode) == 0o711
    assert image.stat("sub").st_mtime == 0


def test_a_writer_builds_once_and_only_if_all_went_well(tmp_path):
    target = tmp_path / "out"
    with pytest.raises(LookupError), redwarfs.Writer(target) as writer:
        writer.add("a", b"")
        raise LookupError
    assert not target.exists()
    with pytest.raises(ValueError, match="closed"):
        writer.add("b", b"")
    with pytest.raises(ValueError, match="closed"):
        writer.close()
    with redwarfs.Writer(target) as writer:
        writer.add("a", b"")
        writer.discard()
    assert not target.exists()
    writer = redwarfs.Writer(target)
    writer.add("a/b", b"")
    for operation in [
        lambda: writer.add("a/b", b""),
        lambda: writer.add("a", b""),
        lambda: writer.add("a/b/c", b""),
        lambda: writer.add("../up", b""),
        lambda: writer.add("", b""),
        lambda: writer.mkdir("a/b"),
        lambda: writer.link("c", "missing"),
        lambda: writer.add_path("c", tmp_path / "missing"),
    ]:
        with pytest.raises(OSError):
            operation()
    with pytest.raises((ValueError, OverflowError)):
        writer.add("late", b"", mtime=1e30)
    for wrong in [3, None, ["text"]]:
        with pytest.raises(TypeError):
            writer.add("wrong", wrong)

    class Fails:
        def read(self, size):
            raise LookupError("no")

    with pytest.raises(LookupError):
        writer.add("fails", Fails())
    writer.close()
    assert list(redwarfs.open(target)) == ["a/b"]
    with pytest.raises(TypeError):
        redwarfs.Writer(target, colour="red")
    with pytest.raises(FileExistsError):
        redwarfs.Writer(target).close()
    assert list(redwarfs.open(target)) == ["a/b"]
    with redwarfs.Writer(target, overwrite=True):
        pass
    assert list(redwarfs.open(target)) == []


def test_several_threads_add_entries(tmp_path):
    target = io.BytesIO()
    writer = redwarfs.Writer(target, level=1)

    def add(number):
        for n in range(100):
            writer.add(f"{number}/{n}", (b"%d %d" % (number, n) for _ in range(2)))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    image = redwarfs.open(target)
    assert len(image) == 800 and image["7/99"] == b"7 997 99"


def test_contents_cannot_use_their_writer():
    target = io.BytesIO()
    writer = redwarfs.Writer(target, level=1)

    def pieces():
        for operation in [
            lambda: writer.add("b", b""),
            lambda: writer.add("b", iter([b""])),
            lambda: writer.mkdir("b"),
            lambda: writer.symlink("b", "c"),
            writer.close,
        ]:
            with pytest.raises(ValueError, match="the writer is in use"):
                operation()
        yield b"content"

    writer.add("a", pieces())
    writer.add("b", b"after")
    writer.close()
    image = redwarfs.open(target)
    assert sorted(image) == ["a", "b"] and image["a"] == b"content" and image["b"] == b"after"


def test_a_writer_is_not_closed_while_a_thread_adds():
    target = io.BytesIO()
    writer = redwarfs.Writer(target, level=1)
    begun, goes_on = threading.Event(), threading.Event()
    errors = []

    def pieces():
        begun.set()
        assert goes_on.wait(60)
        yield b"content"

    def close():
        try:
            writer.close()
        except ValueError as error:
            errors.append(str(error))

    # Daemons, so that a thread that hangs does not keep the interpreter from ending.
    adds = threading.Thread(target=lambda: writer.add("a", pieces()), daemon=True)
    closes = threading.Thread(target=close, daemon=True)
    adds.start()
    assert begun.wait(60)
    closes.start()
    closes.join(60)
    assert errors == ["the writer is in use"]
    goes_on.set()
    adds.join(60)
    writer.close()
    assert redwarfs.open(target)["a"] == b"content"
