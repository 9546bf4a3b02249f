"""A file system for fsspec: `redwarfs://PATH::URL-OF-THE-IMAGE`.

The package registers it by an entry point, so libraries that use fsspec (pandas, PyArrow, Dask, zarr)
read files inside of images:

>>> import os, tempfile, fsspec, redwarfs
>>> work = tempfile.TemporaryDirectory()
>>> path = os.path.join(work.name, "data.dwarfs")
>>> with redwarfs.Writer(path) as writer:
...     writer.add("tables/one.csv", "a,b\\n1,2\\n")
>>> with fsspec.open(f"redwarfs://tables/one.csv::file://{path}", "rt") as file:
...     file.readline()
'a,b\\n'
>>> fsspec.filesystem("redwarfs", fo=path).glob("**/*.csv")
['tables/one.csv']
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import fsspec
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.implementations.local import LocalFileSystem

from ._file import BUFFER_SIZE, RawFile
from ._image import Image

_TYPES = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}


class ImageFile(io.BufferedReader):
    """A file of an image with what fsspec expects of its files."""

    def __init__(self, raw: RawFile, buffer_size: int) -> None:
        super().__init__(raw, buffer_size)
        self._file = raw

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._file._size


class RedwarfsFileSystem(AbstractArchiveFileSystem):  # type: ignore[misc]
    """The files of an image, read-only.

    `fo` is a path, a URL of fsspec, or a binary file object that can seek. `target_protocol` and
    `target_options` say how fsspec opens a URL. The other keyword arguments are those of
    `redwarfs.Image`, such as `snapshot`. Local images are opened without fsspec, so that several processes share the page
    cache and no file object.
    """

    protocol = "redwarfs"
    root_marker = ""
    cachable = True

    def __init__(
        self,
        fo: Any = "",
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        *,
        cache_size: int = 512 << 20,
        readahead: bool = True,
        verify: bool | str = True,
        check: bool = False,
        offset: int | None = None,
        image_size: int | None = None,
        snapshot: str | int | datetime | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            fo=fo, target_protocol=target_protocol, target_options=target_options, **kwargs
        )
        self._opened: Any = None
        if isinstance(fo, (str, os.PathLike)):
            url = os.fspath(fo)
            target, path = fsspec.core.url_to_fs(
                url, **({"protocol": target_protocol} if target_protocol else {}),
                **(target_options or {}),
            )
            if isinstance(target, LocalFileSystem):
                fo = path
            else:
                fo = self._opened = target.open(path, "rb")
        elif hasattr(fo, "__enter__") and not hasattr(fo, "read"):
            # An fsspec.core.OpenFile.
            fo = self._opened = fo.open()
        self.fo = fo
        self.image = Image(
            fo,
            cache_size=cache_size,
            readahead=readahead,
            verify=verify,
            check=check,
            offset=offset,
            image_size=image_size,
            snapshot=snapshot,
        )

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = str(super()._strip_protocol(path))
        return "/".join(name for name in path.split("/") if name not in ("", "."))

    @property
    def fsid(self) -> str:
        """A name of the file system for caches."""
        snapshot = self.image._options["snapshot"]
        return f"redwarfs_{self.fo}" + (f"_{snapshot}" if snapshot else "")

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        found = self.image.lstat(path)
        entry = self._described(path, found)
        if entry["islink"]:
            entry["destination"] = self.image.readlink(path)
            try:
                target = self.image.stat(path)
            except OSError:
                return entry
            entry["type"] = _TYPES.get(stat.S_IFMT(target.st_mode), "other")
            entry["size"] = target.st_size if entry["type"] == "file" else 0
        return entry

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if not self.image.is_dir(path):
            entry = self.info(path)
            return [entry] if detail else [path]
        entries = list(self.image.scandir(path))
        if not detail:
            return [entry.path for entry in entries]
        return [
            self.info(entry.path)
            if entry.is_symlink()
            else self._described(entry.path, entry.stat(follow_symlinks=False))
            for entry in entries
        ]

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.image.exists(self._strip_protocol(path))

    def lexists(self, path: str, **kwargs: Any) -> bool:
        return self.image.exists(self._strip_protocol(path), follow_symlinks=False)

    def isfile(self, path: str) -> bool:
        return self.image.is_file(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        return self.image.is_dir(self._strip_protocol(path))

    def created(self, path: str) -> Any:
        raise NotImplementedError("images have no creation times of entries")

    def modified(self, path: str) -> Any:
        found = self.image.stat(self._strip_protocol(path))
        return datetime.fromtimestamp(found.st_mtime, timezone.utc)

    def ukey(self, path: str) -> str:
        from fsspec.utils import tokenize

        return str(tokenize(path, self.fsid, self.protocol))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self.image.read(path)
        first, last = self._range(path, start, end)
        return self.image.read(path, first, max(0, last - first))

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        if not isinstance(starts, Iterable):
            starts = [starts] * len(paths)
        if not isinstance(ends, Iterable):
            ends = [ends] * len(paths)
        starts, ends = list(starts), list(ends)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("paths, starts and ends differ in length")
        found: list[Any] = []
        for path, start, end in zip(paths, starts, ends):
            try:
                found.append(self.cat_file(path, start, end))
            except Exception as e:
                if on_error != "return":
                    raise
                found.append(e)
        return found

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any
    ) -> Any:
        paths = self.expand_path(path, recursive=recursive)
        single = isinstance(path, (str, os.PathLike)) and paths == [self._strip_protocol(path)]
        if single and not recursive:
            return self.cat_file(paths[0], **kwargs)
        paths = [one for one in paths if self.isfile(one) or not self.exists(one)]
        if not kwargs:
            try:
                # One pass over the blocks.
                return dict(zip(paths, self.image.read_many(paths)))
            except OSError:
                if on_error == "raise":
                    raise
        found: dict[str, Any] = {}
        for one in paths:
            try:
                found[one] = self.cat_file(one, **kwargs)
            except OSError as e:
                if on_error == "raise":
                    raise
                if on_error == "return":
                    found[one] = e
        return found

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        if mode != "rb":
            raise OSError(errno.EROFS, "images are read-only", path)
        return ImageFile(RawFile(self.image, self._strip_protocol(path)), BUFFER_SIZE)

    def close(self) -> None:
        """Closes the file object of an image that is not local. Files of the image fail then."""
        if self._opened is not None:
            self._opened.close()

    def _range(self, path: str, start: int | None, end: int | None) -> tuple[int, int]:
        size = self.image.stat(path).st_size
        first = 0 if start is None else start if start >= 0 else max(0, size + start)
        last = size if end is None else end if end >= 0 else max(0, size + end)
        return first, min(last, size)

    def _described(self, path: str, found: os.stat_result) -> dict[str, Any]:
        kind = stat.S_IFMT(found.st_mode)
        return {
            "name": path,
            "size": found.st_size if kind == stat.S_IFREG else 0,
            "type": _TYPES.get(kind, "other"),
            "islink": kind == stat.S_IFLNK,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "mtime": found.st_mtime,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
        }
