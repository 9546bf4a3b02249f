"""`redwarfs.distributed`: parts, shards and their merge, without an engine."""

import concurrent.futures
import dataclasses
import errno
import multiprocessing
import os
import pathlib
import pickle
import random
import struct
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


def test_digests_and_numbers_in_names_do_not_count(tmp_path):
    """Of large files a name alone says enough: those of a library in several packages share a part."""
    chance = random.Random(1)
    for package in range(12):
        directory = tmp_path / f"{chance.randrange(1 << 32):x}-package" / chr(97 + package)
        directory.mkdir(parents=True)
        for library in ["libcore", "libextra", "libthird", "libfourth"]:
            digest = f"{chance.randrange(1 << 32):08x}"
            (directory / f"{library}-1{digest[1:]}.so.{package}.{package}").write_bytes(chance.randbytes(70_000))
            (directory / f"{library}.txt").write_bytes(chance.randbytes(1000))
    parts = distributed.partition(tmp_path, 4, "similarity")
    libraries = [{path.rpartition("/")[2].partition("-")[0] for path in part.paths if ".so." in path} for part in parts]
    assert sorted(map(len, libraries)) == [1, 1, 1, 1], libraries


def test_a_part_ends_after_a_family(tmp_path):
    """Groups are a quarter of a part at most. A family of them is only divided if parts differed too much otherwise."""
    # Of three parts with 80 files each, groups of 20 would end at 80 and at 160.
    for name, count in [("a", 88), ("b", 80), ("c", 72)]:
        for number in range(count):
            (tmp_path / f"{name}{number}").write_bytes(bytes([97 + number % 26]) * 1000)

    def families(parts):
        return ["".join(sorted({path[0] for path in part.paths})) for part in parts]

    assert families(distributed.partition(tmp_path, 3, "similarity", sample=0)) == ["a", "b", "c"]
    assert families(distributed.partition(tmp_path, 2, "similarity", sample=0)) == ["ab", "bc"]


def test_entries_can_be_left_out_and_trees_can_be_empty(tree, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("empty")
    shards = tmp_path_factory.mktemp("shards")
    parts = distributed.partition(tree, 3, select=lambda path, kind: not path.endswith(".c"))
    paths = [path for part in parts for path in part.paths]
    assert "v0/project0-0/README" in paths and not any(path.endswith(".c") for path in paths)
    # Without its files it has no entries.
    assert "v0/project0-0/src" in paths
    parts = distributed.partition(tmp_path, 3)
    assert [part.paths for part in parts] == [("",)]
    shard = distributed.build_shard(parts[0], shards, level=1)
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


KILLED = """
import os, pickle, signal, sys
from redwarfs.distributed import _shard

def build(source, target, **options):
    target.write(b"the beginning of an image")
    target.flush()
    print("begun", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)

_shard.build = build
_shard.build_shard(pickle.loads(bytes.fromhex(sys.argv[1])), sys.argv[2], level=int(sys.argv[3]))
"""


def test_the_next_build_removes_what_a_killed_one_has_left(tmp_path):
    tree, shards = tmp_path / "tree", tmp_path / "shards"
    tree.mkdir()
    for name in "abcd":
        (tree / name).write_text(name * 100)
    parts = distributed.partition(tree, 2)

    def begin(part, level):
        arguments = [pickle.dumps(part).hex(), str(shards), str(level)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", KILLED, *arguments], **pipes)
        assert process.stdout.readline() == b"begun\n"
        return process

    def unfinished():
        return sorted(name for name in os.listdir(shards) if name.startswith(".shard-"))

    running = [begin(parts[0], 1), begin(parts[0], 1), begin(parts[0], 2), begin(parts[1], 1)]
    names = unfinished()
    assert len(names) == 4
    # A build that still runs keeps its file.
    distributed.build_shard(parts[0], shards, level=1)
    assert unfinished() == names
    for process in running[:3]:
        process.communicate(b"\n", timeout=60)
    assert unfinished() == names
    # Also that of a build with other options, but not that of another part.
    distributed.build_shard(parts[0], shards, level=1, rebuild=True)
    assert unfinished() == names[3:]
    running[3].communicate(b"\n", timeout=60)
    distributed.build_shard(parts[1], shards, level=1)
    assert unfinished() == [] and len(os.listdir(shards)) == 2


def test_where_there_are_no_locks_unfinished_files_stay(tmp_path, monkeypatch):
    from redwarfs.distributed import _store

    def flock(*_):
        raise OSError(errno.ENOTSUP, "not here")

    left = tmp_path / f".image.{'0' * 32}"
    left.write_bytes(b"part")
    other = tmp_path / f".image2.{'0' * 32}"
    other.write_bytes(b"part")
    with monkeypatch.context() as patch:
        patch.setattr(_store.fcntl, "flock", flock)
        _store.publish(str(tmp_path / "image"), lambda file: file.write(b"whole"))
    assert (tmp_path / "image").read_bytes() == b"whole" and left.exists()
    _store.publish(str(tmp_path / "image"), lambda file: file.write(b"new"), mode=0o600)
    assert sorted(os.listdir(tmp_path)) == [other.name, "image"]
    assert (tmp_path / "image").stat().st_mode & 0o777 == 0o600


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

    part = dataclasses.replace(part, paths=("a", "z"), kinds="--")
    with pytest.raises(FileNotFoundError, match="the tree has changed"):
        _shard._pack(part, str(tmp_path / "image"), 1, {})


def changes(tree):
    """What programs may do to the tree of the next test, and the path that an error names."""

    def put(path):
        (tree / path).write_text("new")

    def to_directory():
        (tree / "a").unlink()
        (tree / "a").mkdir()
        put("a/inside")

    def to_link():
        os.rename(tree / "sub", tree / "elsewhere")
        (tree / "sub").symlink_to("elsewhere")

    return {
        "a file is a directory": (to_directory, "a"),
        "an empty directory is filled": (lambda: put("empty/new"), "empty"),
        "a file is added": (lambda: put("sub/new"), "sub"),
        "a file is added to the root": (lambda: put("new"), ""),
        "a directory is a link": (to_link, "sub"),
    }


@pytest.mark.parametrize("what", changes(pathlib.Path()))
def test_no_entry_is_lost_after_the_tree_was_divided(tmp_path, run, what):
    tree, shards, plan = tmp_path / "tree", tmp_path / "shards", tmp_path / "plan"
    (tree / "sub").mkdir(parents=True)
    (tree / "empty").mkdir()
    for name in ["a", "sub/b", "sub/c"]:
        (tree / name).write_text(name)
    parts = distributed.partition(tree, 2)
    assert [part.kinds for part in parts] == ["-d", "--"]
    run("plan", plan, tree, shards, "--shards=2", "--level=1")
    change, path = changes(tree)[what]
    change()
    named = str(tree / path) if path else str(tree)
    errors = []
    for part in parts:
        try:
            distributed.build_shard(part, shards, level=1)
        except redwarfs.BuildError as e:
            assert e.errno == errno.ESTALE and "the tree has changed" in e.strerror
            errors.append(e.filename)
    assert named in errors
    failures = [run("shard", plan, n, code=None).err for n in range(2)]
    assert any(f"redwarfs.distributed: {named}: the tree has changed" in f for f in failures)
    _, error = run("merge", plan, tmp_path / "out", code=1)
    # The root has another entry in one of the cases, too, and is checked first.
    assert f"redwarfs.distributed: {tree}" in error and ": the tree has changed" in error
    assert not (tmp_path / "out").exists()
    # Nothing incomplete stays.
    if shards.exists():
        assert all(name.startswith("shard-") for name in os.listdir(shards))


def test_what_changes_a_shard_changes_its_name(tmp_path):
    tree, shards = tmp_path / "tree", tmp_path / "shards"
    tree.mkdir()
    for name in "abcd":
        (tree / name).write_text("x")
    (part,) = distributed.partition(tree, 1)
    from redwarfs.distributed import _shard

    def place(**options):
        return _shard.shard_place(part, shards, 1, options)

    names = {place()}
    assert place(num_workers=3) in names
    # Reading changes nothing. Extended attributes, and content with an old time, change the time of change.
    os.utime(tree / "a", ns=(1, (tree / "a").stat().st_mtime_ns))
    names.add(place())
    (tree / "a").read_text()
    assert place() in names
    before = (tree / "b").stat()
    (tree / "b").write_text("y")
    os.utime(tree / "b", ns=(before.st_atime_ns, before.st_mtime_ns))
    names.add(place())
    assert len(names) == 3
    # The order of repeated options counts, and that of different ones does not.
    one, two = ["default::lz4", "incompressible::null"], ["incompressible::null", "default::lz4"]
    names |= {place(compression=one), place(compression=two)}
    assert len(names) == 5
    assert place(compression=one, order="path") == place(order="path", compression=one)
    # The same four inodes with other names: a and b, c and d; a and c, b and d.
    stamps = []
    for first, second in [("ab", "cd"), ("ac", "bd")]:
        for names_of_one in (first, second):
            for name in names_of_one:
                (tree / name).unlink(missing_ok=True)
        for one, two in (first, second):
            (tree / one).write_text("x")
            os.link(tree / one, tree / two)
        linked = {}
        for name in "abcd":
            found = (tree / name).stat()
            linked.setdefault(found.st_ino, []).append(name)
        assert sorted(map(tuple, linked.values())) == [tuple(first), tuple(second)]
        stamps.append(_shard._states(part))
    assert stamps[0] != stamps[1]


def test_a_link_to_the_source_is_followed(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/a").write_text("a")
    (tmp_path / "link").symlink_to("one")
    (part,) = distributed.partition(tmp_path / "link", 1)
    shards = tmp_path / "shards"
    first = distributed.build_shard(part, shards, level=1)
    assert redwarfs.open(first.path)["a"] == b"a"
    (tmp_path / "one").chmod(0o700)
    second = distributed.build_shard(part, shards, level=1)
    assert second.path != first.path
    assert redwarfs.open(second.path).stat("").st_mode & 0o777 == 0o700


def test_a_file_that_changes_while_it_is_packed_is_an_error(tmp_path, monkeypatch):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in "abc":
        (tree / name).write_text(name)
    (part,) = distributed.partition(tree, 1)
    from redwarfs.distributed import _shard

    real = _shard.build

    def and_a_program_writes(*arguments, **more):
        done = real(*arguments, **more)
        (tree / "b").write_text("other")
        return done

    monkeypatch.setattr(_shard, "build", and_a_program_writes)
    with pytest.raises(redwarfs.BuildError, match="while it was packed") as caught:
        distributed.build_shard(part, tmp_path / "shards", level=1)
    assert caught.value.filename == str(tree / "b")
    assert os.listdir(tmp_path / "shards") == []

    def and_a_program_makes_directories(*arguments, **more):
        (tree / "c").unlink()
        (tree / "c").mkdir()
        (tree / "c/inside").write_text("new")
        return real(*arguments, **more)

    monkeypatch.setattr(_shard, "build", and_a_program_makes_directories)
    with pytest.raises(redwarfs.BuildError, match="the tree has changed"):
        distributed.build_shard(part, tmp_path / "shards", level=1)
    assert os.listdir(tmp_path / "shards") == []


def test_a_damaged_shard_is_named_and_can_be_built_again(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in "ab":
        (tree / name).write_bytes(os.urandom(50_000))
    parts = distributed.partition(tree, 2)
    places = [tmp_path / "shards"]
    try:
        import fsspec
    except ImportError:
        pass
    else:
        places.append("memory://damaged")
    for place in places:
        shards = [distributed.build_shard(part, place, level=1) for part in parts]
        bad = shards[1].path
        for damage in ["block", "all"]:
            if "://" in bad:
                data = bytearray(fsspec.filesystem("memory").cat(bad))
            else:
                data = bytearray(pathlib.Path(bad).read_bytes())
            if damage == "block":
                data[30_000] ^= 1
            else:
                data[:] = b"nothing" * 100
            if "://" in bad:
                fsspec.filesystem("memory").pipe(bad, bytes(data))
            else:
                pathlib.Path(bad).write_bytes(data)
            kind = redwarfs.CorruptImageError if damage == "block" else redwarfs.NotAnImageError
            with pytest.raises(kind) as caught:
                distributed.merge(shards, tmp_path / "out")
            assert caught.value.filename == bad and bad in str(caught.value)
            assert not (tmp_path / "out").exists()
        again = distributed.build_shard(parts[1], place, level=1, rebuild=True)
        assert not again.reused and again.path == bad
        distributed.merge(shards, tmp_path / "out", overwrite=True)
        assert redwarfs.open(tmp_path / "out")["b"] == (tree / "b").read_bytes()
        (tmp_path / "out").unlink()


def test_the_target_is_checked_first(tree, tmp_path):
    shards = [distributed.build_shard(p, tmp_path / "s", level=1) for p in distributed.partition(tree, 2)]
    (tmp_path / "directory").mkdir()
    for overwrite in (False, True):
        # Before shards are opened.
        with pytest.raises(IsADirectoryError) as caught:
            distributed.merge(["missing"], tmp_path / "directory", overwrite=overwrite)
        assert caught.value.filename == str(tmp_path / "directory")
    with pytest.raises(FileNotFoundError):
        distributed.merge(shards, tmp_path / "missing/out")
    (tmp_path / "out").write_text("old")
    distributed.merge(shards, tmp_path / "out", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["directory", "out", "s"]


def test_warnings_are_said(tmp_path, run):
    tree = tmp_path / "tree"
    tree.mkdir()
    # An audio file that ends in the middle.
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 2, 44100, 4 * 44100, 4, 16)
    data = struct.pack("<4sI", b"data", 1 << 20) + bytes(300)
    (tree / "cut.wav").write_bytes(b"RIFF" + struct.pack("<I", 200) + b"WAVE" + form + data)
    (part,) = distributed.partition(tree, 1)
    how = {"level": 1, "categorize": "pcmaudio"}
    shard = distributed.build_shard(part, tmp_path / "shards", **how)
    assert len(shard.warnings) == 1 and "cut.wav" in shard.warnings[0]
    result = distributed.merge([shard], tmp_path / "out")
    assert list(result.warnings) == list(shard.warnings)
    assert distributed.build_shard(part, tmp_path / "shards", **how).warnings == ()
    options = ["--shards=1", "--level=1", "-o", "categorize=pcmaudio"]
    run("plan", tmp_path / "plan", tree, tmp_path / "others", *options)
    out, error = run("shard", tmp_path / "plan", 0)
    assert ": built, " in out and error == f"redwarfs.distributed: {shard.warnings[0]}\n"
    out, error = run("shard", tmp_path / "plan", 0)
    assert ": is there, " in out and error == ""
    out, error = run("shard", tmp_path / "plan", 0, "--rebuild")
    assert ": built, " in out and "cut.wav" in error


def test_passwords_stay_out_of_plans(tree, tmp_path, run):
    plan = tmp_path / "plan"
    for url in [
        "ftp://me:secret@host/shards",
        "simplecache::ftp://me:secret@host/shards",
        "https://:secret@host",
    ]:
        _, error = run("plan", plan, tree, url, "--shards=2", code=1)
        assert "fsspec" in error and "secret" not in error and not plan.exists()
    # A colon and an @ are no password elsewhere.
    run("plan", plan, tree, "ftp://host:21/a:b@c", "--shards=2")
    assert plan.stat().st_mode & 0o777 == 0o600


def test_jobs_divide_by_directory_by_default(tree, tmp_path, run):
    run("plan", tmp_path / "one", tree, tmp_path / "shards", "--shards=4")
    run("plan", tmp_path / "two", tree, tmp_path / "shards", "--shards=4", "--by=directory")
    run("plan", tmp_path / "three", tree, tmp_path / "shards", "--shards=4", "--by=similarity")
    plans = [(tmp_path / name).read_text() for name in ("one", "two", "three")]
    assert plans[0] == plans[1] != plans[2]


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
    # Whether a shard is there takes no more than its ends.
    read = []
    real = type(fs)._open

    def counted(self, path, *arguments, **more):
        read.append((path, more.get("block_size"), more.get("cache_type")))
        return real(self, path, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(fs), "_open", counted)
        assert distributed.build_shard(parts[0], place, level=3).reused
    assert [options[1:] for options in read] == [(1 << 20, "blockcache")]
    (tmp_path / "out").write_bytes(fs.cat("/images/out.dwarfs"))
    wanted = distributed_tree.listing(redwarfs.open(one_build))
    assert distributed_tree.listing(redwarfs.open(tmp_path / "out")) == wanted


@pytest.fixture
def run(capsys):
    def run(*arguments, code=0):
        assert main(list(map(str, arguments))) == code or code is None
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
    assert error == f"redwarfs.distributed: {target}: File exists (--overwrite replaces it)\n"
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


@pytest.mark.parametrize(
    "option",
    [
        "categorize",
        "categorize=",
        "categorize=true",
        "categorize=pcmaudio,words",
        "categorize=fits,fits",
        "block-size-bits=40",
        "compression=zstd:level=99",
        "order=random",
        "memory-limit=1k",
        "num-workers=many",
        "colour=red",
        "=1",
    ],
)
def test_options_are_checked_when_a_tree_is_divided(tree, tmp_path, run, option):
    plan = tmp_path / "plan"
    _, error = run("plan", plan, tree, tmp_path, "--shards=2", "-o", option, code=1)
    assert error.startswith("redwarfs.distributed: ") and error.count("\n") == 1, error
    assert os.listdir(tmp_path) == []


def test_good_options_can_be_planned(tree, tmp_path, run):
    good = ["categorize=binary,fits,incompressible,pcmaudio", "order=incompressible::none", "memory-limit=1g"]
    run("plan", tmp_path / "plan", tree, tmp_path, "--shards=2", *(f"-o{one}" for one in good))
    run("shard", tmp_path / "plan", 0)


def test_a_plan_is_replaced_only_on_request(tree, tmp_path, run):
    plan = tmp_path / "plan"
    out, _ = run("plan", plan, tree, tmp_path, "--shards=1")
    assert out == "1 part\n"
    out, _ = run("shard", plan, 1)
    assert out == "the plan has 1 part, so part 1 is empty\n"
    before = plan.read_bytes()
    _, error = run("plan", plan, tree, tmp_path, "--shards=2", code=1)
    assert error == f"redwarfs.distributed: {plan}: File exists (--overwrite replaces it)\n"
    assert plan.read_bytes() == before
    out, _ = run("plan", plan, tree, tmp_path, "--shards=2", "--overwrite")
    assert out == "2 parts\n" and plan.read_bytes() != before
    assert plan.stat().st_mode & 0o777 == 0o600
    _, error = run("plan", tmp_path, tree, tmp_path, "--shards=2", "--overwrite", code=1)
    assert error == f"redwarfs.distributed: {tmp_path}: Is a directory\n"
    _, error = run("plan", tmp_path / "none/plan", tree, tmp_path, "--shards=2", code=1)
    assert error == f"redwarfs.distributed: {tmp_path}/none: No such file or directory\n"


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
    (tmp_path / "build.py").write_text(pool.removeprefix("python\n"))
    subprocess.run([sys.executable, "build.py"], **how)
    assert dict(redwarfs.open(tmp_path / "dataset.dwarfs")) == {"a": b"a", "b": b"b"}
