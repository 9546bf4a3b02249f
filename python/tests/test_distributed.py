"""`redwarfs.distributed`: parts, shards and their merge, without an engine."""

import concurrent.futures
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys

import pytest

import distributed_tree
import redwarfs
from redwarfs import distributed
from redwarfs.distributed.__main__ import main


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree") / "tree"
    root.mkdir()
    distributed_tree.make(root)
    return root


@pytest.fixture(scope="module")
def one_build(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "whole"
    redwarfs.build(tree, path, level=3)
    return path


def entries(tree):
    """All entries but directories that are not empty."""
    found = []
    for directory, directories, names in os.walk(tree):
        for name in directories:
            path = os.path.join(directory, name)
            if os.path.islink(path) or not os.listdir(path):
                found.append(path)
        found.extend(os.path.join(directory, name) for name in names)
    return sorted(os.path.relpath(path, tree) for path in found)


@pytest.mark.parametrize("by", distributed.BY)
@pytest.mark.parametrize("count", [1, 4, 7])
def test_parts_have_each_entry_once(tree, by, count):
    parts = distributed.partition(tree, count, by)
    assert [part.number for part in parts] == list(range(count))
    assert {(part.count, part.source) for part in parts} == {(count, str(tree))}
    assert sorted(path for part in parts for path in part.paths) == entries(tree)
    assert parts == distributed.partition(str(tree), count, by, threads=1)
    assert all(pickle.loads(pickle.dumps(part)) == part for part in parts)
    total = sum(part.size for part in parts)
    assert all(abs(part.size - total / count) < 0.3 * total / count for part in parts)
    # All names of a file are in one part.
    holders = [part for part in parts if {"v2/again", "v0/project0-0/README"} & set(part.paths)]
    assert len(holders) == 1


def test_similar_files_share_a_part(tree):
    def separated(parts):
        """Files whose other version is in another part."""
        where = {path: part.number for part in parts for path in part.paths}
        return sum(
            where[f"v0/project{p}-0/src/part{n}.c"] != where[f"v{v}/project{p}-{v}/src/part{n}.c"]
            for p in range(distributed_tree.PROJECTS)
            for n in range(8)
            for v in range(1, distributed_tree.VERSIONS)
        )

    assert separated(distributed.partition(tree, 4, "similarity")) == 0
    assert separated(distributed.partition(tree, 4, "directory")) > 60


def test_contents_decide_where_names_do_not(tmp_path):
    words = [f"{n * 7919:x}" for n in range(400)]
    for n in range(64):
        # Each fourth file has the same words but one.
        own = words if n % 4 == 0 else [f"{n}{word[::-1]}" for word in words]
        (tmp_path / f"{n * 7919 % 64:x}.{chr(97 + n % 7)}").write_text(" ".join([str(n), *own]))
    alike = {f"{n * 7919 % 64:x}.{chr(97 + n % 7)}" for n in range(0, 64, 4)}

    def pairs(parts):
        """Similar files in the same part, in pairs: groups have two files, because parts have sixteen."""
        return sum(len(alike & set(part.paths)) // 2 for part in parts)

    assert pairs(distributed.partition(tmp_path, 4, "similarity")) == 8
    by_name = distributed.partition(tmp_path, 4, "similarity", sample=0)
    assert by_name != distributed.partition(tmp_path, 4, "similarity")


def test_entries_can_be_left_out_and_trees_can_be_empty(tree, tmp_path):
    parts = distributed.partition(tree, 3, select=lambda path, kind: not path.endswith(".c"))
    paths = [path for part in parts for path in part.paths]
    assert "v0/project0-0/README" in paths and not any(path.endswith(".c") for path in paths)
    # Without its files it has no entries.
    assert "v0/project0-0/src" in paths
    parts = distributed.partition(tmp_path, 3)
    assert [part.paths for part in parts] == [("",)]
    shard = distributed.build_shard(parts[0], tmp_path / "shards", level=1)
    assert list(redwarfs.open(shard.path).walk("")) == [("", [], [])]
    for wrong in [{"shards": 0}, {"shards": 2, "by": "colour"}]:
        with pytest.raises(ValueError):
            distributed.partition(tmp_path, **wrong)
    with pytest.raises(FileNotFoundError):
        distributed.partition(tmp_path / "missing", 2)


@pytest.mark.parametrize("by", distributed.BY)
def test_the_merged_tree_is_that_of_one_build(tree, one_build, tmp_path, by):
    parts = distributed.partition(tree, 4, by)
    shards = [distributed.build_shard(part, tmp_path / "shards", level=3) for part in parts]
    assert not any(shard.reused for shard in shards)
    target = tmp_path / "out"
    result = distributed.merge(reversed(shards), target, level=3)
    assert result.image_size == target.stat().st_size and result.errors == 0
    wanted = distributed_tree.listing(redwarfs.open(one_build))
    assert distributed_tree.listing(redwarfs.open(target)) == wanted
    assert len(wanted) == len(list(tree.rglob("*"))) + 1
    # By name, the shards are merged in the same order.
    again = tmp_path / "again"
    distributed.merge([shard.path for shard in shards], again, level=3)
    assert again.read_bytes() == target.read_bytes()


def test_similarity_makes_the_smaller_image(tree, one_build, tmp_path):
    sizes = {}
    for by in ["directory", "similarity"]:
        parts = distributed.partition(tree, 3, by)
        shards = [distributed.build_shard(part, tmp_path / by, level=3) for part in parts]
        sizes[by] = distributed.merge(shards, tmp_path / f"{by}.dwarfs").image_size
    one = one_build.stat().st_size
    assert sizes["similarity"] < 1.1 * one and sizes["directory"] > 1.5 * one, (sizes, one)


def test_a_finished_shard_is_not_built_again(tmp_path):
    tree, shards = tmp_path / "tree", tmp_path / "shards"
    tree.mkdir()
    for name in "abcd":
        (tree / name).write_text(name * 100)
    part = distributed.partition(tree, 2)[0]
    assert part.paths == ("a", "b")
    first = distributed.build_shard(part, shards, level=1)
    again = distributed.build_shard(part, str(shards), level=1, num_workers=1)
    assert again.reused and again.path == first.path and again.size == first.size
    assert os.listdir(shards) == [os.path.basename(first.path)]
    # Another content, another option, other permissions, and an incomplete file.
    paths = {first.path}
    paths.add(distributed.build_shard(part, shards, level=1, block_size_bits=16).path)
    paths.add(distributed.build_shard(part, shards, level=2).path)
    (tree / "a").write_text("other")
    paths.add(distributed.build_shard(part, shards, level=1).path)
    (tree / "a").chmod(0o600)
    last = distributed.build_shard(part, shards, level=1)
    paths.add(last.path)
    assert len(paths) == 5 and redwarfs.open(last.path)["a"] == b"other"
    with open(last.path, "r+b") as file:
        file.truncate(last.size // 2)
    assert not distributed.build_shard(part, shards, level=1).reused
    assert redwarfs.open(last.path).verify() == []
    # The content of a file in another part does not count.
    (tree / "d").write_text("other")
    assert distributed.build_shard(part, shards, level=1).path == last.path


def test_a_tree_that_has_changed_is_an_error(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in "abc":
        (tree / name).write_text(name)
    (part,) = distributed.partition(tree, 1)
    (tree / "b").unlink()
    with pytest.raises(FileNotFoundError):
        distributed.build_shard(part, tmp_path / "shards", level=1)
    # A file that goes away while the shard is being built.
    from redwarfs.distributed import _shard

    part = distributed.Partition(part.source, 0, 1, ("a", "z"), 2)
    with pytest.raises(FileNotFoundError, match="the tree has changed"):
        _shard._pack(part, str(tmp_path / "image"), 1, {})
    assert not (tmp_path / "image").exists()


def test_shards_that_do_not_fit_are_refused(tree, tmp_path):
    parts = distributed.partition(tree, 3)
    shards = [distributed.build_shard(part, tmp_path, level=1) for part in parts]
    target = tmp_path / "out"
    for given, error, words in [
        (shards[:2], ValueError, "shard 2 of 3 is missing"),
        (shards[1:], ValueError, "shard 0 of 3 is missing"),
        ([*shards, shards[1]], ValueError, "given twice"),
        ([*shards[:2], shards[2].path], TypeError, "not both"),
    ]:
        with pytest.raises(error, match=words):
            distributed.merge(given, target)
    other = distributed.build_shard(distributed.partition(tree, 2)[0], tmp_path, level=1)
    with pytest.raises(ValueError, match="divided"):
        distributed.merge([*shards[1:], other], target)
    distributed.merge(shards, target)
    with pytest.raises(FileExistsError):
        distributed.merge(shards, target)
    distributed.merge(shards, target, overwrite=True)
    with pytest.raises(FileNotFoundError):
        distributed.merge([tmp_path / "missing"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_shards_are_built_by_processes(tree, one_build, tmp_path):
    parts = distributed.partition(tree, 4)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        tasks = [pool.submit(distributed.build_shard, part, tmp_path, level=3) for part in parts]
        shards = [task.result() for task in tasks]
    distributed.merge(shards, tmp_path / "out")
    wanted = distributed_tree.listing(redwarfs.open(one_build))
    assert distributed_tree.listing(redwarfs.open(tmp_path / "out")) == wanted


def test_stores_of_fsspec(tree, one_build, tmp_path):
    pytest.importorskip("fsspec")
    place = "memory://shards"
    parts = distributed.partition(tree, 3)
    shards = [distributed.build_shard(part, place, level=3) for part in parts]
    assert all(shard.path.startswith(place + "/shard-0000") for shard in shards)
    assert distributed.build_shard(parts[1], place, level=3).reused
    distributed.merge(shards, "memory://images/out.dwarfs")
    with pytest.raises(FileExistsError):
        distributed.merge(shards, "memory://images/out.dwarfs")
    import fsspec

    fs = fsspec.filesystem("memory")
    assert sorted(fs.ls("/shards", detail=False)) == sorted(
        shard.path.removeprefix("memory:/") for shard in shards
    )
    (tmp_path / "out").write_bytes(fs.cat("/images/out.dwarfs"))
    wanted = distributed_tree.listing(redwarfs.open(one_build))
    assert distributed_tree.listing(redwarfs.open(tmp_path / "out")) == wanted


@pytest.fixture
def run(capsys):
    def run(*arguments, code=0):
        assert main(list(map(str, arguments))) == code
        return capsys.readouterr()

    return run


def test_jobs_of_a_batch_system(tree, one_build, tmp_path, run):
    plan, shards, target = tmp_path / "plan", tmp_path / "shards", tmp_path / "out"
    out, _ = run("plan", plan, tree, shards, "--shards=3", "--level=3", "-o", "time-resolution=1s")
    assert out == "3 parts\n"
    _, error = run("merge", plan, target, code=1)
    assert "shard-00000-of-00003" in error and "not built" in error
    for number in [2, 0, 1, 7]:
        run("shard", plan, number, "--num-workers=1")
    out, _ = run("shard", plan, 1)
    assert ": is there, " in out and len(list(shards.iterdir())) == 3
    out, _ = run("merge", plan, target)
    assert out == f"{target}: {target.stat().st_size} bytes\n"
    wanted = distributed_tree.listing(redwarfs.open(one_build))
    assert distributed_tree.listing(redwarfs.open(target)) == wanted
    _, error = run("merge", plan, target, code=1)
    assert error == f"redwarfs.distributed: {target}: File exists\n"
    run("merge", plan, target, "--overwrite", "--repack=100")
    for arguments in [
        ["plan", plan, tree, shards, "--shards=0"],
        ["plan", plan, tree, shards, "--shards=2", "-o", "colour=red"],
        ["plan", plan, tmp_path / "missing", shards, "--shards=2"],
        ["shard", tmp_path / "missing", 0],
        ["shard", target, 0],
        ["merge", pathlib.Path(__file__), target],
    ]:
        _, error = run(*arguments, code=1)
        assert error.startswith("redwarfs.distributed: ") and error.count("\n") == 1, error
    program = [sys.executable, "-m", "redwarfs.distributed", "shard", str(plan), "0"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert ": is there, " in done.stdout


def test_examples_of_the_book(tmp_path):
    book = pathlib.Path(__file__).parents[2] / "docs/book/src/clusters.md"
    blocks = [block.split("```")[0] for block in book.read_text().split("```")[1::2]]
    (jobs,) = [block for block in blocks if " plan plan.json " in block]
    (pool,) = [block for block in blocks if "ProcessPoolExecutor" in block]
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/a").write_text("a")
    script = jobs.removeprefix("sh\n").replace("python -m", f"'{sys.executable}' -m")
    how = {"cwd": tmp_path, "env": {**os.environ, "SCRATCH": str(tmp_path)}, "check": True}
    subprocess.run(["sh", "-euc", script], **how)
    assert dict(redwarfs.open(tmp_path / "dataset.dwarfs")) == {"a": b"a"}
    (tmp_path / "dataset.dwarfs").unlink()
    (tmp_path / "dataset/b").write_text("b")
    subprocess.run([sys.executable, "-c", pool.removeprefix("python\n")], **how)
    assert dict(redwarfs.open(tmp_path / "dataset.dwarfs")) == {"a": b"a", "b": b"b"}
