"""Joins shards."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, BinaryIO

from .._build import Option
from .._errors import RedwarfsError
from .._image import Image
from .._merge import _CACHES, _OPTIONS, MergeResult, _join
from . import _store
from ._shard import Shard

# Messages of a result, at most.
_WARNINGS = 1000


def merge(
    shards: Iterable[Shard | str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    level: int = 7,
    overwrite: bool = False,
    repack: int = 0,
    **options: Option,
) -> MergeResult:
    """Joins shards into the image `target`. Both can be paths or URLs.

    Blocks are copied as they are, so it takes about as long as reading all shards and writing the image. Shards in a
    store are read from there, without a copy on this machine. The image for a store is made in the directory
    for temporary files (`TMPDIR`), which must have room for all of it. The image gets its name when it is complete.

    `level`, `overwrite` and `repack` are those of `redwarfs.merge`. Of the further keyword arguments, which may be all
    those of `build_shard`, the ones that `redwarfs.merge` knows count.

    The image does not depend on the order of the shards. If they are the results of `build_shard`, one that is
    missing is an error, and their warnings come first in those of the result.

    The error about a damaged shard names it. Delete that shard and build it again, or build it with `rebuild=True`.
    """
    given = list(shards)
    built = [shard for shard in given if isinstance(shard, Shard)]
    if built:
        _check(built, len(given))
        built.sort(key=lambda shard: shard.number)
        places = [shard.path for shard in built]
    else:
        places = sorted(os.fspath(shard) for shard in given if not isinstance(shard, Shard))
    target = _store.check_target(target, overwrite)
    known: dict[str, Any] = {name: value for name, value in options.items() if name in _OPTIONS}
    results: list[MergeResult] = []
    with ExitStack() as stack:
        images = [(_image(stack, place, len(places)), b"", place) for place in places]

        def make(file: str | BinaryIO) -> None:
            results.append(_join(images, file, level, overwrite, repack, None, known))

        if _store.is_url(target):
            _store.publish(target, make)
        else:
            make(target)
    warnings = [warning for shard in built for warning in shard.warnings]
    if warnings:
        return replace(results[0], warnings=[*warnings, *results[0].warnings][:_WARNINGS])
    return results[0]


def _image(stack: ExitStack, place: str, count: int) -> Image:
    """A shard, one of `count`. An error has its name."""
    try:
        source = stack.enter_context(_store.opened(place))
        return Image(source, cache_size=_CACHES // count, readahead=False)
    except Exception as e:
        if isinstance(e, OSError) and e.filename == place:
            raise
        if isinstance(e, RedwarfsError) or type(e) is FileNotFoundError:
            raise type(e)(e.errno or errno.EIO, e.strerror or str(e), place) from e
        e.add_note(f"of the shard {place}")
        raise


def _check(shards: list[Shard], given: int) -> None:
    if len(shards) != given:
        raise TypeError("shards are either results of build_shard or names, not both")
    counts = {shard.count for shard in shards}
    if len(counts) > 1:
        raise ValueError(f"the shards are of trees that were divided in {sorted(counts)} parts")
    count = counts.pop()
    numbers = sorted(shard.number for shard in shards)
    missing = sorted(set(range(count)) - set(numbers))
    if missing:
        raise ValueError(f"shard {missing[0]} of {count} is missing")
    if len(numbers) != count:
        raise ValueError("a shard is given twice")
