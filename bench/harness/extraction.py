"""Extraction of a whole tree: the programs, and one run of one of them."""

import shutil

from . import measure, trees
from .measure import Failed

#: Name, settings, and the pipe that unpacks `{image}` into the existing, empty directory `{dest}`.
FAMILIES = {
    "fast": (
        ("RedwarFS", "ours-l1", ("ours/dwarfsextract", "-i", "{image}", "-o", "{dest}")),
        ("reference", "ours-l1", ("reference/dwarfsextract", "-i", "{image}", "-o", "{dest}")),
        ("unsquashfs", "squashfs-lz4", ("unsquashfs", "-q", "-n", "-f", "-d", "{dest}", "{image}")),
        ("tar", "tar-zstd1", ("zstd", "-dcq", "{image}"), ("tar", "-C", "{dest}", "-xpf", "-")),
    ),
    "small": (
        ("RedwarFS", "ours-l7", ("ours/dwarfsextract", "-i", "{image}", "-o", "{dest}")),
        ("reference", "ours-l7", ("reference/dwarfsextract", "-i", "{image}", "-o", "{dest}")),
        ("unsquashfs", "squashfs-zstd22",
         ("unsquashfs", "-q", "-n", "-f", "-d", "{dest}", "{image}")),
        ("tar", "tar-zstd19", ("zstd", "-dcq", "{image}"), ("tar", "-C", "{dest}", "-xpf", "-")),
    ),
}


def commands(programs, pipe, image, dest):
    """The command lines of a pipe; none if a program is missing."""
    lines = []
    for program, *words in pipe:
        found = programs.path(program)
        if not found:
            return None
        lines.append([found, *(w.format(image=image, dest=dest) for w in words)])
    return lines


def clear(dest) -> None:
    """Removes what was unpacked, also if a program has put a file in the place of the directory."""
    shutil.rmtree(dest, ignore_errors=True)
    dest.unlink(missing_ok=True)


def extract(lines, dest, entries=None) -> measure.Usage:
    """Runs a pipe into a new directory; with the `entries` of a tree the result is compared."""
    clear(dest)
    dest.mkdir(parents=True)
    try:
        usage = measure.run(*lines, want_peak=True)
        if entries is not None:
            found = trees.describe(dest)
            wanted = dict(entries)
            # The directory was there before; whether its attributes are set is a matter of taste.
            found.pop(b""), wanted.pop(b"")
            if found != wanted:
                raise Failed(f"extracted another tree: {trees.difference(wanted, found)}")
        return usage
    finally:
        clear(dest)
