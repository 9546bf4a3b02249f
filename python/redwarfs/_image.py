"""Open images."""

from __future__ import annotations

import errno
import operator
import os
import stat as _stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import IO, Any, Literal, Self, overload

from . import _glob
from . import _redwarfs
from ._errors import CorruptImageError
from ._file import RawFile, open_file
from ._source import adapt

# Errors that say that a path leads to nothing, as for os.path.exists.
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

StrPath = str | bytes | os.PathLike[str]


@dataclass(frozen=True)
class Finding:
    """One damage that `Image.verify` has found."""

    kind: str
    """A name for programs, such as `checksum`."""
    message: str
    """What is wrong, and where."""
    affected: int
    """Number of files with data in the damaged block."""
    paths: Sequence[str]
    """The first of these files."""


@dataclass(frozen=True)
class ExtractResult:
    """The result of `Image.extract`."""

    files: int
    """Regular files, without additional hard links."""
    bytes: int
    """Bytes of file contents."""
    errors: int
    """Names that were left out, with `continue_on_error`."""
    warnings: Sequence[str]
    """Differences from the image, such as owners that only root can set; at most 1,000."""
    damaged: Sequence[str]
    """The names that were left out, and why; at most 1,000."""


@dataclass(frozen=True)
class ImageInfo:
    """Numbers about an image."""

    version: str
    """Version of the format."""
    offset: int
    """Bytes before the image in its file."""
    image_size: int
    """Bytes of the image."""
    block_size: int
    """Largest number of bytes of a block, uncompressed."""
    blocks: int
    """Number of blocks."""
    inodes: int
    """Number of inodes."""
    files: int
    """Number of regular files; names of one file with several hard links count once."""
    original_size: int
    """Bytes of all regular files and targets of symbolic links."""
    digests_time: int | None = None
    """When the digests of the image were made, in seconds since 1970, if `verify` asked for digests. If an image is older than
    it should be, somebody has put an older one in its place."""
    signer: str | None = None
    """The key that has signed the image, if `verify` asked for one."""


class DirEntry:
    """An entry of a directory, as `os.DirEntry`."""

    __slots__ = ("name", "path", "_image", "_inode", "_kind")

    def __init__(self, image: Image, directory: str, name: str, inode: int, kind: int) -> None:
        self.name = name
        self.path = f"{directory}/{name}" if directory else name
        self._image = image
        self._inode = inode
        self._kind = kind

    def inode(self) -> int:
        """Number of the inode in the image."""
        return self._inode

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the entry is a directory, or a symbolic link to one."""
        return self._mode_is(_stat.S_IFDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the entry is a regular file, or a symbolic link to one."""
        return self._mode_is(_stat.S_IFREG, follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether the entry is a symbolic link."""
        return self._kind == _stat.S_IFLNK

    def is_junction(self) -> bool:
        """False: images have no junctions."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Attributes of the entry."""
        if follow_symlinks and self.is_symlink():
            return self._image.stat(self.path)
        return _stat_result(self._image._stat_inode(self._inode))

    def _mode_is(self, kind: int, follow_symlinks: bool) -> bool:
        if follow_symlinks and self.is_symlink():
            return self._image._kind(self.path, True) == kind
        return self._kind == kind

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<redwarfs.DirEntry {self.name!r}>"


class ScandirIterator:
    """The iterator of `Image.scandir`, as that of `os.scandir`."""

    def __init__(self, entries: Iterator[DirEntry]) -> None:
        self._entries = entries

    def __iter__(self) -> ScandirIterator:
        return self

    def __next__(self) -> DirEntry:
        return next(self._entries)

    def close(self) -> None:
        """Ends the iteration."""
        self._entries = iter(())

    def __enter__(self) -> ScandirIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Image(_redwarfs.Image, Mapping[str, bytes]):
    """An open image, and a mapping from the paths of its regular files to their contents.

    `source` is a path, the URL of a file or of an object on a server (`https`, `http`, `s3`, `gs`, `az`, `file`), a
    descriptor, or a binary file object that can seek. Symbolic links are followed inside the image. Iteration yields the
    paths of regular files and follows no links.

    Keyword arguments:

    - `cache_size`: bytes of decompressed blocks that are kept (512 MiB).
    - `readahead`: decompress blocks ahead in background threads when a file is read front to back.
    - `verify`: compare the checksum of each block before its bytes are used. A text says what the image must prove:
      `"signed:KEY"`, with a public key of minisign or SSH or a file that has such keys, or `"digests"`.
      Whatever differs is refused.
    - `check`: check the consistency of all metadata at opening.
    - `offset`: where the image starts in its file; it is searched for by default.
    - `image_size`: bytes of the image, if it ends before the end of its file.
    - `snapshot`: an older state of the image, which `mkdwarfs --append` has kept: its name, its number, or a time. A time is a
      `datetime` with a time zone, or a text such as `2026-11-28T23:59:59`, in UTC unless a zone follows. It means the newest
      snapshot that is not later.
    - `cache_dir`: a directory that gets what is read from the image, as it is stored there. It is for images on servers and
      on slow media: what it has is not read again, also by other processes that share it.
    - `cache_limit`: bytes that the directory may take (10 GiB). What was not used for the longest time goes first.
    - `offline`: read from the directory only, and ask no server.
    - `lazy`: open the image when it is first used. Errors are raised then.

    An image can be used in several threads at once. After `os.fork`, the child opens it anew when it uses it: from the
    same descriptor, or from the server. Pickling keeps the source and the keyword arguments, and the copy
    opens the image when it is first used. An image from a descriptor cannot be pickled, nor one from a URL with a user, a
    password or a query: these may be secrets, and no message shows them.
    """

    # Set by __init__, which runs after the native __new__.
    _source: Any
    _options: dict[str, Any]

    def __new__(cls, source: Any, **options: Any) -> Self:
        return super().__new__(cls, adapt(source), **_adapted(options))

    def __init__(self, source: Any, **options: Any) -> None:
        self._has_secret = False
        if isinstance(source, (str, bytes, os.PathLike)):
            source, self._has_secret = _named(os.fspath(source))
        self._source = source
        self._options = _adapted(options)
        self._count: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._source
        if isinstance(source, int):
            raise TypeError("an image that was opened from a descriptor cannot be pickled")
        if self._has_secret:
            raise TypeError(
                "an image whose URL has a user, a password or a query cannot be pickled, because these may be secrets: "
                "open it in each process, or put a password into ~/.netrc"
            )
        if isinstance(source, memoryview):
            source = bytearray(source)
        return (_reopened, (type(self), source, {**self._options, "lazy": True}))

    @property
    def name(self) -> Any:
        """The path, descriptor or file object that the image was opened from, or the URL without user, password and query."""
        return self._source

    def __repr__(self) -> str:
        return f"<redwarfs.Image {self._source!r}>"

    # An image is open as long as anything refers to it; `with` is for those who expect it.
    def __enter__(self) -> Image:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    # The mapping.

    def __getitem__(self, path: StrPath) -> bytes:
        try:
            return self.read(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as e:
            self._ensure_open()
            raise KeyError(path) from e

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        return self._kind(path, True) == _stat.S_IFREG

    def __iter__(self) -> Iterator[str]:
        for directory, _, files in self._tree("", None):
            for entry in files:
                if entry._kind == _stat.S_IFREG:
                    yield entry.path

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self)
        return self._count

    def __bool__(self) -> bool:
        return True

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: object) -> bool:
        # As open files: comparing contents would read both images.
        return self is other

    # Entries.

    def exists(self, path: StrPath, *, follow_symlinks: bool = True) -> bool:
        """Whether the image has an entry at a path."""
        return self._kind(path, follow_symlinks) is not None

    def is_file(self, path: StrPath) -> bool:
        """Whether a path is a regular file, or a symbolic link to one."""
        return self._kind(path, True) == _stat.S_IFREG

    def is_dir(self, path: StrPath) -> bool:
        """Whether a path is a directory, or a symbolic link to one."""
        return self._kind(path, True) == _stat.S_IFDIR

    def is_symlink(self, path: StrPath) -> bool:
        """Whether a path is a symbolic link."""
        return self._kind(path, False) == _stat.S_IFLNK

    def stat(self, path: StrPath, *, follow_symlinks: bool = True) -> os.stat_result:
        """Attributes of an entry, as `os.stat`. `st_dev` is 0.

        Raises `FileNotFoundError` if there is no such entry.
        """
        return _stat_result(self._stat(path, follow_symlinks))

    def lstat(self, path: StrPath) -> os.stat_result:
        """Attributes of an entry; of the link itself if it is a symbolic link."""
        return self.stat(path, follow_symlinks=False)

    def readlink(self, path: StrPath) -> str:
        """The target of a symbolic link."""
        return self._readlink(path)

    def listxattr(self, path: StrPath = "", *, follow_symlinks: bool = True) -> list[str]:
        """The names of the extended attributes of an entry, as `os.listxattr`."""
        return self._listxattr(path, follow_symlinks)

    def getxattr(
        self, path: StrPath, attribute: str | bytes, *, follow_symlinks: bool = True
    ) -> bytes:
        """The value of an extended attribute of an entry, as `os.getxattr`.

        Raises `OSError` with `errno.ENODATA` if the entry has no such attribute.
        """
        value = self._getxattr(path, attribute, follow_symlinks)
        if value is None:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), os.fsdecode(path))
        return value

    def scandir(self, path: StrPath = "") -> ScandirIterator:
        """The entries of a directory in the order of their names, as `os.scandir`."""
        return ScandirIterator(iter(self._entries(path)))

    def listdir(self, path: StrPath = "") -> list[str]:
        """The names in a directory, sorted."""
        return [entry.name for entry in self._entries(path)]

    def walk(
        self,
        top: StrPath = "",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """All directories below `top`, as `os.walk`: path, names of directories, other names.

        With `topdown`, a caller may change the list of directories to select those that are entered.
        Links are never followed; `followlinks` may only be false.
        """
        if followlinks:
            raise ValueError("walk does not follow links")
        if topdown:
            return self._walk_down(top, onerror)
        return reversed(list(self._walk_down(top, onerror)))

    def glob(self, pattern: str, top: StrPath = "") -> Iterator[str]:
        """The paths below `top` that match a pattern, as `pathlib.Path.glob`.

        `*`, `?` and `[...]` match within a name, and `**` any number of directories. Names that begin
        with a dot are no exception. Links to directories are followed where the pattern names an entry
        in them, except by `**`.
        """
        return _glob.glob(self, pattern, _text(top))

    def files(self, top: StrPath = "") -> Iterator[str]:
        """The paths of all regular files below a directory."""
        for _, _, files in self._tree(_text(top), None):
            yield from (entry.path for entry in files if entry._kind == _stat.S_IFREG)

    # Contents.

    def read(self, path: StrPath, offset: int = 0, size: int | None = None) -> bytes:
        """The bytes of a regular file: all, or at most `size` bytes from `offset` on."""
        if offset < 0 or (size is not None and size < 0):
            raise ValueError("negative offset or size")
        return super().read(path, offset, size)

    def read_text(
        self, path: StrPath, encoding: str | None = "utf-8", errors: str | None = None
    ) -> str:
        """The text of a regular file."""
        with self.open(path, "r", encoding=encoding, errors=errors) as file:
            return str(file.read())

    def read_many(self, paths: Iterable[StrPath], threads: int | None = None) -> list[bytes]:
        """The bytes of many regular files, in the order of `paths`.

        The files are read in the order in which the image stores them, so that each block is
        decompressed once, on `threads` threads (by default as many as there are CPUs). Other threads
        of the interpreter run meanwhile. The first failure is raised.
        """
        return self._read_many(list(paths), threads)

    @overload
    def open(
        self,
        path: StrPath,
        mode: Literal["r", "rt", "tr"] = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[str]: ...

    @overload
    def open(  # type: ignore[overload-overlap]
        self, path: StrPath, mode: Literal["rb", "br"], buffering: Literal[0]
    ) -> RawFile: ...

    @overload
    def open(
        self, path: StrPath, mode: Literal["rb", "br"], buffering: int = -1
    ) -> IO[bytes]: ...

    @overload
    def open(
        self,
        path: StrPath,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]: ...

    def open(
        self,
        path: StrPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Opens a regular file, as the built-in `open`: text by default, `"rb"` for bytes.

        With `"rb"` and `buffering=0`, the result is a `RawFile`.
        """
        return open_file(self, path, mode, buffering, encoding, errors, newline)

    # The image as a whole.

    def info(self) -> ImageInfo:
        """Numbers about the image."""
        return ImageInfo(**self._info())

    def verify(self, *, deep: bool = False, threads: int = 1) -> list[Finding]:
        """Checks the image, and returns what is damaged: an empty list if nothing is.

        All checksums are compared. With `deep`, also the SHA-512/256 of each section, and all blocks
        are decompressed.
        """
        return [Finding(*found) for found in self._verify(deep, threads)]

    def extract(
        self,
        target: str | os.PathLike[str],
        *,
        paths: Iterable[str] | None = None,
        select: Callable[[str, int], bool] | None = None,
        threads: int | None = None,
        continue_on_error: bool = False,
        skip_devices: bool = False,
        skip_specials: bool = False,
    ) -> ExtractResult:
        """Extracts the image into a directory, which is created if it does not exist.

        `paths` selects entries with everything below them, and `select` is called with the path and the
        type (the bits of `stat.S_IFMT`) of each entry. Parents of selected entries are extracted, too.
        Nothing outside `target` is changed, whatever names and links the image holds.
        """
        wanted = select
        if paths is not None:
            roots = [path.strip("/") for path in paths]
            for root in roots:
                self.lstat(root)
            wanted = _below(roots, select)
        done = self._extract(
            target, wanted, threads, continue_on_error, skip_devices, skip_specials
        )
        return ExtractResult(**done)

    # Below.

    def _kind(self, path: StrPath, follow: bool) -> int | None:
        try:
            return self._lookup(path, follow)[1]
        except OSError as e:
            if e.errno in _NOTHING_THERE:
                # The image itself may not be there.
                self._ensure_open()
                return None
            raise

    def _entries(self, path: StrPath) -> list[DirEntry]:
        inode, kind = self._lookup(path)
        text = _text(path)
        if kind != _stat.S_IFDIR:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory in the image", text)
        return self._children(text, inode)

    def _children(self, path: str, inode: int) -> list[DirEntry]:
        return [DirEntry(self, path, *entry) for entry in self._list(inode)]

    def _tree(
        self, top: str, onerror: Callable[[OSError], object] | None
    ) -> Iterator[tuple[str, list[DirEntry], list[DirEntry]]]:
        """Each directory below `top`: path, entries that are directories, other entries.

        Directories that a caller removes from the list are not entered.
        """
        inode, kind = self._lookup(top)
        if kind != _stat.S_IFDIR:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory in the image", top)
        # In a damaged image, a directory may contain itself.
        seen = {inode}
        todo = [(top, inode)]
        while todo:
            path, inode = todo.pop()
            try:
                entries = self._children(path, inode)
            except OSError as e:
                if onerror is None:
                    raise
                onerror(e)
                continue
            directories = [entry for entry in entries if entry._kind == _stat.S_IFDIR]
            others = [entry for entry in entries if entry._kind != _stat.S_IFDIR]
            yield path, directories, others
            for entry in reversed(directories):
                if entry._inode in seen:
                    raise CorruptImageError(errno.EIO, "a directory has two parents", entry.path)
                seen.add(entry._inode)
                todo.append((entry.path, entry._inode))

    def _walk_down(
        self, top: StrPath, onerror: Callable[[OSError], object] | None
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        try:
            for path, directories, others in self._tree(_text(top), onerror):
                names = [entry.name for entry in directories]
                yield path, names, [entry.name for entry in others]
                wanted = {name: number for number, name in enumerate(names)}
                directories[:] = sorted(
                    (entry for entry in directories if entry.name in wanted),
                    key=lambda entry: wanted[entry.name],
                )
        except (FileNotFoundError, NotADirectoryError) as e:
            self._ensure_open()
            # As os.walk: a top that cannot be listed is an error for `onerror`, or nothing.
            if onerror is not None:
                onerror(e)


def open(source: Any, **options: Any) -> Image:
    """Opens an image: a path, a URL, a descriptor, or a binary file object that can seek.

    The keyword arguments are those of `Image`. A descriptor is duplicated, and a file object is used as
    long as the image. Raises `NotAnImageError`, `CorruptImageError`, `UnsupportedError`, `LimitError`,
    or the exception of the system.

    A URL is one of `https`, `http`, `s3`, `gs`, `az` and `file`. Opening an object takes one or two requests, and reads fetch
    the blocks that they need. Credentials come from where the usual clients find them (`~/.netrc`, `AWS_*`, ...).
    `FileNotFoundError` and `PermissionError` are answers of the server. Opening may wait for the server, and a signal ends
    that; so it does for the reads of a single file.

    >>> import io, redwarfs
    >>> target = io.BytesIO()
    >>> with redwarfs.Writer(target) as writer:
    ...     writer.add("a/b.txt", b"text")
    >>> image = redwarfs.open(target)
    >>> list(image), "a/b.txt" in image, image.stat("a").st_nlink
    (['a/b.txt'], True, 1)

    >>> import pathlib, tempfile
    >>> work = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(work.name, "an image")
    >>> path.write_bytes(target.getvalue()) > 0
    True
    >>> redwarfs.open(path.as_uri())["a/b.txt"]
    b'text'
    """
    return Image(source, **options)


def _named(source: str | bytes) -> tuple[str | bytes, bool]:
    """A path or URL for messages and pickles, and whether it lacks something that opening the image needs."""
    name, is_remote = _redwarfs._place(source)
    if is_remote:
        return name, name != os.fsdecode(source)
    return os.path.abspath(os.fsencode(name) if isinstance(source, bytes) else name), False


def _adapted(options: dict[str, Any]) -> dict[str, Any]:
    """Options that mean the same in each process, as the native module takes them."""
    options = dict(options)
    if options.get("cache_dir") is not None:
        options["cache_dir"] = os.path.abspath(options["cache_dir"])
    if options.get("snapshot") is not None:
        options["snapshot"] = _snapshot_text(options["snapshot"])
    return options


def _snapshot_text(snapshot: str | int | datetime) -> str:
    """What calls a snapshot, as the tools take it."""
    if isinstance(snapshot, str):
        return snapshot
    if not isinstance(snapshot, datetime):
        return str(operator.index(snapshot))
    if snapshot.utcoffset() is None:
        raise ValueError("the time of a snapshot needs a time zone, such as datetime.timezone.utc")
    return snapshot.astimezone(timezone.utc).isoformat()


def _reopened(cls: type[Image], source: Any, options: dict[str, Any]) -> Image:
    return cls(source, **options)


def _text(path: StrPath) -> str:
    """A path without slashes at its ends and without empty components."""
    return "/".join(name for name in os.fsdecode(path).split("/") if name not in ("", "."))


def _below(
    roots: list[str], select: Callable[[str, int], bool] | None
) -> Callable[[str, int], bool]:
    def wanted(path: str, kind: int) -> bool:
        inside = any(not root or path == root or path.startswith(root + "/") for root in roots)
        return inside and (select is None or select(path, kind))

    return wanted


def _stat_result(found: tuple[int, ...]) -> os.stat_result:
    mode, inode, links, uid, gid, size, device, blocks, atime, mtime, ctime = found
    whole = [time // 1_000_000_000 for time in (atime, mtime, ctime)]
    more = {
        "st_atime": atime / 1e9,
        "st_mtime": mtime / 1e9,
        "st_ctime": ctime / 1e9,
        "st_atime_ns": atime,
        "st_mtime_ns": mtime,
        "st_ctime_ns": ctime,
        "st_blksize": 65536,
        "st_blocks": blocks,
        "st_rdev": device,
    }
    return os.stat_result((mode, inode, 0, links, uid, gid, size, *whole), more)
