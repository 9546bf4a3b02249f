"""A mount source for ratarmount; needs the package ratarmountcore.

>>> import redwarfs.ratarmount                                          # doctest: +SKIP
>>> source = redwarfs.ratarmount.RedwarfsMountSource("photos.dwarfs")   # doctest: +SKIP
>>> source.list("/")                                                    # doctest: +SKIP

ratarmount itself mounts images through the file system for fsspec: `ratarmount redwarfs://::photos.dwarfs
mnt`. A mount source keeps modes, owners and links, and can be combined with those of other archives.
"""

from __future__ import annotations

import builtins
import stat
from typing import IO, Any

from ratarmountcore.mountsource import FileInfo, MountSource

from ._image import Image, open as _open


class RedwarfsMountSource(MountSource):  # type: ignore[misc]
    """An image as a mount source. `source` is an `Image`, or what `redwarfs.open` accepts."""

    def __init__(self, source: Any, **options: Any) -> None:
        # ratarmount passes the options of all backends.
        self.image = source if isinstance(source, Image) else _open(source)

    def is_immutable(self) -> bool:
        """True: images do not change."""
        return True

    def lookup(self, path: str, fileVersion: int = 0) -> FileInfo | None:
        """The attributes of an entry; `None` if there is none."""
        if not self.image.exists(path, follow_symlinks=False):
            return None
        return self._info(path)

    def list(self, path: str) -> dict[str, FileInfo] | None:
        """The entries of a directory; `None` if there is none."""
        if not self._is_directory(path):
            return None
        return {entry.name: self._info(entry.path) for entry in self.image.scandir(path)}

    def list_mode(self, path: str) -> dict[str, int] | None:
        """The types of the entries of a directory."""
        if not self._is_directory(path):
            return None
        return {entry.name: entry._kind for entry in self.image.scandir(path)}

    def open(self, fileInfo: FileInfo, buffering: int = -1) -> IO[bytes]:
        """Opens a regular file that `lookup` or `list` has found."""
        return self.image.open(fileInfo.userdata[-1], "rb", buffering)

    def read(self, fileInfo: FileInfo, size: int, offset: int) -> bytes:
        """A part of a regular file."""
        return self.image.read(fileInfo.userdata[-1], offset, size)

    def statfs(self) -> dict[str, Any]:
        """Numbers about the image as a file system."""
        info = self.image.info()
        return {
            "f_bsize": 512,
            "f_frsize": 512,
            "f_blocks": -(-info.original_size // 512),
            "f_bfree": 0,
            "f_bavail": 0,
            "f_files": info.inodes,
            "f_ffree": 0,
            "f_namemax": 255,
        }

    def list_xattr(self, fileInfo: FileInfo) -> builtins.list[str]:
        """The names of the extended attributes of an entry."""
        return self.image.listxattr(fileInfo.userdata[-1], follow_symlinks=False)

    def get_xattr(self, fileInfo: FileInfo, key: str) -> bytes | None:
        """The value of an extended attribute; `None` if there is none."""
        return self.image._getxattr(fileInfo.userdata[-1], key, False)

    def __exit__(self, *_: object) -> None:
        pass

    def _is_directory(self, path: str) -> bool:
        return self.image.is_dir(path) and not self.image.is_symlink(path)

    def _info(self, path: str) -> FileInfo:
        found = self.image.lstat(path)
        link = self.image.readlink(path) if stat.S_ISLNK(found.st_mode) else ""
        return FileInfo(
            size=0 if stat.S_ISDIR(found.st_mode) else found.st_size,
            mtime=found.st_mtime,
            mode=found.st_mode,
            linkname=link,
            uid=found.st_uid,
            gid=found.st_gid,
            userdata=[path],
        )
