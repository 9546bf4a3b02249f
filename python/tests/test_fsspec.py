"""The file system for fsspec, and libraries on top of it."""

import io
import os
import pickle
import subprocess
import sys

import pytest

import redwarfs
from conftest import NUMBERS

fsspec = pytest.importorskip("fsspec")

from redwarfs.fsspec import RedwarfsFileSystem  # noqa: E402


@pytest.fixture
def fs(image_path):
    return fsspec.filesystem("redwarfs", fo=str(image_path))


def test_the_protocol_is_registered(image_path):
    code = (
        "import fsspec, sys; fs = fsspec.filesystem('redwarfs', fo=sys.argv[1]);"
        "print(type(fs).__name__, fs.cat('a/b/file'))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, str(image_path)], check=True, capture_output=True, text=True
    )
    assert shown.stdout == "RedwarfsFileSystem b'0123456789'\n"


def test_chained_urls(image_path, tmp_path):
    for url in [
        f"redwarfs://a/b/file::file://{image_path}",
        f"redwarfs://a/b/file::{image_path}",
        f"redwarfs://a/b/file::simplecache::file://{image_path}",
        f"redwarfs:///a/b/file::local://{image_path}",
    ]:
        with fsspec.open(url, simplecache={"cache_storage": str(tmp_path)}) as file:
            assert file.read() == b"0123456789", url
    memory = fsspec.filesystem("memory")
    memory.pipe("/images/tree.dwarfs", image_path.read_bytes())
    fs, path = fsspec.url_to_fs("redwarfs://a::memory://images/tree.dwarfs")
    assert isinstance(fs, RedwarfsFileSystem) and path == "a"
    assert fs.cat("a/numbers") == NUMBERS
    with fsspec.open("redwarfs://a/text.txt::memory://images/tree.dwarfs", "rt", encoding="utf-8") as file:
        assert file.readline() == "first\n"
    found = fsspec.open_files(f"redwarfs://a/*.txt::file://{image_path}")
    assert [file.path for file in found] == ["a/text.txt"]


def test_an_image_in_an_image(image_path):
    target = io.BytesIO()
    with redwarfs.Writer(target) as writer:
        writer.add("inner.dwarfs", image_path.read_bytes())
    outer = fsspec.filesystem("redwarfs", fo=target)
    with outer.open("inner.dwarfs") as file:
        inner = RedwarfsFileSystem(file)
        assert inner.cat("a/b/file") == b"0123456789"


def test_listings(fs):
    assert fs.ls("", detail=False) == sorted(
        ["a", "dirlink", "empty", "link", "nowhere", "odd-\udcff", "pipe", "round", "void"]
    )
    entries = {entry["name"]: entry for entry in fs.ls("a")}
    assert entries["a/b"]["type"] == "directory" and entries["a/b"]["size"] == 0
    assert entries["a/numbers"]["type"] == "file"
    assert entries["a/numbers"]["size"] == len(NUMBERS)
    assert fs.ls("a/numbers", detail=False) == ["a/numbers"]
    info = fs.info("redwarfs://link")
    assert info["islink"] and info["destination"] == "a/b/file" and info["type"] == "file"
    assert info["size"] == 10 and fs.info("nowhere")["type"] == "link"
    assert fs.info("")["type"] == "directory" and fs.info("pipe")["type"] == "other"
    assert fs.find("a") == ["a/again", "a/b/file", "a/numbers", "a/text.txt"]
    assert fs.glob("**/file") == ["a/b/file", "dirlink/file"] or fs.glob("**/file") == ["a/b/file"]
    assert fs.du("a/b") == 10 and fs.exists("a") and not fs.exists("missing")
    assert fs.isdir("dirlink") and fs.isfile("link") and fs.size("a/b/file") == 10
    assert fs.modified("a/b/file").timestamp() == 1_600_000_000
    for operation in (fs.info, fs.ls, fs.cat_file, fs.open):
        with pytest.raises(FileNotFoundError):
            operation("missing")
    names = {path for path, _, _ in fs.walk("a")}
    assert names == {"a", "a/b"}


def test_contents(fs, tmp_path):
    assert fs.cat_file("a/b/file", 2, 5) == b"234" == fs.cat_file("a/b/file", -8, -5)
    assert fs.cat_file("a/b/file", start=8) == b"89" and fs.cat_file("a/b/file", end=2) == b"01"
    assert fs.cat_file("a/b/file", 5, 2) == b"" and fs.cat_file("a/b/file", 5, 200) == b"56789"
    assert fs.cat_ranges(["a/b/file", "a/numbers"], [0, 2], [3, 4]) == [b"012", NUMBERS[2:4]]
    assert fs.cat_ranges(["a/b/file"] * 2, 1, 3) == [b"12"] * 2
    results = fs.cat_ranges(["missing", "a/b/file"], [0, 0], [1, 1])
    assert isinstance(results[0], FileNotFoundError) and results[1] == b"0"
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["missing"], [0], [1], on_error="raise")
    with pytest.raises(ValueError):
        fs.cat_ranges(["a/b/file"], [0, 1], [1, 2])
    assert fs.cat("a/b/file") == b"0123456789" == fs.cat(["a/b/file"])["a/b/file"]
    many = fs.cat(["a/b/file", "a/numbers"])
    assert many == {"a/b/file": b"0123456789", "a/numbers": NUMBERS}
    assert fs.cat("a", recursive=True)["a/b/file"] == b"0123456789"
    assert fs.cat(["a/b/file", "missing"], on_error="omit") == {"a/b/file": b"0123456789"}
    failed = fs.cat(["a/b/file", "missing"], on_error="return")
    assert isinstance(failed["missing"], FileNotFoundError)
    assert fs.head("a/numbers", 4) == NUMBERS[:4] and fs.tail("a/numbers", 4) == NUMBERS[-4:]
    assert fs.read_block("a/numbers", 10, 10, b"\n").endswith(b"\n")
    fs.get("a", str(tmp_path / "copy"), recursive=True)
    assert (tmp_path / "copy/b/file").read_bytes() == b"0123456789"
    with fs.open("a/numbers") as file:
        assert file.read(3) == NUMBERS[:3] and file.seek(0, 2) == len(NUMBERS)
    for mode in ("wb", "ab"):
        with pytest.raises(OSError):
            fs.open("a/new", mode)
    with pytest.raises((NotImplementedError, OSError)):
        fs.rm("a/b/file")
    assert fs.checksum("a/b/file") == fs.checksum("a/b/file") != fs.checksum("empty")
    assert list(fs.get_mapper("a/b")) == ["file"] and fs.get_mapper("a/b")["file"] == b"0123456789"


def test_pickles(fs, image_path):
    copy = pickle.loads(pickle.dumps(fs))
    assert copy.cat("a/b/file") == b"0123456789"
    assert fsspec.filesystem("redwarfs", fo=str(image_path)) is fs
    file = fsspec.open(f"redwarfs://a/b/file::file://{image_path}")
    with pickle.loads(pickle.dumps(file)) as opened:
        assert opened.read() == b"0123456789"
    again = RedwarfsFileSystem.from_json(fs.to_json())
    assert again.cat("a/b/file") == b"0123456789"


def test_pandas_and_pyarrow(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    import pyarrow.dataset
    import pyarrow.fs

    frame = pandas.DataFrame({"n": range(10_000), "word": [f"w{n % 7}" for n in range(10_000)]})
    tree = tmp_path / "tree"
    for part in range(3):
        os.makedirs(tree / f"part={part}")
        frame.to_parquet(tree / f"part={part}" / "data.parquet")
    frame.to_csv(tree / "data.csv", index=False)
    path = tmp_path / "data.dwarfs"
    redwarfs.build(tree, path, level=4)
    end = f"::file://{path}"
    assert pandas.read_csv("redwarfs://data.csv" + end).equals(frame)
    assert pandas.read_parquet("redwarfs://part=1/data.parquet" + end)[["n", "word"]].equals(frame)
    fs = fsspec.filesystem("redwarfs", fo=str(path))
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    data = pyarrow.dataset.dataset(
        [found for found in fs.glob("part=*/*.parquet")], filesystem=arrow, format="parquet"
    )
    assert data.count_rows() == 30_000
    table = data.to_table(columns=["n"], filter=pyarrow.dataset.field("n") < 5)
    assert table.num_rows == 15


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_dask(tmp_path, scheduler):
    pandas = pytest.importorskip("pandas")
    dataframe = pytest.importorskip("dask.dataframe")
    bag = pytest.importorskip("dask.bag")
    frame = pandas.DataFrame({"n": range(10_000), "word": [f"w{n % 7}" for n in range(10_000)]})
    tree = tmp_path / "tree"
    tree.mkdir()
    for part in range(3):
        frame.to_csv(tree / f"{part}.csv", index=False)
        frame.to_parquet(tree / f"{part}.parquet")
    path = tmp_path / "data.dwarfs"
    redwarfs.build(tree, path, level=4)
    end = f"::file://{path}"
    parts = dataframe.read_csv(f"redwarfs://*.csv{end}", blocksize=20_000)
    assert parts.npartitions > 3
    assert parts.n.sum().compute(scheduler=scheduler) == 3 * sum(range(10_000))
    whole = dataframe.read_parquet(f"redwarfs://*.parquet{end}")
    assert len(whole[whole.word == "w3"].compute(scheduler=scheduler)) == 3 * (frame.word == "w3").sum()
    lines = bag.read_text(f"redwarfs://*.csv{end}").count().compute(scheduler=scheduler)
    assert lines == 3 * 10_001


def test_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    numpy = pytest.importorskip("numpy")
    wanted = numpy.arange(10_000).reshape(100, 100)
    group = zarr.open_group(tmp_path / "tree/store.zarr", mode="w")
    group.create_array("x", shape=wanted.shape, chunks=(10, 10), dtype="i4")[:] = wanted
    path = tmp_path / "store.dwarfs"
    redwarfs.build(tmp_path / "tree", path, level=1)
    group = zarr.open_group(f"redwarfs://store.zarr::file://{path}", mode="r")
    assert (group["x"][:] == wanted).all() and (group["x"][5:7, 3] == wanted[5:7, 3]).all()
