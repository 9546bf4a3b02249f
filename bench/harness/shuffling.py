"""All files once in a random order, as training reads them: by one process, and by several of which each reads its share."""

import functools
import multiprocessing
import os
import random
import shutil
import tarfile
import time

from . import measure, samples
from .measure import Failed

#: Files of a tar shard, and of the buffer that shuffles them.
SHARD_FILES = BUFFER = 1_000


class Fsspec(samples.Image):
    """Through the file system for fsspec, chained over the file."""

    needs = ("redwarfs", "fsspec")

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.label = f"fsspec, level {self.level}"

    def open(self):
        import fsspec
        return fsspec.core.url_to_fs(f"redwarfs://::file://{self.path}", readahead=False)[0]

    def read(self, opened, name):
        return opened.cat_file(name)


def tar_shards(paths, number, count):
    """Files of shards in a random order, each shard from front to back, through a buffer that shuffles."""
    order, buffer, chance = list(paths), [], random.Random(number)
    random.Random(1).shuffle(order)
    for path in order[number::count]:
        with tarfile.open(path, "r|") as archive:
            for member in archive:
                buffer.append(archive.extractfile(member).read())
                if len(buffer) > BUFFER:
                    at = chance.randrange(len(buffer))
                    buffer[at], buffer[-1] = buffer[-1], buffer[at]
                    yield buffer.pop()
    chance.shuffle(buffer)
    yield from buffer


def one_by_one(store, files, number, count):
    """Any file after any other."""
    order = samples.names(files)
    random.Random(1).shuffle(order)
    opened = store.open()
    for name in order[number::count]:
        yield store.read(opened, name)


def by_block(path, number, count):
    """The data set that shuffles blocks, and files of some blocks."""
    import redwarfs
    import redwarfs.data
    image = redwarfs.open(path, readahead=False)
    return redwarfs.data.ShuffledFiles(image, seed=1, shard=(number, count), threads=2 if count == 1 else 1)


def once(reader, processes: int, wanted: tuple) -> float:
    """Files a second of all processes together; `wanted` is the number of files, and of their bytes."""
    context = multiprocessing.get_context("fork")
    out = context.SimpleQueue()

    def run(number):
        try:
            files = total = 0
            for data in reader(number, processes):
                files, total = files + 1, total + len(data)
            out.put((files, total, None))
        except Exception as error:  # It is told in the parent.
            out.put((0, 0, f"{type(error).__name__}: {error}"))

    begun = time.monotonic()
    children = [context.Process(target=run, args=(number,)) for number in range(processes)]
    for child in children:
        child.start()
    found = []
    while len(found) < len(children):
        if not out.empty():
            found.append(out.get())
        elif any(child.exitcode for child in children):
            raise Failed("a process that reads was killed")
        else:
            time.sleep(0.001)
    for child in children:
        child.join()
    taken = time.monotonic() - begun
    errors = [error for _, _, error in found if error]
    if errors:
        raise Failed(errors[0])
    got = sum(files for files, _, _ in found), sum(size for _, size, _ in found)
    if got != wanted:
        raise Failed(f"{got[0]} files with {got[1]} bytes in place of {wanted[0]} with {wanted[1]}")
    return wanted[0] / taken


def rates(programs, work, tree, images, wanted, processes, repeat, keep) -> dict:
    """For each way to read, and for each number of processes, files a second in each round."""
    shards = work / "shards"
    shutil.rmtree(shards, ignore_errors=True)
    shards.mkdir()
    for number, names in enumerate(samples.batches(list(samples.names_in(tree)), SHARD_FILES)):
        samples.write_tar(shards / f"{number:04}.tar", tree, names)
    # What is written in the background would take time from the measurement.
    os.sync()
    first = images[0]
    ways = {
        f"tar shards of {SHARD_FILES:,} files, buffer of {BUFFER:,}": functools.partial(tar_shards, sorted(shards.iterdir())),
        "directory, any order": functools.partial(one_by_one, samples.Directory(work, tree), wanted[0]),
    }
    through_fsspec = Fsspec(work, tree, first.level, first.mkdwarfs)
    why = through_fsspec.missing()
    if why:
        programs.skip(through_fsspec.label, why)
    else:
        ways[f"{through_fsspec.label}, any order"] = functools.partial(one_by_one, through_fsspec, wanted[0])
    ways |= {f"`ShuffledFiles`, level {image.level}": functools.partial(by_block, image.path)
             for image in images if image.path.exists()}
    values = {label: {count: [] for count in processes} for label in ways}
    for number in range(repeat):
        for count in processes:
            for label, way in measure.turns(list(ways.items()), number):
                values[label][count].append(once(way, count, wanted))
    if not keep:
        shutil.rmtree(shards)
    return values
