"""Builds the image of one part."""

from __future__ import annotations

import hashlib
import json
import os
import stat as _stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import _redwarfs
from .._build import Option, _texts, build
from .._errors import BuildError
from . import _store
from ._partition import Partition

# Options that change no byte of an image.
_OF_THE_MACHINE = frozenset(
    {"compress_niceness", "num_scanner_workers", "num_segmenter_workers", "num_workers"}
)


@dataclass(frozen=True)
class Shard:
    """A finished image of a part."""

    path: str
    """Its path or URL."""
    number: int
    """Number of the part, from 0."""
    count: int
    """Number of all parts."""
    size: int
    """Bytes of the image."""
    reused: bool
    """Whether it was there before."""


def build_shard(
    partition: Partition,
    destination: str | os.PathLike[str],
    *,
    level: int = 7,
    **options: Option,
) -> Shard:
    """Packs a part of a tree into an image in `destination`, a directory or a URL.

    `level` and further keyword arguments are those of `redwarfs.build`. The function can be pickled, and called
    anywhere and any number of times: the name of the image has a digest of the options, and of the type,
    permissions, owner, size and time of modification of each entry. If there is a complete image of this
    name, nothing is built. The image gets its name when it is complete.

    A part must have all entries that it had when the tree was divided. One that is missing raises
    `FileNotFoundError`, and one that cannot be read `redwarfs.BuildError`.
    """
    place = shard_place(partition, destination, level, options)
    size = _store.size_of_image(place)
    if size is not None:
        return Shard(place, partition.number, partition.count, size, True)
    if not _store.is_url(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
    _store.publish(place, lambda path: _pack(partition, path, level, options))
    size = _store.size_of_image(place)
    if size is None:
        raise BuildError(None, "the new image is not there", place)
    return Shard(place, partition.number, partition.count, size, False)


def shard_place(
    partition: Partition,
    destination: str | os.PathLike[str],
    level: int,
    options: Mapping[str, Option],
) -> str:
    """The path or URL of the image of a part."""
    digest = _identity(partition, level, options)
    name = f"shard-{partition.number:05}-of-{partition.count:05}-{digest}.dwarfs"
    destination = os.fspath(destination)
    if not _store.is_url(destination):
        destination = os.path.abspath(destination)
    return _store.joined(destination, name)


def _identity(partition: Partition, level: int, options: Mapping[str, Option]) -> str:
    """A digest of everything that an image follows from, as far as that is known without reading files."""
    texts = sorted((name, value) for name, value in _texts(options) if name not in _OF_THE_MACHINE)
    digest = hashlib.sha256()
    digest.update(json.dumps([1, _redwarfs.VERSION, level, texts]).encode())
    for path in _with_directories(partition.paths):
        full = os.path.join(partition.source, path) if path else partition.source
        found = os.lstat(full)
        is_link = _stat.S_ISLNK(found.st_mode)
        known = [
            path,
            found.st_mode,
            found.st_uid,
            found.st_gid,
            found.st_mtime_ns,
            found.st_size if _stat.S_ISREG(found.st_mode) else 0,
            found.st_rdev,
            os.readlink(full) if is_link else "",
        ]
        digest.update(json.dumps(known).encode())
    return digest.hexdigest()[:32]


def _with_directories(paths: tuple[str, ...]) -> Iterator[str]:
    """Sorted paths, each after the directories above it; the root is the empty path."""
    yield ""
    seen: set[str] = {""}
    for path in paths:
        for end in [at for at, char in enumerate(path) if char == "/"] + [len(path)]:
            if path[:end] not in seen:
                seen.add(path[:end])
                yield path[:end]


def _pack(partition: Partition, target: str, level: int, options: Mapping[str, Any]) -> None:
    wanted = set(_with_directories(partition.paths))
    missing = set(partition.paths) - {""}

    def select(path: str, _kind: int) -> bool:
        missing.discard(path)
        return path in wanted

    build(partition.source, target, level=level, select=select, **options)
    if missing:
        os.unlink(target)
        path = min(missing)
        raise FileNotFoundError(
            2, "the tree has changed since it was divided", os.path.join(partition.source, path)
        )
