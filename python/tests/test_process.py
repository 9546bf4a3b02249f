"""Forks, other processes, threads, pickles, and files that change."""

import concurrent.futures
import gc
import io
import multiprocessing
import os
import pickle
import random
import sys
import threading
import time
import warnings

import pytest

import redwarfs
from conftest import NUMBERS, in_child

PATHS = ["a/numbers", "a/b/file", "link", "a/text.txt"]


def start_threads(image):
    """Reads in the way that starts the threads of the block cache."""
    with image.open("a/numbers", "rb", 0) as file:
        while file.read(5000):
            pass
    image.read_many(PATHS * 10, 4)


def test_children_read_images_of_their_parent(image_path):
    image = redwarfs.open(image_path)
    start_threads(image)
    with image.open("a/numbers", "rb") as file:
        file.read(100)

        def child():
            assert image["a/numbers"] == NUMBERS
            assert image.read_many(PATHS, 3)[1] == b"0123456789"
            # The position is that at the fork, and the parent's does not move.
            assert file.read() == NUMBERS[100:]
            in_child(lambda: start_threads(image))

        in_child(child)
        assert file.read(100) == NUMBERS[100:200]
    assert image["a/numbers"] == NUMBERS


def test_children_drop_images_of_their_parent(image_path):
    image = redwarfs.open(image_path)
    start_threads(image)
    kept = [image]
    del image

    def child():
        kept.clear()
        gc.collect()

    in_child(child)
    in_child(lambda: (start_threads(kept[0]), kept.clear(), gc.collect()))


def test_forks_while_threads_read(image_path):
    image = redwarfs.open(image_path, cache_size=0)
    stop = threading.Event()

    def read():
        rng = random.Random(threading.get_ident())
        while not stop.is_set():
            offset = rng.randrange(len(NUMBERS))
            assert image.read("a/numbers", offset, 9) == NUMBERS[offset : offset + 9]

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            in_child(lambda: image.read_many(PATHS, 2))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_an_image_in_a_file_object_survives_a_fork(image_path):
    class Wrapped:
        def __init__(self, data):
            self.memory = io.BytesIO(data)
            self.seek = self.memory.seek
            self.read = self.memory.read

    image = redwarfs.open(Wrapped(image_path.read_bytes()))
    start_threads(image)
    in_child(lambda: start_threads(image))


def test_opening_starts_no_thread(image_path):
    def threads():
        return set(os.listdir("/proc/self/task"))

    before = threads()
    image = redwarfs.open(image_path)
    image.stat("a/numbers"), list(image), image["a/b/file"]
    # Threads of other tests may end meanwhile.
    assert threads() <= before


def length(image):
    return len(image["a/numbers"])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes(image_path, method):
    image = redwarfs.open(image_path)
    start_threads(image)
    context = multiprocessing.get_context(method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            assert list(pool.map(length, [image] * 4)) == [len(NUMBERS)] * 4


def test_pickles_carry_the_source_and_the_options(image_path, tmp_path, monkeypatch):
    monkeypatch.chdir(image_path.parent)
    image = redwarfs.open(image_path.name, cache_size=1 << 20, readahead=False)
    copy = pickle.dumps(image)
    assert len(copy) < 500
    monkeypatch.chdir(tmp_path)
    copy = pickle.loads(copy)
    assert copy["a/numbers"] == NUMBERS and copy._options["cache_size"] == 1 << 20
    # Opened when it is used: the file may come later.
    moved = tmp_path / "moved"
    os.rename(image_path, moved)
    try:
        late = pickle.loads(pickle.dumps(image))
        with pytest.raises(FileNotFoundError):
            late.listdir()
    finally:
        os.rename(moved, image_path)
    assert late["a/b/file"] == b"0123456789"
    memory = redwarfs.open(io.BytesIO(image_path.read_bytes()))
    assert pickle.loads(pickle.dumps(memory))["a/b/file"] == b"0123456789"
    with open(image_path, "rb") as file:
        for source in (file.fileno(), file):
            with pytest.raises(TypeError):
                pickle.dumps(redwarfs.open(source))


def test_an_image_that_is_replaced_stays_the_old_one(image_path, tmp_path):
    path = tmp_path / "image"
    path.write_bytes(image_path.read_bytes())
    image = redwarfs.open(path)
    new = tmp_path / "new"
    with redwarfs.Writer(new) as writer:
        writer.add("a/numbers", b"other")
    os.rename(new, path)
    assert image["a/numbers"] == NUMBERS
    assert redwarfs.open(path)["a/numbers"] == b"other"
    in_child(lambda: start_threads(image))
    os.unlink(path)
    assert image["a/b/file"] == b"0123456789"


def test_an_image_that_is_cut_off_fails_and_never_lies(image_path, tmp_path):
    path = tmp_path / "image"
    path.write_bytes(image_path.read_bytes())
    # Threads that read ahead would see the file in the moment in which it is written anew.
    image = redwarfs.open(path, readahead=False)
    os.truncate(path, 200)
    with pytest.raises(OSError):
        image["a/numbers"]
    path.write_bytes(bytes(len(image_path.read_bytes())))
    with pytest.raises(redwarfs.CorruptImageError):
        image["a/numbers"]
    path.write_bytes(image_path.read_bytes())
    assert image["a/numbers"] == NUMBERS


def test_threads_share_an_image_and_a_file(image_path):
    image = redwarfs.open(image_path)
    file = image.open("a/numbers", "rb", 0)

    def read(seed):
        rng = random.Random(seed)
        for _ in range(200):
            offset = rng.randrange(len(NUMBERS))
            size = rng.randrange(1, 3000)
            assert file.pread(size, offset) == NUMBERS[offset : offset + size]
            assert image["a/b/file"] == b"0123456789"
            assert image.stat("a/b/file").st_size == 10
        return len(list(image.walk()))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(16))) == {4}


def test_other_threads_run_during_a_read(image_path):
    """A file object of Python that waits for another thread would hang otherwise."""
    data = image_path.read_bytes()
    gate = threading.Event()

    class Gated:
        def __init__(self):
            self.memory = io.BytesIO(data)
            self.wait = False

        def seek(self, *where):
            return self.memory.seek(*where)

        def read(self, size):
            if self.wait:
                assert gate.wait(30)
            return self.memory.read(size)

    source = Gated()
    image = redwarfs.open(source)
    source.wait = True
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(image.read, "a/numbers"), pool.submit(image.read_many, PATHS, 4)]
        time.sleep(0.05)
        assert not any(future.done() for future in waiting)
        gate.set()
        assert waiting[0].result() == NUMBERS == waiting[1].result()[0]


def test_no_memory_and_no_descriptors_leak(image_path):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    image = redwarfs.open(image_path)
    image.read_many(PATHS)
    gc.collect()
    before = descriptors(), sys.getrefcount(image)
    for _ in range(50):
        other = redwarfs.open(image_path)
        other["a/b/file"]
        with image.open("a/numbers") as file:
            file.readline()
        with pytest.raises(OSError):
            image.read("missing")
    del other, file
    gc.collect()
    assert (descriptors(), sys.getrefcount(image)) == before
