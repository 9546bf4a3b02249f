"""The mount source for ratarmount."""

import stat

import pytest

import redwarfs
from conftest import NUMBERS

pytest.importorskip("ratarmountcore")


def test_the_mount_source(image_path):
    from redwarfs.ratarmount import RedwarfsMountSource

    with RedwarfsMountSource(str(image_path), recursive=False) as source:
        assert source.is_immutable() and source.exists("/a/b") and not source.exists("/missing")
        assert sorted(source.list("/a")) == ["again", "b", "numbers", "text.txt"]
        assert source.list("/a/numbers") is None and source.list("/missing") is None
        assert source.list_mode("/")["link"] == stat.S_IFLNK
        found = source.lookup("/a/b/file")
        assert (found.size, found.mode, found.uid) == (10, stat.S_IFREG | 0o640, 1000)
        assert source.lookup("/link").linkname == "a/b/file" and source.lookup("/nowhere")
        assert source.lookup("/").mode & stat.S_IFDIR and source.is_dir("/a")
        with source.open(found) as file:
            assert file.read() == b"0123456789"
        assert source.read(source.lookup("/a/numbers"), 100, 50) == NUMBERS[50:150]
        assert source.statfs()["f_blocks"] > 0 and source.versions("/a") == 1


def test_compositions_of_mount_sources(image_path):
    from ratarmountcore.mountsource.compositing.union import UnionMountSource

    from redwarfs.ratarmount import RedwarfsMountSource

    sources = [RedwarfsMountSource(image_path), RedwarfsMountSource(redwarfs.open(image_path))]
    union = UnionMountSource(sources)
    found = union.lookup("/a/b/file")
    assert union.read(found, 5, 2) == b"23456"
    assert set(union.list("/")) >= {"a", "link"}


def test_images_through_fsspec(image_path):
    fsspec = pytest.importorskip("fsspec")
    from ratarmountcore.mountsource.formats.fsspec import FSSpecMountSource

    source = FSSpecMountSource(fsspec.filesystem("redwarfs", fo=str(image_path)))
    assert set(source.list("/")) >= {"a", "empty"}
    found = source.lookup("/a/numbers")
    assert found.size == len(NUMBERS)
    with source.open(found) as file:
        assert file.read() == NUMBERS
