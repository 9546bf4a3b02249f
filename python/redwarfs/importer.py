"""Imports modules and packages from images.

After `install`, an image file, or a directory in one, can be an entry of `sys.path`:

>>> import os, sys, tempfile, redwarfs, redwarfs.importer
>>> work = tempfile.TemporaryDirectory()
>>> path = os.path.join(work.name, "app.dwarfs")
>>> with redwarfs.Writer(path) as writer:
...     writer.add("lib/greeting/__init__.py", "words = 'hello'")
...     writer.add("lib/greeting/data.txt", "from a resource")
>>> redwarfs.importer.install()
>>> sys.path.append(path + "/lib")
>>> import greeting, importlib.resources
>>> greeting.words
'hello'
>>> importlib.resources.files(greeting).joinpath("data.txt").read_text()
'from a resource'
>>> sys.path.pop().endswith("app.dwarfs/lib")
True

Sources (`.py`) are imported, and compiled files (`__pycache__`) used if they are in the image and
match. Extension modules are not: the system loads them only from files of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import posixpath
import stat
import sys
import threading
from collections.abc import Iterator
from importlib.resources.abc import TraversableResources
from types import CodeType, ModuleType
from typing import Any

from ._errors import RedwarfsError
from ._image import Image, open as _open
from ._path import Path

_images: dict[tuple[str, int, int, int], Image] = {}
_lock = threading.Lock()


def install() -> None:
    """Lets `sys.path` have images. Calling it again changes nothing."""
    if path_hook not in sys.path_hooks:
        sys.path_hooks.append(path_hook)
        # Entries that nothing could import from may be images.
        for entry, finder in list(sys.path_importer_cache.items()):
            if finder is None:
                del sys.path_importer_cache[entry]


def uninstall() -> None:
    """Takes `install` back. Modules that are imported stay."""
    if path_hook in sys.path_hooks:
        sys.path_hooks.remove(path_hook)
    for entry, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, ImageFinder):
            del sys.path_importer_cache[entry]


def path_hook(entry: str) -> ImageFinder:
    """The finder for an entry of `sys.path`: an image file, or a directory in one.

    Raises `ImportError` for all other entries.
    """
    file, inside = entry, ""
    while True:
        try:
            found = os.stat(file)
        except (OSError, ValueError):
            above, name = os.path.split(file)
            if not name or above == file:
                break
            file, inside = above, posixpath.join(name, inside) if inside else name
            continue
        if not stat.S_ISREG(found.st_mode):
            break
        try:
            image = _image(file, found)
        except (OSError, RedwarfsError):
            break
        if not image.is_dir(inside):
            break
        return ImageFinder(image, file, inside)
    raise ImportError(f"no image, or no directory in one: {entry}", path=entry)


def _image(file: str, found: os.stat_result) -> Image:
    """One image for all entries of one file."""
    key = (os.path.abspath(file), found.st_ino, found.st_size, found.st_mtime_ns)
    with _lock:
        image = _images.get(key)
        if image is None:
            image = _images[key] = _open(file)
        return image


class ImageFinder(importlib.abc.PathEntryFinder):
    """Finds modules in a directory of an image."""

    def __init__(self, image: Image, file: str, directory: str) -> None:
        self._image = image
        self._file = file
        self._directory = directory

    def find_spec(
        self, fullname: str, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module or package in the directory; `None` if there is none."""
        base = posixpath.join(self._directory, fullname.rpartition(".")[2])
        for tail, package in (("/__init__.py", True), (".py", False)):
            if self._image.is_file(base + tail):
                return self._spec(fullname, base + tail, [base] if package else None)
        if self._image.is_dir(base):
            # A part of a namespace package.
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [posixpath.join(self._file, base)]
            return spec
        return None

    def _spec(
        self, fullname: str, path: str, locations: list[str] | None
    ) -> importlib.machinery.ModuleSpec | None:
        loader = ImageLoader(self._image, self._file, path)
        return importlib.util.spec_from_file_location(
            fullname,
            posixpath.join(self._file, path),
            loader=loader,
            submodule_search_locations=(
                None if locations is None else [posixpath.join(self._file, at) for at in locations]
            ),
        )

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """The modules of the directory for `pkgutil`: name, and whether it is a package."""
        for entry in self._image.scandir(self._directory):
            name, suffix = posixpath.splitext(entry.name)
            if suffix == ".py" and name != "__init__" and entry.is_file():
                yield prefix + name, False
            elif entry.is_dir() and self._image.is_file(entry.path + "/__init__.py"):
                yield prefix + entry.name, True

    def invalidate_caches(self) -> None:
        """Does nothing: an image does not change."""

    def __repr__(self) -> str:
        return f"<redwarfs.importer.ImageFinder {posixpath.join(self._file, self._directory)!r}>"


class ImageLoader(importlib.abc.SourceLoader):
    """Loads a module from a source file in an image."""

    def __init__(self, image: Image, file: str, path: str) -> None:
        self._image = image
        self._file = file
        self._path = path

    def get_filename(self, fullname: str) -> str:
        """The path that the module has as `__file__`."""
        return posixpath.join(self._file, self._path)

    def get_data(self, path: str | bytes) -> bytes:
        """The bytes of a file in the image, by a path as `get_filename` returns it."""
        return self._image.read(self._inside(os.fsdecode(path)))

    def path_stats(self, path: str | bytes) -> dict[str, Any]:
        """Time and size of a source, which a compiled file must match."""
        found = self._image.stat(self._inside(os.fsdecode(path)))
        return {"mtime": found.st_mtime, "size": found.st_size}

    def source_to_code(  # type: ignore[override]
        self, data: Any, path: Any = "<string>"
    ) -> CodeType:
        """Compiles a source."""
        code: CodeType = compile(data, path, "exec", dont_inherit=True)
        return code

    def get_resource_reader(self, fullname: str) -> ImageResources:
        """The resources beside the module, for `importlib.resources`."""
        return ImageResources(Path(self._image, posixpath.dirname(self._path)))

    def _inside(self, path: str) -> str:
        before = self._file.rstrip("/") + "/"
        if not path.startswith(before):
            raise FileNotFoundError(2, "not in the image", path)
        return path[len(before) :]


class ImageResources(TraversableResources):
    """The resources of a package in an image."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def files(self) -> Path:
        """The directory of the package."""
        return self._directory
