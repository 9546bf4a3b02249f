"""File objects as sources of images."""

from __future__ import annotations

import io
import os
import threading
from typing import Any, Protocol


class SupportsPositionalRead(Protocol):
    """The file objects that an image can be in: binary, with `seek`, `tell` and `read`."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, whence: int = 0, /) -> int: ...


class Memory:
    """An image in memory."""

    def __init__(self, memory: bytes) -> None:
        self.memory = memory


class PositionalFile:
    """Reads a file object by position, one thread at a time.

    The position of the object changes. Objects that must not be moved need a copy of their own.
    """

    def __init__(self, file: SupportsPositionalRead) -> None:
        self.file = file
        self.size = file.seek(0, os.SEEK_END)
        self._lock = threading.Lock()
        self._process = os.getpid()

    def read_at(self, offset: int, size: int) -> bytes:
        if self._process != os.getpid():
            # A thread of the parent may have held the lock at the fork.
            self._process = os.getpid()
            self._lock = threading.Lock()
        with self._lock:
            self.file.seek(offset)
            parts = []
            while size > 0:
                part = self.file.read(size)
                if not part:
                    break
                parts.append(part)
                size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def adapt(source: Any) -> Any:
    """What the native module takes for a path, a URL, a descriptor, memory, or a file object."""
    if isinstance(source, (str, bytes, int)) or hasattr(source, "__fspath__"):
        return source
    if isinstance(source, (bytearray, memoryview)):
        return Memory(bytes(source))
    if isinstance(source, io.BytesIO):
        return Memory(source.getvalue())
    if isinstance(source, (io.FileIO, io.BufferedReader, io.BufferedRandom)):
        raw = getattr(source, "raw", source)
        if isinstance(raw, io.FileIO):
            return raw.fileno()
    if hasattr(source, "read") and hasattr(source, "seek"):
        return PositionalFile(source)
    raise TypeError(f"an image is a path, a URL, a descriptor or a binary file object, not {source!r}")
