"""Patterns of paths in an image."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._image import Image

_MAGIC = re.compile(r"[*?\[]")


def glob(image: Image, pattern: str, top: str) -> Iterator[str]:
    """The paths that match, each once."""
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if not names:
        raise ValueError(f"unacceptable pattern: {pattern!r}")
    if ".." in names:
        raise ValueError(f"'..' in pattern: {pattern!r}")
    seen: set[str] = set()
    for path in _select(image, top, names, pattern.endswith("/")):
        if path not in seen:
            seen.add(path)
            yield path


def matcher(pattern: str) -> Callable[[str], object]:
    """A function that says whether a name matches a pattern of one name."""
    return re.compile(fnmatch.translate(pattern)).match


def _select(image: Image, path: str, names: list[str], directories: bool) -> Iterator[str]:
    if not names:
        if path and (not directories or image.is_dir(path)):
            yield path
        return
    name, rest = names[0], names[1:]
    if name == "**":
        if not image.is_dir(path):
            return
        for directory, _, others in image._tree(path, None):
            yield from _select(image, directory, rest, directories)
            if not rest and not directories:
                yield from (entry.path for entry in others)
    elif _MAGIC.search(name):
        if not image.is_dir(path):
            return
        matches = matcher(name)
        for entry in image._entries(path):
            if not matches(entry.name):
                continue
            if rest and not entry.is_dir():
                continue
            yield from _select(image, entry.path, rest, directories)
    else:
        child = f"{path}/{name}" if path else name
        if image.exists(child, follow_symlinks=bool(rest)):
            yield from _select(image, child, rest, directories)
