"""Older snapshots of an image."""

import datetime
import io
import os
import pickle
import shutil
import subprocess
import sys

import pytest

import redwarfs
from conftest import VECTORS, in_child
from web_server import WebServer

NIGHTS = VECTORS.parent / "fixtures/snapshots/nights.dwarfs"
UTC = datetime.timezone.utc

# Snapshots, and the size of a file in each one.
CHOICES = [
    (None, 5600),
    ("night-1", 700),
    ("night-4", 2800),
    (5, 3500),
    ("5", 3500),
    ("1970-01-01T00:20", 700),
    ("1970-01-01 01:16:40+01:00", 700),
    ("1971-01-01", 5600),
    (datetime.datetime(1970, 1, 1, 0, 20, tzinfo=UTC), 700),
    (datetime.datetime(1970, 1, 1, 2, 16, 40, 5, datetime.timezone(datetime.timedelta(hours=2))), 700),
    (datetime.datetime(2026, 1, 1, tzinfo=UTC), 5600),
]


def size(image):
    return len(image["docs/log"])


@pytest.fixture
def url():
    server = WebServer()
    server.objects["/nights"] = NIGHTS.read_bytes()
    yield server.url("/nights")
    server.stop()


@pytest.mark.parametrize("snapshot, wanted", CHOICES)
def test_names_numbers_and_times(url, snapshot, wanted):
    for source in (NIGHTS, url, io.BytesIO(NIGHTS.read_bytes())):
        image = redwarfs.open(source, snapshot=snapshot)
        assert size(image) == wanted and image.stat("docs/log").st_size == wanted
        assert not image.verify()
    for end in (14697, 16833):
        assert not redwarfs.open(NIGHTS, image_size=end).verify()
    with open(NIGHTS, "rb") as file:
        assert size(redwarfs.open(file.fileno(), snapshot=snapshot)) == wanted


@pytest.mark.parametrize("snapshot", ["night-6", 6, -1, "", "1970-01-01", 10**30])
def test_a_snapshot_that_is_not_there_is_an_error(snapshot):
    with pytest.raises(FileNotFoundError, match=f"there is no snapshot '{snapshot}'; there are ") as e:
        redwarfs.open(NIGHTS, snapshot=snapshot)
    assert e.value.filename == str(NIGHTS)
    lazy = redwarfs.open(NIGHTS, snapshot=snapshot, lazy=True)
    with pytest.raises(FileNotFoundError, match="there is no snapshot"):
        lazy.exists("docs")


def test_what_is_no_snapshot_is_refused_at_once():
    for snapshot in (1.5, b"night-1", datetime.date(2026, 1, 1)):
        with pytest.raises(TypeError):
            redwarfs.open(NIGHTS, snapshot=snapshot, lazy=True)
    with pytest.raises(ValueError, match="time zone"):
        redwarfs.open(NIGHTS, snapshot=datetime.datetime(2026, 1, 1), lazy=True)


@pytest.mark.parametrize("snapshot, wanted", [CHOICES[1], CHOICES[3], CHOICES[8]])
def test_copies_and_children_have_the_snapshot(url, tmp_path, snapshot, wanted):
    for source in (NIGHTS, url):
        image = redwarfs.open(source, snapshot=snapshot)
        lazy = redwarfs.open(source, snapshot=snapshot, lazy=True)
        assert size(pickle.loads(pickle.dumps(image))) == wanted
        assert len(pickle.loads(pickle.dumps(redwarfs.Path(image, "docs/log"))).read_bytes()) == wanted

        def child():
            assert size(image) == size(lazy) == wanted

        in_child(child)
        image.extract(tmp_path / "out")
        assert (tmp_path / "out/docs/log").stat().st_size == wanted
        shutil.rmtree(tmp_path / "out")
        redwarfs.merge([image], tmp_path / "merged", overwrite=True)
        assert size(redwarfs.open(tmp_path / "merged")) == wanted


def test_an_image_in_a_snapshot_stays_when_the_file_grows(tmp_path):
    path = tmp_path / "nights"
    # As the file was when it had four snapshots.
    path.write_bytes(NIGHTS.read_bytes()[:14697])
    newest, fixed = redwarfs.open(path), redwarfs.open(path, snapshot=4)
    copies = [pickle.dumps(image) for image in (newest, fixed)]
    assert size(newest) == size(fixed) == 2800
    path.write_bytes(NIGHTS.read_bytes())
    assert [size(pickle.loads(copy)) for copy in copies] == [5600, 2800]
    in_child(lambda: size(fixed) == 2800 or 1 / 0)


def test_a_cache_on_disk_serves_each_snapshot(url, tmp_path):
    for snapshot, wanted in CHOICES[:4] * 2:
        assert size(redwarfs.open(url, snapshot=snapshot, cache_dir=tmp_path)) == wanted


def test_fsspec():
    fsspec = pytest.importorskip("fsspec")
    systems = [fsspec.filesystem("redwarfs", fo=str(NIGHTS), snapshot=one) for one, _ in CHOICES]
    for fs, (snapshot, wanted) in zip(systems, CHOICES):
        assert fs.size("docs/log") == wanted
        assert len(pickle.loads(pickle.dumps(fs)).cat("docs/log")) == wanted
        options = {} if snapshot is None else {"redwarfs": {"snapshot": snapshot}}
        for image in (f"file://{NIGHTS}", f"simplecache::file://{NIGHTS}"):
            with fsspec.open(f"redwarfs://docs/log::{image}", **options) as file:
                assert len(file.read()) == wanted
    # Caches must not take one for the other.
    assert len({fs.ukey("docs/log") for fs in systems[:4]}) == 4
    assert len({fs.fsid for fs in systems[:4]}) == 4


def test_the_program(url, tmp_path):
    def run(*arguments):
        program = [sys.executable, "-m", "redwarfs", *map(str, arguments)]
        return subprocess.run(program, capture_output=True, timeout=60)

    for image in (NIGHTS, url):
        for snapshot, wanted in CHOICES[1:7]:
            assert len(run("cat", "--snapshot", snapshot, image, "docs/log").stdout) == wanted
    assert b"docs/old/even\n" in run("ls", "-R", NIGHTS).stdout
    assert b"even" not in run("ls", "-R", NIGHTS, "--snapshot=night-1").stdout
    assert b"inodes: 9\n" in run("info", f"--snapshot={CHOICES[1][0]}", NIGHTS).stdout
    run("extract", "--snapshot", "1", NIGHTS, tmp_path)
    assert os.path.getsize(tmp_path / "docs/log") == 700
    failed = run("ls", NIGHTS, "--snapshot", "night-6")
    assert failed.returncode == 1
    assert failed.stderr.decode().startswith(f"redwarfs: {NIGHTS}: there is no snapshot 'night-6'; there are ")
