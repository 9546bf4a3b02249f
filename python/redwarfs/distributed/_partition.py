"""Divides a tree into parts for separate builds."""

from __future__ import annotations

import os
import stat as _stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
    size: int
    """Bytes of regular files."""


@dataclass
class Unit:
    """What must stay together: an entry, or all names of a file with hard links."""

    paths: list[str]
    size: int
    is_file: bool

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
      file, on `threads` threads. With `sample=0`, names alone count.
    - `"size"`: files of about the same size. Equal files have equal sizes, so they meet. It reads no file.

    Names of the same file (hard links) always share a part. A file is never divided, so one that is larger
    than its share makes a larger part. `select` is that of `redwarfs.build`.

    The parts depend on names, sizes and samples alone, so that all machines come to the same ones.
    """
    if shards < 1:
        raise ValueError(f"the number of parts is at least 1, not {shards}")
    if by not in BY:
        raise ValueError(f"parts are divided by {', '.join(BY)}, not by {by!r}")
    root = os.path.abspath(os.fspath(source))
    units = _units(root, select)
    if by == "size":
        units.sort(key=lambda unit: (unit.size, unit.paths))
        groups: Iterable[list[Unit]] = ([unit] for unit in units)
    elif by == "similarity":
        groups = _similar.groups(root, units, shards, sample, threads)
    else:
        groups = ([unit] for unit in units)
    parts = [part for part in _slices(list(groups), shards) if part]
    return [
        Partition(
            source=root,
            number=number,
            count=len(parts),
            paths=tuple(sorted(path for unit in part for path in unit.paths)),
            size=sum(unit.size for unit in part),
        )
        for number, part in enumerate(parts)
    ]


def _units(root: str, select: Callable[[str, int], bool] | None) -> list[Unit]:
    """All units of a tree, in the order of their paths."""
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
        for entry in entries:
            path = f"{directory}/{entry.name}" if directory else entry.name
            found = entry.stat(follow_symlinks=False)
            kind = _stat.S_IFMT(found.st_mode)
            if select is not None and not select(path, kind):
                continue
            is_empty = False
            if kind == _stat.S_IFDIR:
                below.append(path)
            elif found.st_nlink > 1:
                unit = linked.get((found.st_dev, found.st_ino))
                if unit is None:
                    size = found.st_size if kind == _stat.S_IFREG else 0
                    unit = Unit([], size, kind == _stat.S_IFREG)
                    linked[found.st_dev, found.st_ino] = unit
                    units.append(unit)
                unit.paths.append(path)
            elif kind == _stat.S_IFREG:
                units.append(Unit([path], found.st_size, True))
            else:
                units.append(Unit([path], 0, False))
        if is_empty and directory:
            units.append(Unit([directory], 0, False))
        waiting.extend(reversed(below))
    if not units:
        # The root alone.
        units.append(Unit([""], 0, False))
    return units


def _slices(groups: list[list[Unit]], count: int) -> list[list[Unit]]:
    """Consecutive groups, each in the slice in which its middle lies."""
    weights = [sum(unit.weight for unit in group) for group in groups]
    total = sum(weights)
    parts: list[list[Unit]] = [[] for _ in range(count)]
    done = 0
    for group, weight in zip(groups, weights):
        parts[min(count - 1, (2 * done + weight) * count // (2 * total))].extend(group)
        done += weight
    return parts
