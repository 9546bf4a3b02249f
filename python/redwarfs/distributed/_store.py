"""Where shards and images go: a directory, or a store that fsspec knows."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from .. import _errors
from .._image import Image

# Stores in which an object appears when it is complete, also if it replaces one.
_ATOMIC = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "r2"})


def is_url(place: str) -> bool:
    """Whether a place is a URL, and not a path."""
    return "://" in place


_PASSWORD = re.compile(r"://[^/@]*:[^/]*@")


def absolute(place: str | os.PathLike[str]) -> str:
    """A place that means the same in each process: a path is made absolute, and a URL stays."""
    place = os.fspath(place)
    return place if is_url(place) else os.path.abspath(place)


def refuse_password(place: str | os.PathLike[str]) -> None:
    """Raises an error if a place is a URL with a password, which would be in plans, tasks and messages."""
    place = os.fspath(place)
    if is_url(place) and _PASSWORD.search(place):
        raise ValueError(
            "a URL must not have a password: others may see it in plans, tasks and logs. "
            "Put it into the configuration of fsspec (~/.config/fsspec, FSSPEC_*) or the environment"
        )


def check_target(target: str | os.PathLike[str], overwrite: bool) -> str:
    """The place of a new image, or an error if it is taken."""
    target = os.fspath(target)
    if not is_url(target) and os.path.isdir(target):
        raise IsADirectoryError(21, "Is a directory", target)
    if not overwrite and exists(target):
        raise FileExistsError(17, "File exists", target)
    return target


def joined(directory: str, name: str) -> str:
    """The place of a name in a directory."""
    return f"{directory.rstrip('/')}/{name}" if is_url(directory) else os.path.join(directory, name)


def _file_system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as e:
        raise ImportError("URLs need fsspec: pip install 'redwarfs[fsspec]'") from e
    file_system, path = url_to_fs(url)
    return file_system, path


@contextmanager
def opened(place: str, **options: Any) -> Iterator[Any]:
    """What `redwarfs.open` takes for an image at a place. Options are those of fsspec."""
    if not is_url(place):
        yield place
        return
    file_system, path = _file_system(place)
    # Listings that other machines have made outdated.
    file_system.invalidate_cache()
    with file_system.open(path, "rb", **options) as file:
        yield file


def size_of_image(place: str) -> int | None:
    """The size of the image at a place, or None if there is none, or not all of it."""
    try:
        # Some 14 short reads at the start and in front of the end: 3 requests, without anything ahead.
        with opened(place, block_size=1 << 20, cache_type="blockcache") as source:
            return Image(source, cache_size=1 << 20, readahead=False).info().image_size
    except (FileNotFoundError, _errors.NotAnImageError, _errors.CorruptImageError):
        return None


def exists(place: str) -> bool:
    """Whether there is something at a place."""
    if not is_url(place):
        return os.path.lexists(place)
    file_system, path = _file_system(place)
    file_system.invalidate_cache()
    return bool(file_system.exists(path))


def publish(
    place: str, make: Callable[[BinaryIO], None], *, mode: int = 0o666, like: str | None = None
) -> None:
    """Lets `make` write a file, and gives it its place when it is complete.

    A process that is killed leaves an unfinished file beside a path. This removes those for the same place, or for all places whose
    names begin with `like`, unless a process still writes to them. A file for a store is made in the directory for temporary
    files.
    """
    if not is_url(place):
        directory, name = os.path.split(os.path.abspath(place))
        _remove_unfinished(directory, re.escape(name) if like is None else re.escape(like) + ".*")
        file, temporary = _unfinished(directory, name, mode)
        try:
            with file:
                make(file)
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, place)
        except BaseException:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            raise
        return
    file_system, path = _file_system(place)
    protocols = file_system.protocol
    protocols = {protocols} if isinstance(protocols, str) else set(protocols)
    with tempfile.TemporaryDirectory(prefix="redwarfs-") as directory:
        image = os.path.join(directory, "image")
        with open(image, "xb") as file:
            make(file)
        if protocols & _ATOMIC:
            file_system.put_file(image, path)
            return
        temporary = f"{path}.{uuid.uuid4().hex}"
        file_system.makedirs(file_system._parent(path), exist_ok=True)
        try:
            file_system.put_file(image, temporary)
            file_system.mv(temporary, path)
        except BaseException:
            if file_system.exists(temporary):
                file_system.rm_file(temporary)
            raise


def _unfinished(directory: str, name: str, mode: int) -> tuple[BinaryIO, str]:
    """A new file without its final name, and its path. It has a lock as long as a process has it open."""
    while True:
        path = os.path.join(directory, f".{name}.{uuid.uuid4().hex}")
        file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another process removes it: there was no lock yet.
            file.close()
            continue
        except OSError:
            # There are no locks, so nobody removes it.
            return file, path
        if os.path.lexists(path):
            return file, path
        file.close()


def _remove_unfinished(directory: str, names: str) -> None:
    """Removes the unfinished files of processes that are gone, for names with a pattern."""
    pattern = re.compile(rf"\.{names}\.[0-9a-f]{{32}}", re.DOTALL)
    try:
        listing = os.listdir(directory)
    except PermissionError:
        # New files may still be made there.
        return
    for name in listing:
        if not pattern.fullmatch(name):
            continue
        path = os.path.join(directory, name)
        try:
            # On network file systems, such a lock needs a file that is open for writing.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(path, flags), "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        except OSError:
            # A process writes to it, another one has removed it, or it belongs to another user.
            continue
