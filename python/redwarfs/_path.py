"""Paths in an image, as `zipfile.Path`."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from typing import IO, Any

from ._glob import matcher
from ._image import Image, _text, open as _open


class Path(Traversable):
    """An entry of an image, as `zipfile.Path`. It is an `importlib.resources.abc.Traversable`.

    `root` is an `Image`, or what `redwarfs.open` accepts.

    >>> import io, redwarfs
    >>> target = io.BytesIO()
    >>> with redwarfs.Writer(target) as writer:
    ...     writer.add("doc/a.txt", b"A")
    >>> doc = redwarfs.Path(target) / "doc"
    >>> [entry.name for entry in doc.iterdir()], (doc / "a.txt").read_text()
    (['a.txt'], 'A')
    """

    __slots__ = ("root", "at")

    def __init__(self, root: Any, at: str = "") -> None:
        self.root: Image = root if isinstance(root, Image) else _open(root)
        self.at = _text(at)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.root, self.at))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return (self.root, self.at) == (other.root, other.at)

    def __hash__(self) -> int:
        return hash((self.root, self.at))

    def __str__(self) -> str:
        return posixpath.join(os.fsdecode(self._root_name()), self.at)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r}, {self.at!r})"

    @property
    def name(self) -> str:
        """The last name; that of the image file for the root."""
        return posixpath.basename(self.at) or posixpath.basename(os.fsdecode(self._root_name()))

    @property
    def stem(self) -> str:
        """The name without its last suffix."""
        return posixpath.splitext(self.name)[0]

    @property
    def suffix(self) -> str:
        """The last suffix of the name, with its dot."""
        return posixpath.splitext(self.name)[1]

    @property
    def suffixes(self) -> list[str]:
        """All suffixes of the name."""
        name = self.name.lstrip(".")
        return ["." + suffix for suffix in name.split(".")[1:]]

    @property
    def parent(self) -> Path:
        """The directory of the entry; the root for the root."""
        return self._at(posixpath.dirname(self.at))

    @property
    def filename(self) -> str:
        """The path, with that of the image file before it."""
        return str(self)

    def joinpath(self, *others: str | os.PathLike[str]) -> Path:
        """The path with further components. `..` is resolved when the path is used."""
        return self._at(posixpath.join(self.at, *(os.fspath(other) for other in others)))

    def __truediv__(self, other: str | os.PathLike[str]) -> Path:
        return self.joinpath(other)

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
        """Opens a regular file, as `Image.open`."""
        file: IO[Any] = self.root.open(self.at, mode, *args, **kwargs)
        return file

    def read_bytes(self) -> bytes:
        """The bytes of a regular file."""
        return self.root.read(self.at)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """The text of a regular file."""
        return self.root.read_text(self.at, encoding or "utf-8", errors)

    def exists(self) -> bool:
        """Whether the image has such an entry."""
        return self.root.exists(self.at)

    def is_file(self) -> bool:
        """Whether the path is a regular file, or a symbolic link to one."""
        return self.root.is_file(self.at)

    def is_dir(self) -> bool:
        """Whether the path is a directory, or a symbolic link to one."""
        return self.root.is_dir(self.at)

    def is_symlink(self) -> bool:
        """Whether the path is a symbolic link."""
        return self.root.is_symlink(self.at)

    def stat(self) -> os.stat_result:
        """Attributes of the entry."""
        return self.root.stat(self.at)

    def readlink(self) -> str:
        """The target of a symbolic link."""
        return self.root.readlink(self.at)

    def iterdir(self) -> Iterator[Path]:
        """The entries of a directory."""
        return (self._at(entry.path) for entry in self.root._entries(self.at))

    def match(self, pattern: str) -> bool:
        """Whether the end of the path matches a pattern, as `pathlib.PurePath.match`."""
        names, patterns = self.at.split("/"), _text(pattern).split("/")
        if len(patterns) > len(names) or (pattern.startswith("/") and len(patterns) != len(names)):
            return False
        last = names[len(names) - len(patterns) :]
        return all(matcher(want)(name) for want, name in zip(patterns, last))

    def glob(self, pattern: str) -> Iterator[Path]:
        """The entries below that match a pattern, as `Image.glob`."""
        return (self._at(path) for path in self.root.glob(pattern, self.at))

    def rglob(self, pattern: str) -> Iterator[Path]:
        """As `glob` with `**/` before the pattern."""
        return self.glob(f"**/{pattern}")

    def relative_to(self, other: Path, *extra: str | os.PathLike[str]) -> str:
        """The path relative to another one."""
        return posixpath.relpath(str(self), str(other.joinpath(*extra)))

    def _at(self, at: str) -> Path:
        return type(self)(self.root, at)

    def _root_name(self) -> Any:
        name = self.root.name
        return name if isinstance(name, (str, bytes)) else ":image:"
