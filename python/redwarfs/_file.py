"""Files of an image as the standard library's files."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._image import Image

# Bytes that a buffered file reads at a time, if the file has so many.
BUFFER_SIZE = 64 << 10


class RawFile(io.RawIOBase):
    """A regular file of an image, without a buffer.

    It has the methods of `io.FileIO`. `readinto` reads straight into the buffer of the caller, and
    other threads of the interpreter run meanwhile.
    """

    def __init__(self, image: Image, path: str | bytes | os.PathLike[str]) -> None:
        super().__init__()
        self._image = image
        self._position = 0
        self._inode, self._size = image._file(path)
        self.name = path
        self.mode = "rb"

    def readable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._check_open()
        count = self._image._readinto(self._inode, self._position, buffer)
        self._position += count
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        self._check_open()
        data = self._image._read(self._inode, self._position, size)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        self._check_open()
        left = max(0, self._size - self._position)
        return self.read(left)

    def pread(self, size: int, offset: int) -> bytes:
        """Reads at an offset, and leaves the position as it is. Several threads may do this at once."""
        self._check_open()
        if offset < 0 or size < 0:
            raise ValueError("negative offset or size")
        return self._image._read(self._inode, offset, size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        if whence == os.SEEK_SET:
            position = offset
        elif whence == os.SEEK_CUR:
            position = self._position + offset
        elif whence == os.SEEK_END:
            position = self._size + offset
        else:
            raise ValueError(f"invalid whence: {whence}")
        if not 0 <= position < 1 << 63:
            raise OSError(22, "invalid position")
        self._position = position
        return position

    def tell(self) -> int:
        self._check_open()
        return self._position

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<redwarfs.RawFile name={self.name!r} {state}>"


def open_file(
    image: Image,
    path: str | bytes | os.PathLike[str],
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> Any:
    """The file that `Image.open` returns."""
    if sorted(mode) not in (["r"], ["b", "r"], ["r", "t"]):
        raise ValueError(f"invalid mode: {mode!r} (images are read-only: r, rt or rb)")
    binary = "b" in mode
    if binary and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("binary mode takes no encoding, errors or newline argument")
    if buffering == 0 and not binary:
        raise ValueError("can't have unbuffered text I/O")
    raw = RawFile(image, path)
    if buffering == 0:
        return raw
    if buffering <= 1:
        # A file object allocates its buffer at once, so small files get small ones.
        buffering = min(max(raw._size, 512), BUFFER_SIZE)
    buffered = io.BufferedReader(raw, buffering)
    if binary:
        return buffered
    encoding = io.text_encoding(encoding)
    return io.TextIOWrapper(buffered, encoding, errors, newline)
