import pathlib

import pytest

import redwarfs

VECTORS = pathlib.Path(__file__).parents[2] / "tests/vectors"

NUMBERS = b"".join(b"%d\n" % number for number in range(50_000))


@pytest.fixture(scope="session")
def image_path(tmp_path_factory):
    """An image with an entry of every kind that needs no privileges."""
    path = tmp_path_factory.mktemp("image") / "tree.dwarfs"
    with redwarfs.Writer(path, level=4, block_size_bits=16, with_specials=True) as writer:
        writer.add("a/b/file", b"0123456789", mode=0o640, uid=1000, gid=100, mtime=1_600_000_000)
        writer.add("a/numbers", NUMBERS)
        writer.add("a/text.txt", "first\nsecond äöü\r\nthird")
        writer.add("empty", b"")
        writer.add(b"odd-\xff", b"odd")
        writer.link("a/again", "a/b/file")
        writer.symlink("link", "a/b/file")
        writer.symlink("dirlink", "/a/b")
        writer.symlink("nowhere", "missing/file")
        writer.symlink("round", "round")
        writer.mkdir("void", mode=0o700)
        writer.mknod("pipe", 0o010600)
    return path


@pytest.fixture
def image(image_path):
    return redwarfs.open(image_path)

