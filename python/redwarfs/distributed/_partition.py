"""Divides a tree into parts for separate builds."""

from __future__ import annotations

import os
import stat as _stat
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Literal

from . import _similar

By = Literal["directory", "similarity", "size"]
BY: tuple[By, ...] = ("directory", "similarity", "size")

# Bytes that an entry counts beside its content: empty files are work, too.
_ENTRY = 512


@dataclass(frozen=True)
class Partition:
    """A part of a tree. It can be pickled."""

    source: str
    """The directory with the tree, as an absolute path."""
    number: int
    """Number of the part, from 0."""
    count: int
    """Number of all parts."""
    paths: tuple[str, ...]
    """Paths below `source`: all entries of the part but directories, and directories without entries. The
    directories above them belong to the part, too."""
    kinds: str
    """The type of each of `paths` when the tree was divided: the letter that `ls -l` shows."""
    directories: tuple[tuple[str, str], ...]
    """All directories of the part with their paths, and a digest of the names and types of the entries that
    each one had when the tree was divided. The empty path is `source`."""
    size: int
    """Bytes of regular files."""


@dataclass(slots=True)
class Unit:
    """What must stay together: an entry, or all names of a file with hard links."""

    paths: list[str]
    size: int
    kind: str

    @property
    def is_file(self) -> bool:
        return self.kind == "-"

    @property
    def weight(self) -> int:
        return self.size + _ENTRY * len(self.paths)


def partition(
    source: str | os.PathLike[str],
    shards: int,
    by: By = "directory",
    *,
    select: Callable[[str, int], bool] | None = None,
    sample: int = 16384,
    threads: int = 8,
) -> list[Partition]:
    """Divides a tree into at most `shards` parts with about the same number of bytes.

    `by` says which files share a part. Repeated data is only found within a part, so this determines how
    much larger the image is than that of one build:

    - `"directory"`: neighbours in the tree. It reads no file.
    - `"similarity"`: files with similar names or contents, wherever they are. It reads `sample` bytes of each
      file, on `threads` threads. With `sample=0`, names alone count. This process needs about 2.6 KB of memory
      and 3 ms of CPU time for each file.
    - `"size"`: files of about the same size. Equal files have equal sizes, so they meet. It reads no file.

    Names of the same file (hard links) always share a part. A file is never divided, so one that is larger
    than its share makes a larger part. `select` is that of `redwarfs.build`.

    From here on, no directory of the tree may get or lose an entry, also none that `select` leaves out: `build_shard`
    refuses a tree that has other entries. So shards go to a directory outside of the tree.

    The parts depend on names, sizes and samples alone, so that all machines come to the same ones.
    """
    if shards < 1:
        raise ValueError(f"the number of parts is at least 1, not {shards}")
    if by not in BY:
        raise ValueError(f"parts are divided by {', '.join(BY)}, not by {by!r}")
    root = os.path.abspath(os.fspath(source))
    units, listed = _units(root, select)
    if by == "size":
        units.sort(key=lambda unit: (unit.size, unit.paths))
    if by == "similarity":
        families = _similar.families(root, units, shards, sample, threads)
    else:
        families = [[[unit]] for unit in units]
    parts = [part for part in _slices(families, shards) if part]
    result = []
    for number, part in enumerate(parts):
        found = sorted((path, unit.kind) for unit in part for path in unit.paths)
        paths = tuple(path for path, _ in found)
        result.append(
            Partition(
                source=root,
                number=number,
                count=len(parts),
                paths=paths,
                kinds="".join(kind for _, kind in found),
                directories=tuple(
                    (path, digest_text(listed[path]))
                    for path in with_directories(paths)
                    if path in listed
                ),
                size=sum(unit.size for unit in part),
            )
        )
    return result


def letter(mode: int) -> str:
    """The type of an entry, as `ls -l` shows it."""
    return _stat.filemode(mode)[0]


def entry_digest(name: str, kind: int) -> int:
    """The digest of an entry. That of a directory is the sum of those of its entries, so their order does
    not matter."""
    text = f"{letter(kind)}{name}".encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(text, digest_size=16).digest(), "little")


def digest_text(digest: int) -> str:
    """The digest of a directory as a text."""
    return f"{digest % (1 << 128):032x}"


def with_directories(paths: tuple[str, ...]) -> Iterator[str]:
    """Sorted paths, each after the directories above it; the root is the empty path."""
    yield ""
    seen: set[str] = {""}
    for path in paths:
        for end in [at for at, char in enumerate(path) if char == "/"] + [len(path)]:
            if path[:end] not in seen:
                seen.add(path[:end])
                yield path[:end]


def _units(
    root: str, select: Callable[[str, int], bool] | None
) -> tuple[list[Unit], dict[str, int]]:
    """All units of a tree, in the order of their paths, and the digests of all directories."""
    listed: dict[str, int] = {}
    units: list[Unit] = []
    linked: dict[tuple[int, int], Unit] = {}
    # Directories that are still to be listed, the next one last.
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        with os.scandir(os.path.join(root, directory) if directory else root) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        below: list[str] = []
        is_empty = True
        digest = 0
        for entry in entries:
            path = f"{directory}/{entry.name}" if directory else entry.name
            found = entry.stat(follow_symlinks=False)
            kind = _stat.S_IFMT(found.st_mode)
            digest += entry_digest(entry.name, kind)
            if select is not None and not select(path, kind):
                continue
            is_empty = False
            if kind == _stat.S_IFDIR:
                below.append(path)
            elif found.st_nlink > 1:
                unit = linked.get((found.st_dev, found.st_ino))
                if unit is None:
                    size = found.st_size if kind == _stat.S_IFREG else 0
                    unit = Unit([], size, letter(kind))
                    linked[found.st_dev, found.st_ino] = unit
                    units.append(unit)
                unit.paths.append(path)
            elif kind == _stat.S_IFREG:
                units.append(Unit([path], found.st_size, letter(kind)))
            else:
                units.append(Unit([path], 0, letter(kind)))
        listed[directory] = digest
        if is_empty and directory:
            units.append(Unit([directory], 0, "d"))
        waiting.extend(reversed(below))
    if not units:
        # The root alone.
        units.append(Unit([""], 0, "d"))
    return units, listed


def _slices(families: list[list[list[Unit]]], count: int) -> list[list[Unit]]:
    """Consecutive groups in slices of about the same weight. A slice ends after a family rather than within one, if it gets
    no more than an eighth of a slice larger or smaller by that."""
    groups = [group for family in families for group in family]
    # The weight up to the end of each group, and which groups are the last ones of a family.
    ends = list(accumulate((sum(unit.weight for unit in group) for group in groups), initial=0))
    last = set(accumulate((len(family) for family in families), initial=0))
    total = ends[-1]
    # Multiplied by the count, so that everything is an integer.
    slack = total // 8
    slices: list[list[Unit]] = []
    start = 0
    for number in range(1, count + 1):
        wanted = total * number
        end = _nearest(ends, wanted, count)
        if end not in last:
            low = bisect_left(ends, -(-(wanted - slack) // count))
            high = bisect_right(ends, (wanted + slack) // count)
            near = [at for at in range(low, high) if at in last]
            end = min(near, key=lambda at: abs(ends[at] * count - wanted), default=end)
        end = max(start, len(groups) if number == count else end)
        slices.append([unit for group in groups[start:end] for unit in group])
        start = end
    return slices


def _nearest(ends: list[int], wanted: int, count: int) -> int:
    """The number of the end that is nearest to a weight, which is multiplied by the count; the earlier one of two."""
    at = bisect_left(ends, wanted // count)
    near = range(max(0, at - 1), min(len(ends), at + 2))
    return min(near, key=lambda at: abs(ends[at] * count - wanted))
