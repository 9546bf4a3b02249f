"""Joins images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _redwarfs
from ._build import Option, Progress, SupportsWrite, _check_level, _texts
from ._image import Image, StrPath

# Decoded blocks that all images together keep, in bytes. Blocks with data of files are copied past them.
_CACHES = 64 << 20

# The options of `build` that a merge has, too. All others follow from the images.
_OPTIONS = frozenset(
    {
        "compress_niceness",
        "compression",
        "history_compression",
        "memory_limit",
        "metadata_compression",
        "no_hardlink_table",
        "no_history",
        "no_section_index",
        "num_workers",
        "schema_compression",
        "set_group",
        "set_owner",
        "set_time",
    }
)


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge."""

    image_size: int
    """Bytes of the new image."""
    blocks: int
    """Number of its blocks."""
    old_blocks: int
    """Blocks of all images together."""
    left_out: int
    """Blocks that were left out, because nothing uses them or others are equal."""
    repacked: int
    """Blocks whose used data was compressed anew, with `repack`."""
    contents: int
    """Number of distinct files."""
    errors: int
    """Entries that could not be stored."""
    warnings: Sequence[str]
    """Messages about data of the images that the new one does not hold; at most 1,000."""
    problems: Sequence[str]
    """One message for each entry that could not be stored; at most 1,000."""


def merge(
    images: Iterable[Any] | Mapping[str, Any],
    target: str | os.PathLike[str] | SupportsWrite,
    *,
    level: int = 7,
    overwrite: bool = False,
    repack: int = 0,
    progress: Progress | None = None,
    **options: Option,
) -> MergeResult:
    """Joins images without their sources: blocks are copied as they are, and the metadata is made anew.

    `images` are images, or whatever `open` takes. The tree of each one is put over those before it; of
    files with the same path, the last one counts. With a mapping, its keys are directories of the new
    tree, and each image goes below its own one.

    `repack` is a percentage: the data of blocks of which less is in use is compressed anew, with 100 also
    for all equal files to be stored once. `target`, `level`, `overwrite` and `progress` are those of
    `build`. Further keyword arguments are the options of `build` about codecs, threads, memory, history
    and owners.

    The checksum of each block is compared when it is copied. After an error, there is no new image.

    >>> import io, redwarfs
    >>> images = []
    >>> for name in ["a", "b"]:
    ...     images.append(io.BytesIO())
    ...     with redwarfs.Writer(images[-1], level=1) as writer:
    ...         writer.add(f"{name}.txt", name)
    >>> target = io.BytesIO()
    >>> result = redwarfs.merge(images, target)
    >>> list(redwarfs.open(target)), result.contents
    (['a.txt', 'b.txt'], 2)
    >>> result = redwarfs.merge({"first": images[0], "second": images[1]}, target := io.BytesIO())
    >>> list(redwarfs.open(target))
    ['first/a.txt', 'second/b.txt']
    """
    given: list[tuple[str, Any]]
    if isinstance(images, Mapping) and not isinstance(images, Image):
        given = list(images.items())
    elif isinstance(images, (str, bytes, os.PathLike, Image)):
        raise TypeError("merge takes several images")
    else:
        given = [("", image) for image in images]
    cache = _CACHES // max(1, len(given))
    parts: list[tuple[_redwarfs.Image, bytes, StrPath]] = []
    for at, image in given:
        if not isinstance(image, Image):
            image = Image(image, cache_size=cache, readahead=False)
        named = isinstance(image.name, (str, bytes, os.PathLike))
        parts.append((image, _place(at), os.fspath(image.name) if named else ""))
    return _join(parts, target, level, overwrite, repack, progress, options)


def _join(
    parts: Sequence[tuple[_redwarfs.Image, bytes, StrPath]],
    target: str | os.PathLike[str] | SupportsWrite,
    level: int,
    overwrite: bool,
    repack: int,
    progress: Progress | None,
    options: Mapping[str, Option],
) -> MergeResult:
    """Joins images, each with its directory in the new tree, and its name for errors."""
    _check_level(level)
    if not 0 <= repack <= 100:
        raise ValueError(f"a percentage is from 0 to 100, not {repack}")
    if not isinstance(target, (str, os.PathLike)) and not hasattr(target, "write"):
        raise TypeError(f"the target is a path or has a method write, unlike {target!r}")
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"unexpected keyword argument {name!r}")
    done = _redwarfs._merge(
        list(parts), target, level, _texts(options), overwrite, repack, _CACHES, progress
    )
    return MergeResult(**done)


def _place(path: str | bytes) -> bytes:
    """The directory of an image in the new tree."""
    names = [name for name in os.fsencode(path).split(b"/") if name not in (b"", b".")]
    if b".." in names:
        raise ValueError(f"a place below the root of the new tree has no '..': {path!r}")
    return b"/".join(names)
