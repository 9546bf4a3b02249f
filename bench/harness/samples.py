"""Containers of many small files, read from Python: how each is made, opened and read."""

import importlib
import itertools
import os
import random
import subprocess
import tarfile
import zipfile
from pathlib import Path

SMALLEST, LARGEST = 5_000, 150_000
PER_DIRECTORY = 1_000
#: Each process reads so many-th files first: some of each block of 1 MiB.
STEP = 8
#: Files of one call of `read_many`, as of one batch.
BATCH = 256


def name_of(number: int) -> str:
    return f"{number // PER_DIRECTORY:03}/{number:06}.jpg"


def names(count: int) -> list:
    return [name_of(number) for number in range(count)]


def _size(chance) -> int:
    """Small ones are more likely: all magnitudes are equally so."""
    return int(SMALLEST * (LARGEST / SMALLEST) ** chance.random())


def photographs(count: int):
    """What looks like photographs: markers and tables that all have, then data that nothing compresses."""
    chance = random.Random(1)
    head = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x48\x00\x48\x00\x00" + random.Random(2).randbytes(600)
    for number in range(count):
        yield name_of(number), head + chance.randbytes(_size(chance) - len(head) - 2) + b"\xff\xd9"


def texts(count: int):
    """Words at random, of which some are frequent."""
    chance = random.Random(1)
    words = [bytes(chance.choices(b"etaoinshrdlucmfwypvbgk", k=chance.randint(2, 11))) for _ in range(20_000)]
    weights = list(itertools.accumulate(1 / (number + 10) for number in range(len(words))))
    for number in range(count):
        size = _size(chance)
        text = b" ".join(chance.choices(words, cum_weights=weights, k=size // 6))
        yield name_of(number), text[:size]


def make_tree(kind, count: int, path: Path) -> None:
    for name, data in kind(count):
        file = path / name
        if not file.parent.exists():
            file.parent.mkdir(parents=True)
        file.write_bytes(data)


class Store:
    """A container. Objects go to each process by a fork."""

    #: Packages and programs that it needs.
    needs, programs = (), ()
    suffix = ""
    #: Whether the rows of a label read the files in batches.
    batched = False

    def __init__(self, work: Path, tree: Path):
        self.work, self.tree = work, tree
        self.path = work / ("samples" + self.suffix)

    def missing(self):
        """Why it cannot be had here; none if it can."""
        for package in self.needs:
            try:
                importlib.import_module(package)
            except ImportError as error:
                return str(error)
        return None

    def make(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Before the first measurement, in the parent of all processes."""

    def stop(self) -> None:
        """After the last one."""

    def open(self):
        """What `read` gets; called once in each process."""
        return None

    def read(self, opened, name):
        raise NotImplementedError


class Directory(Store):
    label = "directory"

    def __init__(self, work, tree):
        super().__init__(work, tree)
        self.path = tree

    def read(self, opened, name):
        with open(self.path / name, "rb", buffering=0) as file:
            return file.read()


class Image(Store):
    needs = ("redwarfs",)
    #: For `mkdwarfs`.
    more_options = ()

    def __init__(self, work, tree, level, mkdwarfs, cache_size=None):
        self.level, self.label, self.suffix = level, f"image, level {level}", f"-{level}.dwarfs"
        self.mkdwarfs, self.cache = mkdwarfs, {} if cache_size is None else {"cache_size": cache_size}
        super().__init__(work, tree)

    def make(self):
        subprocess.run([self.mkdwarfs, "-i", self.tree, "-o", self.path, "-l", self.level, *self.more_options,
                        "--no-progress", "--log-level=error"], check=True)

    def open(self):
        import redwarfs
        return redwarfs.open(self.path, readahead=False, **self.cache)

    def read(self, opened, name):
        return opened[name]


class Unverified(Image):
    """Without checksums, as all others but zip read."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.label += ", `verify=False`"

    def open(self):
        import redwarfs
        return redwarfs.open(self.path, readahead=False, verify=False, **self.cache)


class SmallBlocks(Image):
    """Blocks of the size that SquashFS has: a read of one file decodes less."""

    more_options = ("-S", "17")

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.label += ", blocks of 128 KiB"
        self.path = self.path.with_name("small-" + self.path.name)


class ManyAtOnce(Image):
    """`read_many`: a batch of random names in one call."""

    batched = True

    def __init__(self, threads, *arguments, **more):
        super().__init__(*arguments, **more)
        self.threads = threads
        self.label = f"`read_many`, level {self.level}, {threads} thread" + "s" * (threads > 1)

    def read_batch(self, opened, names):
        return opened.read_many(names, threads=self.threads)


class Mounted(Image):
    needs = ()

    def __init__(self, dwarfs, *arguments, **more):
        super().__init__(*arguments, **more)
        self.dwarfs, self.label = dwarfs, f"mount, level {self.level}"
        self.point = self.work / "mnt"

    def start(self):
        self.point.mkdir(exist_ok=True)
        subprocess.run([self.dwarfs, self.path, self.point], check=True)

    def stop(self):
        subprocess.run(["umount", self.point], check=True)

    def open(self):
        return None

    def read(self, opened, name):
        with open(self.point / name, "rb", buffering=0) as file:
            return file.read()


class Zip(Store):
    label, suffix = "zipfile", ".zip"

    def make(self):
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name in names_in(self.tree):
                archive.write(self.tree / name, name)

    def open(self):
        return zipfile.ZipFile(self.path)

    def read(self, opened, name):
        return opened.read(name)


def write_tar(path: Path, tree: Path, some) -> None:
    with tarfile.open(path, "w") as archive:
        for name in some:
            archive.add(tree / name, name)


class Tar(Store):
    """A plain tar file with an index of its own in memory: the least that such a reader does."""

    label, suffix = "tar, offsets in memory", ".tar"

    def make(self):
        write_tar(self.path, self.tree, names_in(self.tree))

    def start(self):
        with tarfile.open(self.path) as archive:
            self.places = {member.name: (member.offset_data, member.size) for member in archive}

    def stop(self):
        del self.places

    def open(self):
        return os.open(self.path, os.O_RDONLY)

    def read(self, opened, name):
        at, size = self.places[name]
        return os.pread(opened, size, at)


class Ratar(Tar):
    label, needs = "ratarmountcore, tar", ("ratarmountcore",)

    def start(self):
        self.open()

    def stop(self):
        index = self.path.with_name(self.path.name + ".index.sqlite")
        index.unlink(missing_ok=True)

    def open(self):
        from ratarmountcore.mountsource.factory import open_mount_source
        return open_mount_source(str(self.path), writeIndex=True, printDebug=0)

    def read(self, opened, name):
        with opened.open(opened.lookup("/" + name)) as file:
            return file.read()


class SquashFs(Store):
    label, suffix, needs, programs = "PySquashfsImage, zstd", ".sqfs", ("PySquashfsImage", "zstandard"), ("mksquashfs",)

    def make(self):
        subprocess.run(["mksquashfs", self.tree, self.path, "-comp", "zstd", "-Xcompression-level", "5", "-quiet",
                        "-no-progress"], check=True, stdout=subprocess.DEVNULL)

    def open(self):
        from PySquashfsImage import SquashFsImage
        return SquashFsImage.from_file(str(self.path))

    def read(self, opened, name):
        return opened.select("/" + name).read_bytes()


class Hdf5(Store):
    label, suffix, needs = "h5py", ".h5", ("h5py", "numpy")

    def make(self):
        import h5py
        import numpy
        with h5py.File(self.path, "w") as file:
            for name in names_in(self.tree):
                file.create_dataset(name, data=numpy.fromfile(self.tree / name, dtype=numpy.uint8))

    def open(self):
        import h5py
        return h5py.File(self.path, "r")

    def read(self, opened, name):
        return opened[name][()].tobytes()


class Lmdb(Store):
    label, suffix, needs = "LMDB", ".lmdb", ("lmdb",)

    def make(self):
        import lmdb
        with lmdb.open(str(self.path), subdir=False, map_size=1 << 40) as store:
            for some in batches(list(names_in(self.tree)), 1_000):
                with store.begin(write=True) as change:
                    for name in some:
                        change.put(name.encode(), (self.tree / name).read_bytes())
        self.path.with_name(self.path.name + "-lock").unlink(missing_ok=True)

    def open(self):
        import lmdb
        # The transaction ends with the process.
        return lmdb.open(str(self.path), subdir=False, readonly=True, lock=False, readahead=False).begin(buffers=False)

    def read(self, opened, name):
        return opened.get(name.encode())


def names_in(tree: Path):
    for directory in sorted(tree.iterdir()):
        for path in sorted(directory.iterdir()):
            yield str(path.relative_to(tree))


def batches(values: list, size: int):
    return (values[at:at + size] for at in range(0, len(values), size))
