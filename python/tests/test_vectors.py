"""The test vectors that all languages share (tests/vectors)."""

import hashlib
import os
import stat
import urllib.parse

import pytest

import redwarfs
from conftest import VECTORS

INDEX = [line.split("\t") for line in (VECTORS / "images.tsv").read_text().splitlines()]

LETTERS = {
    stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l", stat.S_IFCHR: "c",
    stat.S_IFBLK: "b", stat.S_IFIFO: "p", stat.S_IFSOCK: "s",
}


def rows(name):
    for line in (VECTORS / f"{name}.tsv").read_text().splitlines():
        yield line.split("\t")


def decoded(text):
    return os.fsdecode(urllib.parse.unquote_to_bytes(text))


@pytest.mark.parametrize("name, file", [row[:2] for row in INDEX if row[2] == "ok"])
def test_entries_and_contents(name, file):
    image = redwarfs.open(VECTORS / file)
    wanted = list(rows(name))
    shown = []
    for path, *_, time, value in wanted:
        path = decoded(path)
        found = image.lstat(path)
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFREG:
            data = image.read(path)
            if value.startswith("last4096:"):
                value = "last4096:" + hashlib.sha256(data[-4096:]).hexdigest()
            else:
                value = "sha256:" + hashlib.sha256(data).hexdigest()
        elif kind == stat.S_IFLNK:
            value = f"target:{encoded(image.readlink(path))}"
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            value = f"device:{os.major(found.st_rdev)},{os.minor(found.st_rdev)}"
        else:
            value = "-"
        shown.append([
            encoded(path) or ".", LETTERS[kind], f"{stat.S_IMODE(found.st_mode):o}",
            *map(str, (found.st_uid, found.st_gid, found.st_size, found.st_nlink, found.st_ino)),
            "-" if time == "-" else str(found.st_mtime_ns), value,
        ])
    assert shown == wanted
    paths = {""}
    for directory, directories, files in image.walk():
        paths.update(os.path.join(directory, name) for name in [*directories, *files])
    assert paths == {"" if row[0] == "." else decoded(row[0]) for row in wanted}
    assert image.verify(deep=True) == []


def encoded(text):
    return "".join(
        chr(byte) if 0x21 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}"
        for byte in os.fsencode(text)
    )


@pytest.mark.parametrize("name, file, expect", [row[:3] for row in INDEX if row[2] != "ok"])
def test_failures(name, file, expect):
    if expect == "damaged":
        image = redwarfs.open(VECTORS / file)
        with pytest.raises(redwarfs.CorruptImageError):
            image.read_many(image)
        assert [finding.kind for finding in image.verify()] == ["checksum"]
        return
    error = {
        "corrupt": redwarfs.CorruptImageError,
        "not-an-image": redwarfs.NotAnImageError,
    }[expect]
    with pytest.raises(error):
        redwarfs.open(VECTORS / file)
