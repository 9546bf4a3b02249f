"""Read and write DwarFS images: compressed, deduplicated, read-only file systems in one file.

>>> import os, tempfile, redwarfs
>>> work = tempfile.TemporaryDirectory()
>>> path = os.path.join(work.name, "notes.dwarfs")
>>> with redwarfs.Writer(path, level=4) as writer:
...     writer.add("doc/start.txt", b"Begin at the beginning.")
>>> image = redwarfs.open(path)
>>> image["doc/start.txt"]
b'Begin at the beginning.'
>>> with image.open("doc/start.txt") as file:
...     file.read(5)
'Begin'

`open` opens an image, `build` packs a directory, `Writer` packs entries that a program adds one by one,
and `merge` joins images. `redwarfs.fsspec` is a file system for fsspec, `redwarfs.importer` imports modules
from images, and `redwarfs.distributed` builds an image on many machines.

Images are untrusted input: a damaged or hostile image raises an exception below `OSError`, and
extraction never leaves its target directory. The checksum of every block is compared before a byte of
it is returned.
"""

import os as _os

from . import _redwarfs
from ._build import BuildResult, Writer, build, option_names
from ._errors import (
    BuildError,
    CorruptImageError,
    ExtractError,
    LimitError,
    NotAnImageError,
    OptionError,
    RedwarfsError,
    UnsupportedError,
    UnverifiedError,
)
from ._file import RawFile
from ._image import DirEntry, ExtractResult, Finding, Image, ImageInfo, open
from ._merge import MergeResult, merge
from ._path import Path

__version__: str = _redwarfs.VERSION

__all__ = [
    "BuildError",
    "BuildResult",
    "CorruptImageError",
    "DirEntry",
    "ExtractError",
    "ExtractResult",
    "Finding",
    "Image",
    "ImageInfo",
    "LimitError",
    "MergeResult",
    "NotAnImageError",
    "OptionError",
    "Path",
    "RawFile",
    "RedwarfsError",
    "UnsupportedError",
    "UnverifiedError",
    "Writer",
    "build",
    "merge",
    "open",
    "option_names",
]

# A child has none of the threads of its parent, so it opens its images anew.
_os.register_at_fork(after_in_child=_redwarfs._forked)
