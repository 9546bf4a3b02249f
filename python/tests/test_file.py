"""Files of an image as files of the standard library."""

import array
import csv
import io
import itertools
import random
import zipfile

import pytest

import redwarfs
from conftest import NUMBERS


def test_binary_files_are_buffered_and_raw_ones_not(image):
    with image.open("a/b/file", "rb") as file:
        assert isinstance(file, io.BufferedReader) and isinstance(file.raw, redwarfs.RawFile)
        assert file.peek()[:3] == b"012" and file.read(3) == b"012" and file.tell() == 3
        assert file.read() == b"3456789" and file.read() == b""
    with image.open("a/b/file", "rb", 0) as raw:
        assert isinstance(raw, redwarfs.RawFile) and isinstance(raw, io.RawIOBase)
        assert raw.readable() and raw.seekable() and not raw.writable() and raw.mode == "rb"
        assert raw.read(4) == b"0123" and raw.readall() == b"456789"
    assert raw.closed
    for operation in (raw.read, raw.tell, raw.readable, lambda: raw.seek(0)):
        with pytest.raises(ValueError):
            operation()
    assert "closed" in repr(raw) and "a/b/file" in repr(raw)


def test_text_files_decode(image):
    with image.open("a/text.txt", encoding="utf-8") as file:
        assert list(file) == ["first\n", "second äöü\n", "third"]
    with image.open("a/text.txt", "rt", encoding="utf-8", newline="") as file:
        assert file.readlines()[1] == "second äöü\r\n"
    with image.open("a/text.txt", encoding="ascii", errors="replace") as file:
        assert "\ufffd" in file.read()
    with image.open("a/text.txt", encoding="ascii") as file, pytest.raises(UnicodeDecodeError):
        file.read()


def test_modes_are_those_of_a_read_only_file(image):
    for mode in ["w", "rb+", "a", "x", "r+", "", "rbt", "rr", "bb"]:
        with pytest.raises(ValueError):
            image.open("a/b/file", mode)
    with pytest.raises(ValueError):
        image.open("a/b/file", "rb", encoding="utf-8")
    with pytest.raises(ValueError):
        image.open("a/b/file", "r", 0)
    with image.open("a/b/file", "rb") as file, pytest.raises(io.UnsupportedOperation):
        file.write(b"x")
    with image.open("a/b/file", "rb") as file, pytest.raises(OSError):
        file.truncate(3)
    with image.open("a/b/file", "rb", 0) as file, pytest.raises(OSError):
        file.fileno()


def test_positions(image):
    with image.open("a/b/file", "rb", 0) as file:
        assert file.seek(4) == 4 and file.read(2) == b"45"
        assert file.seek(-3, io.SEEK_END) == 7 and file.read() == b"789"
        assert file.seek(-5, io.SEEK_CUR) == 5 and file.read(1) == b"5"
        assert file.seek(100) == 100 and file.read(5) == b"" == file.read()
        for offset, whence in [(-1, 0), (-11, 2), (1 << 63, 0)]:
            with pytest.raises(OSError):
                file.seek(offset, whence)
        with pytest.raises(ValueError):
            file.seek(0, 7)
        assert file.tell() == 100
        assert file.pread(3, 2) == b"234" and file.tell() == 100
        with pytest.raises(ValueError):
            file.pread(3, -1)


def test_reading_into_buffers(image):
    with image.open("a/numbers", "rb", 0) as file:
        buffer = bytearray(1000)
        assert file.readinto(buffer) == 1000 and buffer == NUMBERS[:1000]
        view = memoryview(buffer)
        assert file.readinto(view[10:20]) == 10 and buffer[10:20] == NUMBERS[1000:1010]
        words = array.array("i", [0] * 100)
        assert file.readinto(words) == words.itemsize * 100
        assert words.tobytes() == NUMBERS[1010 : 1010 + 100 * words.itemsize]
        assert file.readinto(bytearray()) == 0
        file.seek(-5, io.SEEK_END)
        assert file.readinto(buffer) == 5 and buffer[:5] == NUMBERS[-5:]
        assert file.readinto(buffer) == 0
        for wrong in [b"bytes", view.toreadonly(), view[::2]]:
            with pytest.raises((BufferError, TypeError)):
                file.readinto(wrong)
    with image.open("a/numbers", "rb") as file:
        assert file.readinto(buffer) == 1000 and buffer == NUMBERS[:1000]


def test_random_reads_are_those_of_memory(image):
    rng = random.Random(1)
    memory = io.BytesIO(NUMBERS)
    for buffering in (0, -1, 100):
        with image.open("a/numbers", "rb", buffering) as file:
            for _ in range(300):
                offset = rng.choice([0, rng.randrange(len(NUMBERS) + 100)])
                size = rng.choice([0, 1, 7, 100, 70_000])
                assert file.seek(offset) == memory.seek(offset)
                assert file.read(size) == memory.read(size), (offset, size)
                assert file.readline() == memory.readline()


def test_other_libraries_read_from_files(image, tmp_path):
    with image.open("a/numbers", newline="") as file:
        rows = list(itertools.islice(csv.reader(file), 3))
    assert rows == [["0"], ["1"], ["2"]]
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("member", "content")
    target = io.BytesIO()
    with redwarfs.Writer(target) as writer:
        writer.add("inner.zip", inner.getvalue())
    outer = redwarfs.open(target)
    with outer.open("inner.zip", "rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("member") == b"content"
