"""Is checked by mypy, and never run: the types that users see."""

import os
from typing import IO, assert_type

import redwarfs


def types(image: redwarfs.Image) -> None:
    assert_type(image["a"], bytes)
    assert_type(image.open("a", "rb"), IO[bytes])
    assert_type(image.open("a"), IO[str])
    assert_type(image.open("a", "rb", 0), redwarfs.RawFile)
    assert_type(image.stat("a"), os.stat_result)
    assert_type(image.read_many(["a", b"b"]), list[bytes])
    assert_type([entry for entry in image.scandir()], list[redwarfs.DirEntry])
    assert_type(redwarfs.Path(image) / "a", redwarfs.Path)
    assert_type(redwarfs.build("a", "b", level=3, order="path"), redwarfs.BuildResult)
    with redwarfs.Writer("x") as writer:
        writer.add("a", [b"a"])
    assert_type(image.verify(), list[redwarfs.Finding])
