import os
import pathlib
import socket
import subprocess
import sys
import time
import warnings

import pytest

import redwarfs

VECTORS = pathlib.Path(__file__).parents[2] / "tests/vectors"

NUMBERS = b"".join(b"%d\n" % number for number in range(50_000))


def in_child(function):
    """Runs a function in a forked child, and fails if it fails or takes longer than a minute."""
    with warnings.catch_warnings():
        # The test is about forks of processes with threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


@pytest.fixture(scope="session")
def image_path(tmp_path_factory):
    """An image with an entry of every kind that needs no privileges."""
    path = tmp_path_factory.mktemp("image") / "tree.dwarfs"
    with redwarfs.Writer(path, level=4, block_size_bits=16, with_specials=True) as writer:
        writer.add("a/b/file", b"0123456789", mode=0o640, uid=1000, gid=100, mtime=1_600_000_000)
        writer.add("a/numbers", NUMBERS)
        writer.add("a/text.txt", "first\nsecond äöü\r\nthird")
        writer.add("empty", b"")
        writer.add(b"odd-\xff", b"odd")
        writer.link("a/again", "a/b/file")
        writer.symlink("link", "a/b/file")
        writer.symlink("dirlink", "/a/b")
        writer.symlink("nowhere", "missing/file")
        writer.symlink("round", "round")
        writer.mkdir("void", mode=0o700)
        writer.mknod("pipe", 0o010600)
    return path


@pytest.fixture
def image(image_path):
    return redwarfs.open(image_path)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The URL of a bucket of an S3 server."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("moto") / "log"
    program = "import sys; from moto.server import main; main(sys.argv[1:])"
    with open(log, "wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(port)],
            stdout=out,
            stderr=out,
        )
    values = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as connection:
                    # A connection from the port itself needs no server.
                    if connection.getsockname() != connection.getpeername():
                        break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        import fsspec

        # One that another module has used has the address of its server.
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        fsspec.filesystem("s3").mkdir("bucket")
        yield "s3://bucket"
    finally:
        server.kill()
        server.wait()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
