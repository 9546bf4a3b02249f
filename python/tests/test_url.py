"""Images on servers: what is read, what goes wrong, forks, pickles and signals."""

import concurrent.futures
import errno
import gc
import io
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

import redwarfs
import redwarfs.data
from conftest import NUMBERS, in_child
from web_server import STALL, Cut, WebServer

NOISE = random.Random(1).randbytes(3 << 20)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """An image whose blocks are not fetched when it is opened."""
    target = io.BytesIO()
    with redwarfs.Writer(target, level=4, block_size_bits=18) as writer:
        writer.add("a/b/file", b"0123456789", mtime=1_600_000_000)
        writer.add("a/numbers", NUMBERS)
        writer.add("noise", NOISE)
        writer.symlink("link", "a/b/file")
    return target.getvalue()


@pytest.fixture
def server(data):
    server = WebServer()
    server.objects["/tree.dwarfs"] = data
    yield server
    server.stop()


@pytest.fixture
def url(server):
    return server.url("/tree.dwarfs")


# What is read.


def test_an_image_on_a_server_is_as_one_in_a_file(server, url, tmp_path):
    image = redwarfs.open(url)
    assert len(server.take_requests()) <= 2
    assert list(image) == ["noise", "a/numbers", "a/b/file"]
    assert image.stat("link").st_size == 10 and image.listdir("a") == ["b", "numbers"]
    assert image.readlink("link") == "a/b/file" and "a/numbers" in image
    # The metadata is there.
    assert not server.take_requests()
    assert image["a/numbers"] == NUMBERS
    assert image.read("noise", 1 << 20, 100) == NOISE[1 << 20 :][:100]
    assert all(request.range for request in server.take_requests())
    assert image.read_many(["noise", "link"], 3) == [NOISE, b"0123456789"]
    with image.open("a/numbers", "rb") as file:
        file.seek(1000)
        assert file.read(10) == NUMBERS[1000:1010]
        assert file.read() == NUMBERS[1010:]
    with image.open("noise", "rb", 0) as file:
        buffer = bytearray(len(NOISE) + 1)
        assert file.readinto(buffer) == len(NOISE) and buffer[:-1] == NOISE
        assert file.readinto(buffer) == 0
    image.extract(tmp_path / "out")
    assert (tmp_path / "out/noise").read_bytes() == NOISE
    assert not image.verify(deep=True)
    assert image.info().image_size == len(server.objects["/tree.dwarfs"])
    with pytest.raises(redwarfs.UnverifiedError):
        redwarfs.open(url, verify="digests")


def test_blocks_are_read_in_parts_and_from_the_cache(server, url):
    image = redwarfs.open(url, readahead=False)
    with image.open("noise", "rb") as file:
        assert b"".join(iter(lambda: file.read(10_000), b"")) == NOISE
    server.take_requests()
    assert image["noise"] == NOISE and not server.take_requests()
    uncached = redwarfs.open(url, cache_size=0)
    for _ in range(2):
        assert uncached["noise"] == NOISE


def test_urls_take_the_place_of_paths(server, url, data, tmp_path):
    path = redwarfs.Path(url)
    assert (path / "a/b/file").read_bytes() == b"0123456789"
    assert path.name == "tree.dwarfs" and str(path / "a") == f"{url}/a"
    files = redwarfs.data.Files(redwarfs.open(url))
    assert sorted(map(len, files)) == [10, len(NUMBERS), len(NOISE)]
    target = tmp_path / "merged"
    redwarfs.merge({"one": url, "two": redwarfs.open(url)}, target)
    assert redwarfs.open(target)["two/noise"] == NOISE
    assert redwarfs.open(url.encode())["a/b/file"] == b"0123456789"


def test_urls_of_files_are_files(data, tmp_path, monkeypatch):
    path = tmp_path / "an image"
    path.write_bytes(data)
    monkeypatch.chdir(tmp_path)
    for url in (path.as_uri(), f"file://localhost{tmp_path}/an%20image"):
        image = redwarfs.open(url)
        assert image["a/b/file"] == b"0123456789" and image.name == str(path)
        assert pickle.loads(pickle.dumps(image))["a/b/file"] == b"0123456789"
        in_child(lambda: image["a/numbers"])
    for url in ("file://elsewhere/image", "file:///%00"):
        with pytest.raises(OSError) as e:
            redwarfs.open(url, lazy=True)
        assert e.value.errno == errno.EINVAL and url in str(e.value)


def test_a_server_without_ranges_sends_small_images_as_a_whole(server, url):
    server.sends_ranges = False
    image = redwarfs.open(url)
    assert image["noise"] == NOISE and image["a/numbers"] == NUMBERS
    assert len(server.take_requests()) <= 2
    server.objects["/large"] = bytes((64 << 20) + 1)
    with pytest.raises(redwarfs.UnsupportedError, match="does not support range requests") as e:
        redwarfs.open(server.url("/large"))
    assert e.value.errno == errno.ENOTSUP and e.value.filename == server.url("/large")


# What goes wrong.


def test_answers_of_the_server_are_the_usual_exceptions(server):
    url = server.url("/none.dwarfs")
    with pytest.raises(FileNotFoundError) as e:
        redwarfs.open(url)
    assert str(e.value) == f"[Errno 2] the server answers 404 Not Found: {url!r}"
    assert e.value.filename == url
    server.faults.append(403)
    with pytest.raises(PermissionError, match="403 Forbidden"):
        redwarfs.open(url)
    server.objects["/text"] = b"no image" * 1000
    with pytest.raises(redwarfs.NotAnImageError) as e:
        redwarfs.open(server.url("/text"))
    assert e.value.filename == server.url("/text")
    for wrong in ("s3://bucket", "http://", "gs://bucket/key?version=1"):
        with pytest.raises(OSError) as e:
            redwarfs.open(wrong)
        assert e.value.errno == errno.EINVAL and "://" in e.value.filename


def test_passing_faults_are_overcome(server, url):
    server.faults.extend([503, Cut(100)])
    image = redwarfs.open(url)
    server.faults.extend([Cut(1000), 500, Cut(0)])
    assert image["noise"] == NOISE
    assert not server.faults


def test_a_changed_object_is_an_error_and_never_mixed(server, url):
    image = redwarfs.open(url)
    changed = io.BytesIO()
    with redwarfs.Writer(changed, level=4) as writer:
        writer.add("noise", bytes(reversed(NOISE)))
    server.objects["/tree.dwarfs"] = changed.getvalue()
    with pytest.raises(OSError, match="has changed") as e:
        image["noise"]
    assert e.value.errno == errno.EIO and url in str(e.value)
    assert redwarfs.open(url)["noise"] == bytes(reversed(NOISE))


def test_an_object_that_is_gone_is_no_missing_entry(server, url):
    image, lazy = redwarfs.open(url), redwarfs.open(url, lazy=True)
    kept = server.objects.pop("/tree.dwarfs")
    with pytest.raises(OSError, match="404") as e:
        image["noise"]
    assert e.value.errno == errno.ESTALE
    for use in (
        lambda: lazy["noise"],
        lambda: "noise" in lazy,
        lambda: lazy.exists("noise"),
        lambda: list(lazy.walk()),
        lambda: list(lazy.glob("*")),
        lambda: lazy.open("noise"),
    ):
        with pytest.raises(FileNotFoundError) as e:
            use()
        assert e.value.filename == url
    server.objects["/tree.dwarfs"] = kept
    assert image["noise"] == NOISE and "noise" in lazy
    assert "none" not in lazy and not lazy.exists("none")
    with pytest.raises(KeyError):
        lazy["none"]


def test_damage_is_found(server, url):
    damaged = bytearray(server.objects["/tree.dwarfs"])
    damaged[len(damaged) // 2] ^= 1
    server.objects["/tree.dwarfs"] = bytes(damaged)
    with pytest.raises(redwarfs.CorruptImageError):
        redwarfs.open(url)["noise"]


def test_no_text_has_a_secret(server, url, tmp_path):
    private = url.replace("http://", "http://someone:hidden@") + "?token=hidden"
    image = redwarfs.open(private)
    assert image["a/b/file"] == b"0123456789"
    requests = server.take_requests()
    assert all(request.authorization and "token=hidden" in request.path for request in requests)
    path = redwarfs.Path(image, "a")
    texts = [repr(image), str(image.name), repr(path), str(path), repr(vars(image))]
    assert image.name == f"{url}?..."
    server.objects.clear()
    for use in (
        lambda: image["noise"],
        lambda: redwarfs.open(private),
        lambda: redwarfs.merge([image], tmp_path / "merged"),
        lambda: redwarfs.merge([private], tmp_path / "merged"),
        lambda: pickle.dumps(image),
        lambda: pickle.dumps(redwarfs.Path(image)),
    ):
        with pytest.raises((OSError, TypeError)) as e:
            use()
        texts += [str(e.value), repr(e.value)]
    assert not [text for text in texts if "hidden" in text or "someone" in text]
    in_child(lambda: pytest.raises(FileNotFoundError, image.listdir))


# Processes.


def test_children_open_their_own_connections(server, url):
    image = redwarfs.open(url, cache_size=0, readahead=False)
    image.read("noise", 0, 1000)
    with image.open("a/numbers", "rb") as file:
        file.read(100)
        ours = {request.client for request in server.take_requests()}

        def child():
            assert image["noise"] == NOISE and image.read_many(["link"], 2) == [b"0123456789"]
            assert file.read() == NUMBERS[100:]
            in_child(lambda: image["noise"] == NOISE or 1 / 0)
            assert redwarfs.open(url)["a/numbers"] == NUMBERS

        in_child(child)
        assert not ours & {request.client for request in server.take_requests()}
        assert file.read() == NUMBERS[100:]
    assert image["noise"] == NOISE


def test_children_drop_images_of_their_parent(server, url):
    kept = [redwarfs.open(url)]
    kept[0].read("noise", 0, 100)

    def child():
        kept.clear()
        gc.collect()

    in_child(child)
    in_child(lambda: (kept[0]["noise"], kept.clear(), gc.collect()))
    assert kept[0]["noise"] == NOISE


def test_forks_while_threads_read_and_open(server, url):
    image = redwarfs.open(url, cache_size=0)
    stop = threading.Event()

    def read():
        rng = random.Random(threading.get_ident())
        while not stop.is_set():
            offset = rng.randrange(len(NOISE))
            assert image.read("noise", offset, 9) == NOISE[offset : offset + 9]
            redwarfs.open(url).exists("a")

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            in_child(lambda: image.read_many(["noise", "a/numbers"], 2))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def length(image):
    return len(image["noise"])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes(server, url, method):
    image = redwarfs.open(url)
    image.read("noise", 0, 100)
    context = multiprocessing.get_context(method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            assert list(pool.map(length, [image] * 4)) == [len(NOISE)] * 4


def test_pickles_carry_the_url_and_the_options(server, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    image = redwarfs.open(url, cache_size=1 << 20, cache_dir="cache")
    server.take_requests()
    copy = pickle.dumps(image)
    assert len(copy) < 500 and url.encode() in copy
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    copy = pickle.loads(copy)
    # Opened when it is used.
    assert not server.take_requests()
    assert copy["a/numbers"] == NUMBERS and copy.name == url
    assert copy._options["cache_dir"] == str(tmp_path / "cache")
    assert os.listdir(tmp_path / "other") == []
    path = pickle.loads(pickle.dumps(redwarfs.Path(image, "a")))
    assert (path / "numbers").read_bytes() == NUMBERS


def test_a_lazy_image_starts_no_thread(server, url):
    program = f"""
import os, redwarfs
image = redwarfs.open({url!r}, lazy=True)
assert len(os.listdir("/proc/self/task")) == 1
assert image["a/b/file"] == b"0123456789"
assert len(os.listdir("/proc/self/task")) > 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_threads_share_an_image(server, url):
    image = redwarfs.open(url, lazy=True)

    def read(seed):
        rng = random.Random(seed)
        for _ in range(50):
            offset = rng.randrange(len(NOISE))
            assert image.read("noise", offset, 3000) == NOISE[offset : offset + 3000]
        return image["a/b/file"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(16))) == {b"0123456789"}


def test_threads_do_not_pile_up(server, url):
    image = redwarfs.open(url, readahead=False)
    image["noise"]

    def threads():
        return len(os.listdir("/proc/self/task"))

    before = threads()
    for _ in range(30):
        other = redwarfs.open(url, cache_size=0, readahead=False)
        other.read("noise", 0, 100)
    # Those of the server are here, too: one for each connection.
    assert threads() < before + 20


# Signals.


def interrupted(program, server, count, *arguments):
    """Runs a program, and sends it SIGINT when the server has stalled so many requests."""
    server.take_requests()
    # A shell that runs the tests in the background has switched the signal off for them.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, *arguments, *(["-c", program] if program else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    try:
        deadline = time.monotonic() + 60
        while len(server.requests) < count:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        line = process.stdout.readline()
        assert time.monotonic() - began < 8
        server.release()
        out, errors = process.communicate("\n", timeout=60)
        return process.returncode, line, out, errors
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("fault", [STALL, 503])
def test_a_signal_ends_an_opening(server, url, fault):
    server.faults.extend([fault] * 200)
    program = f"""
import redwarfs
try:
    redwarfs.open({url!r})
except KeyboardInterrupt:
    print("interrupted", flush=True)
input()
print(len(redwarfs.open({url!r})["noise"]))
"""
    code, line, out, errors = interrupted(program, server, 1)
    assert (code, line, out) == (0, "interrupted\n", f"{len(NOISE)}\n"), errors


def test_a_signal_ends_reading_the_metadata(server, url):
    target = io.BytesIO()
    with redwarfs.Writer(target, level=1) as writer:
        for number in range(4_000):
            writer.add(f"{number}/{random.Random(number).random()}", b"")
    server.objects["/many"] = target.getvalue()
    program = f"""
import redwarfs
try:
    redwarfs.open({server.url("/many")!r})
except KeyboardInterrupt:
    print("interrupted", flush=True)
input()
print(len(redwarfs.open({server.url("/many")!r}).listdir()))
"""
    # The first request is answered.
    server.faults.extend([None] + [STALL] * 20)
    code, line, out, errors = interrupted(program, server, 2)
    assert (code, line, out) == (0, "interrupted\n", "4000\n"), errors


@pytest.mark.parametrize("read", ['image["noise"]', 'image.open("noise", "rb").read()'])
def test_a_signal_ends_a_read(server, url, read):
    program = f"""
import redwarfs
image = redwarfs.open({url!r})
try:
    {read}
except KeyboardInterrupt:
    print("interrupted", flush=True)
input()
print(len({read}))
"""
    server.faults.extend([None] + [STALL] * 20)
    code, line, out, errors = interrupted(program, server, 2)
    assert (code, line, out) == (0, "interrupted\n", f"{len(NOISE)}\n"), errors


def test_the_handler_of_a_signal_may_return(server, url):
    program = f"""
import redwarfs, signal
signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))
print(len(redwarfs.open({url!r})["noise"]))
"""
    server.faults.append(STALL)
    code, line, out, errors = interrupted(program, server, 1)
    assert (code, line, out) == (0, "handled\n", f"{len(NOISE)}\n"), errors


# The cache on disk.


def test_a_cache_on_disk_asks_once_whether_the_object_is_the_same(server, url, tmp_path):
    image = redwarfs.open(url, cache_dir=tmp_path)
    assert image["noise"] == NOISE
    del image
    server.take_requests()
    image = redwarfs.open(url, cache_dir=tmp_path, cache_limit=1 << 30)
    assert image["noise"] == NOISE
    assert len(server.take_requests()) == 1
    in_child(lambda: image["noise"] == NOISE or 1 / 0)
    server.stop()
    offline = redwarfs.open(url, cache_dir=tmp_path, offline=True)
    assert offline["noise"] == NOISE
    in_child(lambda: offline["noise"] == NOISE or 1 / 0)
    with pytest.raises(OSError, match="not in the cache"):
        offline["a/numbers"]
    with pytest.raises(OSError, match="not in the cache"):
        redwarfs.open(server.url("/other"), cache_dir=tmp_path, offline=True)


def test_a_program_that_ends_writes_its_cache(server, url, tmp_path):
    program = f"import redwarfs; image = redwarfs.open({url!r}, cache_dir={str(tmp_path)!r}); image['noise']"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    server.take_requests()
    assert redwarfs.open(url, cache_dir=tmp_path)["noise"] == NOISE
    assert len(server.take_requests()) == 1


def test_a_cache_on_disk_must_be_usable(server, url, tmp_path):
    for options in ({"offline": True}, {"cache_limit": 1}):
        with pytest.raises(ValueError, match="cache_dir"):
            redwarfs.open(url, **options)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError) as e:
        redwarfs.open(url, cache_dir=tmp_path / "file")
    assert e.value.filename == str(tmp_path / "file")


# The program.


def run(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "redwarfs", *map(str, arguments)], capture_output=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr.decode()


def test_the_program_takes_urls(server, url, tmp_path):
    assert run("ls", url)[0] == b"a\nlink\nnoise\n"
    assert run("cat", url, "a/b/file", "noise")[0] == b"0123456789" + NOISE
    assert b"files: 3\n" in run("info", url)[0]
    run("extract", url, tmp_path / "out")
    assert (tmp_path / "out/a/numbers").read_bytes() == NUMBERS
    private = url.replace("http://", "http://someone:hidden@") + "?token=hidden"
    assert run("cat", private, "link")[0] == b"0123456789"
    server.objects.clear()
    assert run("ls", private, code=1)[1] == f"redwarfs: {url}?...: the server answers 404 Not Found\n"


def test_a_signal_ends_the_program(server, url):
    server.faults.extend([None] + [STALL] * 20)
    code, line, _, errors = interrupted("", server, 2, "-m", "redwarfs", "cat", url, "noise")
    assert (code, line, errors) == (-signal.SIGINT, "", "")


# An object store.


def test_an_image_in_an_object_store(store, data):
    import fsspec

    fsspec.filesystem("s3").pipe_file("bucket/tree.dwarfs", data)
    url = f"{store}/tree.dwarfs"
    image = redwarfs.open(url)
    assert image["noise"] == NOISE and image.name == url
    copy = pickle.dumps(image)
    assert b"secret" not in copy
    assert pickle.loads(copy)["a/numbers"] == NUMBERS
    in_child(lambda: image["a/numbers"] == NUMBERS or 1 / 0)
    with pytest.raises(FileNotFoundError) as e:
        redwarfs.open(f"{store}/none")
    assert e.value.filename == f"{store}/none"
