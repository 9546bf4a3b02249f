"""Builds images."""

from __future__ import annotations

import os
import stat as _stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from . import _redwarfs

StrPath = str | bytes | os.PathLike[str]
Progress = Callable[[str, Mapping[str, int]], object]
Option = str | int | bool | Sequence[str]


class SupportsWrite(Protocol):
    """What an image can be written to, besides a path."""

    def write(self, data: bytes, /) -> Any: ...


@runtime_checkable
class SupportsRead(Protocol):
    """What the content of a file can be read from."""

    def read(self, size: int, /) -> bytes: ...


Content = bytes | bytearray | memoryview | str | SupportsRead | Iterable[bytes]


@dataclass(frozen=True)
class BuildResult:
    """The result of a build."""

    image_size: int
    """Bytes of the image."""
    original_size: int
    """Bytes of regular files and targets of symbolic links."""
    block_bytes: int
    """Bytes in blocks, uncompressed."""
    blocks: int
    """Number of blocks."""
    inodes: int
    """Number of inodes."""
    errors: int
    """Entries that were not stored unchanged, with `continue_on_error`."""
    warnings: Sequence[str]
    """Data of the input that the image does not hold; at most 1,000 messages."""
    problems: Sequence[str]
    """One message for each entry that was not stored unchanged; at most 1,000."""


def option_names() -> dict[str, str]:
    """The names of all options of `build` and `Writer`, and the form of each value.

    They are the long options of `mkdwarfs` that say how data is stored, with `_` instead of `-`.

    >>> import redwarfs
    >>> redwarfs.option_names()["block_size_bits"]
    '10 to 30'
    """
    return {name.replace("-", "_"): form for name, form in _redwarfs._option_names()}


def check_options(level: int, options: Mapping[str, Option]) -> None:
    """Raises the error that `build` would raise for these options, whatever it packs."""
    _check_level(level)
    _redwarfs._check_options(level, _texts(options))


def build(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | SupportsWrite,
    *,
    level: int = 7,
    overwrite: bool = False,
    continue_on_error: bool = False,
    select: Callable[[str, int], bool] | None = None,
    progress: Progress | None = None,
    **options: Option,
) -> BuildResult:
    """Packs a directory into an image.

    `target` is a path, which gets its name when the image is complete, or an object with `write`. An
    existing file is an error unless `overwrite` is true. `level` is from 0 (fast) to 9 (small).

    `select` is called with the path below `source` and the type (the bits of `stat.S_IFMT`) of each
    entry, and returns whether to store it. `progress` is called ten times a second with the name of the
    phase and counters, and once at the end. An exception of either ends the build, and so does a signal
    such as `KeyboardInterrupt`. The first entry that cannot be read ends the build unless
    `continue_on_error` is true.

    Further keyword arguments are options of `mkdwarfs`, see `option_names`: numbers, booleans, texts,
    or lists of texts. The same directory, options and version give the same image.

    >>> import io, tempfile, redwarfs
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     result = redwarfs.build(directory, io.BytesIO(), level=4, block_size_bits=20)
    >>> result.inodes
    1
    """
    return _build(
        source, target, level, overwrite, continue_on_error, select, progress, options
    )


class Writer:
    """An image of entries that a program adds one by one.

    `target` and the keyword arguments are those of `build`. The image is built by `close`, or at the
    end of a `with` block. If the block ends with an exception, there is no image.

    Directories above an entry are added as needed. Contents stay in memory up to 64 MiB together, and
    further ones go to an unnamed file in the directory for temporary files. Without attributes, an
    entry belongs to root and has the time 0, so that equal contents give equal images.

    Several threads can add entries; they wait for each other. An object or an iterable that gives
    contents cannot use the writer meanwhile: its methods raise `ValueError`.

    >>> import io, redwarfs
    >>> target = io.BytesIO()
    >>> with redwarfs.Writer(target, level=4) as writer:
    ...     writer.add("numbers.txt", (b"%d " % number for number in range(5)))
    ...     writer.symlink("latest", "numbers.txt")
    >>> redwarfs.open(target)["latest"]
    b'0 1 2 3 4 '
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | SupportsWrite,
        *,
        level: int = 7,
        overwrite: bool = False,
        progress: Progress | None = None,
        **options: Option,
    ) -> None:
        self._arguments = (target, level, overwrite, progress, options)
        _texts(options)
        self._entries: _redwarfs.Entries | None = _redwarfs.Entries()
        self.result: BuildResult | None = None
        """The result, after `close`."""

    def add(
        self,
        path: StrPath,
        content: Content,
        *,
        mode: int = 0o644,
        uid: int = 0,
        gid: int = 0,
        mtime: float = 0,
        atime: float = 0,
        ctime: float = 0,
        mtime_ns: int | None = None,
    ) -> None:
        """Adds a regular file.

        `content` is bytes, text (stored as UTF-8), an object with `read`, or an iterable of bytes. An
        object is read at once, up to its end. Times are seconds since 1970.
        """
        given = _given(mode, uid, gid, mtime, atime, ctime, mtime_ns)
        self._open().add_file(path, _readable(content), given)

    def add_path(
        self,
        path: StrPath,
        source: str | os.PathLike[str],
    ) -> None:
        """Adds a file, a symbolic link or a directory of the disk, with its attributes.

        The content of a regular file is read by `close`. A directory is added without its entries.
        """
        found = os.lstat(source)
        given = (
            _stat.S_IMODE(found.st_mode),
            found.st_uid,
            found.st_gid,
            found.st_mtime_ns,
            found.st_atime_ns,
            found.st_ctime_ns,
        )
        kind = _stat.S_IFMT(found.st_mode)
        if kind == _stat.S_IFREG:
            self._open().add_path(path, os.path.abspath(source), given)
        elif kind == _stat.S_IFDIR:
            self._open().add_directory(path, given)
        elif kind == _stat.S_IFLNK:
            self._open().add_symlink(path, os.readlink(source), given)
        else:
            self._open().add_special(path, kind, found.st_rdev, given)

    def mkdir(
        self, path: StrPath, *, mode: int = 0o755, uid: int = 0, gid: int = 0, mtime: float = 0
    ) -> None:
        """Adds a directory, or changes the attributes of one. The empty path is the root."""
        self._open().add_directory(path, _given(mode, uid, gid, mtime, mtime, mtime, None))

    def symlink(
        self, path: StrPath, target: StrPath, *, uid: int = 0, gid: int = 0, mtime: float = 0
    ) -> None:
        """Adds a symbolic link to `target`, which need not exist."""
        given = _given(0o777, uid, gid, mtime, mtime, mtime, None)
        self._open().add_symlink(path, target, given)

    def link(self, path: StrPath, existing: StrPath) -> None:
        """Adds another name (a hard link) for a regular file of the image."""
        self._open().add_hard_link(path, existing)

    def mknod(
        self,
        path: StrPath,
        mode: int,
        device: int = 0,
        *,
        uid: int = 0,
        gid: int = 0,
        mtime: float = 0,
    ) -> None:
        """Adds a device, FIFO or socket; `mode` has its type and permissions.

        Such entries are stored only with the options `with_devices=True` and `with_specials=True`.
        """
        given = _given(_stat.S_IMODE(mode), uid, gid, mtime, mtime, mtime, None)
        self._open().add_special(path, _stat.S_IFMT(mode), device, given)

    def close(self) -> BuildResult:
        """Builds the image. Further calls return the same result.

        While a thread adds an entry, this raises `ValueError`, and the writer can still be used.
        """
        if self.result is not None:
            return self.result
        entries = self._open().take()
        self._entries = None
        target, level, overwrite, progress, options = self._arguments
        self.result = _build(entries, target, level, overwrite, False, None, progress, options)
        return self.result

    def discard(self) -> None:
        """Drops all entries; there will be no image."""
        self._entries = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and (self._entries is not None or self.result is not None):
            self.close()
        else:
            self.discard()

    def _open(self) -> _redwarfs.Entries:
        if self._entries is None:
            raise ValueError("the writer is closed")
        return self._entries


class _Pieces:
    """Reads the bytes of an iterable."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)

    def read(self, _size: int) -> bytes:
        for piece in self._pieces:
            piece = bytes(memoryview(piece))
            if piece:
                return piece
        return b""


def _readable(content: Content) -> bytes | SupportsRead:
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, (bytearray, memoryview)):
        return bytes(content)
    if isinstance(content, SupportsRead):
        return content
    return _Pieces(content)


def _given(
    mode: int, uid: int, gid: int, mtime: float, atime: float, ctime: float, mtime_ns: int | None
) -> tuple[int, int, int, int, int, int]:
    def ns(time: float) -> int:
        return time * 10**9 if isinstance(time, int) else round(time * 1e9)

    modified = ns(mtime) if mtime_ns is None else mtime_ns
    return (_stat.S_IMODE(mode), uid, gid, modified, ns(atime), ns(ctime))


def _check_level(level: int) -> None:
    if not 0 <= level <= 9:
        raise ValueError(f"the level is from 0 to 9, not {level}")


def _texts(options: Mapping[str, Option]) -> list[tuple[str, str]]:
    """Options as the native module takes them."""

    def text(name: str, value: object) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (str, int)):
            return str(value)
        raise TypeError(f"the option {name!r} is a text, a number or a boolean, not {value!r}")

    known = option_names()
    texts: list[tuple[str, str]] = []
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"unexpected keyword argument {name!r}")
        if isinstance(value, (list, tuple)):
            if name == "categorize":
                value = ",".join(text(name, part) for part in value)
            else:
                texts.extend((name, text(name, part)) for part in value)
                continue
        texts.append((name, text(name, value)))
    return texts


def _build(
    source: Any,
    target: Any,
    level: int,
    overwrite: bool,
    continue_on_error: bool,
    select: Callable[[str, int], bool] | None,
    progress: Progress | None,
    options: Mapping[str, Option],
) -> BuildResult:
    _check_level(level)
    if not isinstance(target, (str, os.PathLike)) and not hasattr(target, "write"):
        raise TypeError(f"the target is a path or has a method write, unlike {target!r}")
    done = _redwarfs._build(
        source,
        target,
        level,
        _texts(options),
        overwrite,
        continue_on_error,
        select,
        progress,
    )
    return BuildResult(**done)
