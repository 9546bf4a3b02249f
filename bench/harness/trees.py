"""Source trees: a generated one, and the comparison of what a mount shows with its source."""

import hashlib
import itertools
import os
import random
import stat
import struct
from pathlib import Path

from . import measure

EPOCH = 1_600_000_000
FILES_PER_DIRECTORY = 100
MIB = 1 << 20


class Text:
    """Text of words with the frequencies of a natural language, never the same twice.

    Nothing is repeated on purpose: a writer that finds duplicate segments must not gain from how
    the tree was made.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        weights = [1 / (n + 2) for n in range(len(letters))]
        self.words = [
            "".join(self.random.choices(letters, weights, k=self.random.randint(2, 10)))
            for _ in range(20_000)
        ]
        self.cumulative = list(itertools.accumulate(1 / (n + 5) for n in range(len(self.words))))
        self.rest = b""

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        parts = [self.rest]
        have = len(self.rest)
        while have < size:
            words = self.random.choices(self.words, cum_weights=self.cumulative, k=40_000)
            for at in range(11, len(words), 12):
                words[at] += "\n"
            part = " ".join(words).encode()
            parts.append(part)
            have += len(part)
        data = b"".join(parts)
        self.rest = data[size:]
        return data[:size]


def _records(rng: random.Random, size: int) -> bytes:
    """Rows of binary numbers: rising, slowly varying, and noise."""
    count = size // 16 + 1
    start = rng.randrange(1 << 20)
    rising = itertools.accumulate(rng.choices(range(1, 50), k=count), initial=start)
    noise = rng.choices(range(1 << 16), k=count)
    pack = struct.Struct("<IIII").pack
    rows = (
        pack(a & 0xFFFFFFFF, n // 7, value & 0x3FF, value)
        for n, (a, value) in enumerate(zip(rising, noise))
    )
    return b"".join(rows)[:size]


def _large_file(path: Path, size: int, text: Text) -> None:
    """60 % text, 30 % binary records, 10 % random bytes, changing every 256 KiB."""
    rng = random.Random(text.random.random())
    step = 256 << 10
    with open(path, "wb") as out:
        for index, at in enumerate(range(0, size, step)):
            length = min(step, size - at)
            kind = index * 7 % 10
            if kind < 6:
                out.write(text.take(length))
            elif kind < 9:
                out.write(_records(rng, length))
            else:
                out.write(rng.randbytes(length))


def generate(root: Path, files: int, large: int, seed: int = 1) -> None:
    """Makes a tree of `files` small files (mean about 4 KiB) and one of `large` bytes.

    Some symbolic and hard links, empty files and modes are in it, so that metadata is compared,
    too. The same arguments give the same tree.
    """
    text = Text(seed)
    rng = random.Random(seed)
    root.mkdir(parents=True)
    previous = None
    for number in range(files):
        first, second = divmod(number // FILES_PER_DIRECTORY, 20)
        directory = root / f"group-{first:03}" / f"part-{second:02}"
        if number % FILES_PER_DIRECTORY == 0:
            directory.mkdir(parents=True)
        path = directory / f"{rng.choice(text.words)}-{number:06}.txt"
        size = 0 if number % 200 == 7 else min(int(rng.lognormvariate(7.7, 1.1)), 64 << 10)
        path.write_bytes(text.take(size))
        path.chmod(rng.choice((0o644, 0o644, 0o644, 0o600, 0o755)))
        if number % 50 == 3:
            (directory / f"link-{number:06}").symlink_to(path.name)
        if previous and number % 100 == 60:
            (directory / f"hard-{number:06}").hardlink_to(previous)
        previous = path
    (root / "empty").mkdir()
    if large:
        _large_file(root / "large.bin", large, text)
    for directory, names, others in os.walk(root, topdown=False):
        for name in names + others + [""]:
            time = EPOCH + rng.randrange(50_000_000)
            os.utime(os.path.join(directory, name), (time, time), follow_symlinks=False)


def _content(path: bytes) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(MIB):
            digest.update(data)
    return digest.hexdigest()


def describe(root) -> dict:
    """Every entry of a tree by its path: all that each of the formats can keep.

    Times to the second, contents as digest. Left out: sizes and link counts of directories, which
    are each file system's own business, and extended attributes.
    """
    root = os.fsencode(root)
    entries = {}
    pending = [b""]
    while pending:
        relative = pending.pop()
        path = os.path.join(root, relative) if relative else root
        info = os.lstat(path)
        row = [
            stat.filemode(info.st_mode),
            info.st_uid,
            info.st_gid,
            int(info.st_mtime_ns // 10**9),
        ]
        if stat.S_ISDIR(info.st_mode):
            names = sorted(os.listdir(path), reverse=True)
            pending.extend(os.path.join(relative, name) for name in names)
        else:
            row += [info.st_size, info.st_nlink]
            if stat.S_ISREG(info.st_mode):
                row.append(_content(path))
            elif stat.S_ISLNK(info.st_mode):
                row.append(os.readlink(path).hex())
            else:
                row.append(info.st_rdev)
        entries[relative] = tuple(row)
    return entries


def names(root) -> dict:
    """Every path below a root, with nothing but that."""
    root = os.fsencode(root)
    return {
        os.path.relpath(os.path.join(folder, name), root): ()
        for folder, folders, files in os.walk(root) for name in folders + files
    }


def digest(entries: dict) -> str:
    """One value for a whole tree."""
    whole = hashlib.sha256()
    for path in sorted(entries):
        whole.update(repr((path, entries[path])).encode())
    return whole.hexdigest()


def difference(wanted: dict, found: dict) -> str:
    """Some of what differs, for an error message."""
    lines = []
    for path in sorted(wanted.keys() | found.keys()):
        if wanted.get(path) != found.get(path):
            lines.append(f"{os.fsdecode(path)!r}: {wanted.get(path)} != {found.get(path)}")
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")


def summary(entries: dict) -> str:
    """Size and number of entries as text."""
    sizes = [row[4] for row in entries.values() if row[0].startswith("-")]
    largest = max(sizes, default=0)
    return (
        f"{len(entries):,} entries, {len(sizes):,} files of {sum(sizes) / MIB:,.1f} MiB, "
        f"the largest {largest / MIB:,.1f} MiB"
    )


def survey(root) -> dict:
    """Counts a tree, and reads it once: it is in the page cache afterwards if it fits."""
    found = {"entries": 0, "files": 0, "bytes": 0}
    for folder, names, others in os.walk(root):
        found["entries"] += len(names) + len(others)
        for name in others:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                found["files"] += 1
                found["bytes"] += os.path.getsize(path)
                measure.warm(path)
    return found


def random_files(entries: dict, count: int, seed: int = 2) -> list:
    """Paths of `count` files in random order; files may come twice if there are fewer."""
    files = sorted(path for path, row in entries.items() if row[0].startswith("-"))
    sizes = {path: entries[path][4] for path in files}
    # One large file among thousands of small ones would be all that such a row measures.
    small = [path for path in files if sizes[path] <= MIB] or files
    rng = random.Random(seed)
    return rng.sample(small, count) if len(small) >= count else rng.choices(small, k=count)


def largest_file(entries: dict):
    """Path and size of the largest file; none in a tree without files."""
    files = [(row[4], path) for path, row in entries.items() if row[0].startswith("-")]
    if not files:
        return None
    size, path = max(files)
    return path, size
