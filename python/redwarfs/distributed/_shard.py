"""Builds the image of one part."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat as _stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from .. import _redwarfs
from .._build import BuildResult, Option, _texts, build
from .._errors import BuildError
from . import _store
from ._partition import Partition, digest_text, entry_digest, letter, with_directories

# Options that change no byte of an image.
_OF_THE_MACHINE = frozenset(
    {"compress_niceness", "num_scanner_workers", "num_segmenter_workers", "num_workers"}
)

_CHANGED = "the tree has changed since it was divided"
_OTHER_ENTRIES = f"{_CHANGED}: this directory has other entries"


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
    warnings: tuple[str, ...] = ()
    """Data of the input that the image does not hold; at most 1,000 messages. If the shard was there before, there are
    none: they were those of the call that has built it."""


def build_shard(
    partition: Partition,
    destination: str | os.PathLike[str],
    *,
    rebuild: bool = False,
    level: int = 7,
    **options: Option,
) -> Shard:
    """Packs a part of a tree into an image in `destination`, a directory or a URL.

    `level` and further keyword arguments are those of `redwarfs.build`. The function can be pickled, and called
    anywhere and any number of times. The name of the image has a digest of the options, and of the type,
    permissions, owner, size, hard links and the times of modification and change of each entry. The time of access does
    not count, because packing changes it. If there is a complete image of this name, nothing is built, unless
    `rebuild` is true: then a new image replaces it. The image gets its name when it is complete. If a build was killed, the
    next one of the same part removes its unfinished file. An image for a store is made in the directory for temporary files (`TMPDIR`).

    A part must have the entries that it had when the tree was divided, and must not change while it is packed.
    An entry that is missing raises `FileNotFoundError`. A new entry, one of another type, one that changes while
    it is packed, and one that cannot be read raise `redwarfs.BuildError`. Both name the path.
    """
    states = _states(partition)
    place = _place(partition, destination, level, options, states)
    if not rebuild:
        size = _store.size_of_image(place)
        if size is not None:
            return Shard(place, partition.number, partition.count, size, True)
    if not _store.is_url(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
    results: list[BuildResult] = []

    def make(file: BinaryIO) -> None:
        results.append(_pack(partition, file, level, options))
        entries = zip(with_directories(partition.paths), states, _states(partition))
        for entry, before, now in entries:
            if before != now:
                raise _changed(partition, entry, "it has changed while it was packed")

    _store.publish(place, make, like=_stem(partition))
    size = _store.size_of_image(place)
    if size is None:
        raise BuildError(None, "the new image is not there", place)
    warnings = tuple(results[0].warnings)
    return Shard(place, partition.number, partition.count, size, False, warnings)


def shard_place(
    partition: Partition,
    destination: str | os.PathLike[str],
    level: int,
    options: Mapping[str, Option],
) -> str:
    """The path or URL of the shard of a part."""
    return _place(partition, destination, level, options, _states(partition))


def check_entries(partition: Partition) -> None:
    """Raises an error if directories of a part have other entries than when the tree was divided."""
    for path, wanted in partition.directories:
        digest = 0
        with os.scandir(_full(partition, path)) as listing:
            for entry in listing:
                mode = entry.stat(follow_symlinks=False).st_mode
                digest += entry_digest(entry.name, _stat.S_IFMT(mode))
        if digest_text(digest) != wanted:
            raise _changed(partition, path, _OTHER_ENTRIES)


def _place(
    partition: Partition,
    destination: str | os.PathLike[str],
    level: int,
    options: Mapping[str, Option],
    states: list[bytes],
) -> str:
    # The order of options with the same name may matter.
    texts = sorted(
        ((name, value) for name, value in _texts(options) if name not in _OF_THE_MACHINE),
        key=lambda option: option[0],
    )
    digest = hashlib.sha256(json.dumps([1, _redwarfs.VERSION, level, texts]).encode())
    for state in states:
        digest.update(state)
    name = f"{_stem(partition)}{digest.hexdigest()[:32]}.dwarfs"
    return _store.joined(_store.absolute(destination), name)


def _stem(partition: Partition) -> str:
    """How the names of the shards of a part begin, whatever options and attributes they have."""
    return f"shard-{partition.number:05}-of-{partition.count:05}-"


def _states(partition: Partition) -> list[bytes]:
    """A digest of each entry of a part and of the directories above: of everything that an image follows from, as far
    as that is known without reading files. The change time stands for extended attributes, too."""
    kinds = dict(zip(partition.paths, partition.kinds))
    linked: dict[tuple[int, int], int] = {}
    states = []
    for path in with_directories(partition.paths):
        full = _full(partition, path)
        try:
            # The build follows a link that is the source itself.
            found = os.lstat(full) if path else os.stat(full)
            target = os.readlink(full) if _stat.S_ISLNK(found.st_mode) else ""
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(2, _CHANGED, full) from None
        if letter(found.st_mode) != kinds.get(path, "d"):
            raise _changed(partition, path, f"{_CHANGED}: its type is another one")
        group = 0
        if found.st_nlink > 1 and not _stat.S_ISDIR(found.st_mode):
            group = linked.setdefault((found.st_dev, found.st_ino), len(linked) + 1)
        known = [
            path,
            found.st_mode,
            found.st_uid,
            found.st_gid,
            found.st_mtime_ns,
            found.st_ctime_ns,
            found.st_size if _stat.S_ISREG(found.st_mode) else 0,
            found.st_rdev,
            target,
            group,
        ]
        states.append(hashlib.blake2b(json.dumps(known).encode(), digest_size=16).digest())
    return states


def _pack(
    partition: Partition, target: BinaryIO, level: int, options: Mapping[str, Any]
) -> BuildResult:
    wanted = set(with_directories(partition.paths))
    missing = set(partition.paths) - {""}
    # What the build itself finds counts, so no entry can come in between.
    listed = dict.fromkeys((path for path, _ in partition.directories), 0)

    def select(path: str, kind: int) -> bool:
        missing.discard(path)
        directory, _, name = path.rpartition("/")
        listed[directory] = listed.get(directory, 0) + entry_digest(name, kind)
        return path in wanted

    done = build(partition.source, target, level=level, select=select, **options)
    if missing:
        raise FileNotFoundError(2, _CHANGED, _full(partition, min(missing)))
    for path, digest in partition.directories:
        if digest_text(listed[path]) != digest:
            raise _changed(partition, path, _OTHER_ENTRIES)
    return done


def _full(partition: Partition, path: str) -> str:
    return os.path.join(partition.source, path) if path else partition.source


def _changed(partition: Partition, path: str, what: str) -> BuildError:
    return BuildError(errno.ESTALE, what, _full(partition, path))
