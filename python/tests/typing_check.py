"""Is checked by mypy, and never run: the types that users see."""

import datetime
import os
from typing import IO, assert_type

import redwarfs
import redwarfs.distributed


def types(image: redwarfs.Image) -> None:
    assert_type(image["a"], bytes)
    assert_type(image.open("a", "rb"), IO[bytes])
    assert_type(image.open("a"), IO[str])
    assert_type(image.open("a", "rb", 0), redwarfs.RawFile)
    assert_type(image.stat("a"), os.stat_result)
    assert_type(image.read_many(["a", b"b"]), list[bytes])
    assert_type([entry for entry in image.scandir()], list[redwarfs.DirEntry])
    now = datetime.datetime.now(datetime.timezone.utc)
    assert_type(redwarfs.open("a", snapshot=now), redwarfs.Image)
    assert_type(redwarfs.Path(image) / "a", redwarfs.Path)
    assert_type(redwarfs.build("a", "b", level=3, order="path"), redwarfs.BuildResult)
    with redwarfs.Writer("x") as writer:
        writer.add("a", [b"a"])
    assert_type(image.verify(), list[redwarfs.Finding])
    assert_type(redwarfs.merge(["a", image], "b", repack=50), redwarfs.MergeResult)
    assert_type(redwarfs.merge({"a": image}, "b", num_workers=1), redwarfs.MergeResult)
    parts = redwarfs.distributed.partition("a", 8, "similarity")
    assert_type(parts, list[redwarfs.distributed.Partition])
    shards = [redwarfs.distributed.build_shard(part, "s3://bucket/shards", order="path") for part in parts]
    assert_type(shards, list[redwarfs.distributed.Shard])
    assert_type(redwarfs.distributed.merge(shards, "b"), redwarfs.MergeResult)
