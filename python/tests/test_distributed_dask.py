"""`redwarfs.distributed.dask` with several worker processes, one of which is killed."""

import os
import signal
import sys

import pytest

import distributed_tree
import redwarfs
import redwarfs.distributed

pytest.importorskip("distributed")

import distributed  # noqa: E402

import redwarfs.distributed.dask  # noqa: E402


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree") / "tree"
    root.mkdir()
    distributed_tree.make(root)
    return root


@pytest.fixture(scope="module")
def wanted(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "whole"
    redwarfs.build(tree, path, level=3)
    return distributed_tree.listing(redwarfs.open(path))


@pytest.fixture
def client():
    with (
        distributed.LocalCluster(
            n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def build_or_die(marker, partition, destination, **options):
    """Is killed in the middle of the third shard, the first time."""
    if partition.number == 2:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
            # The build asks about each entry.
            real = redwarfs.distributed._shard.build
            redwarfs.distributed._shard.build = lambda *arguments, **more: real(
                *arguments, **{**more, "select": kill}
            )
    return redwarfs.distributed.build_shard(partition, destination, **options)


@pytest.mark.parametrize("where", ["directory", "store"])
def test_a_killed_worker_costs_its_shard(tree, wanted, store, client, tmp_path, monkeypatch, where):
    if where == "store":
        target, destination = f"{store}/out.dwarfs", f"{store}/shards"
    else:
        target, destination = tmp_path / "out.dwarfs", tmp_path / "shards"
    marker = str(tmp_path / "marker")
    import functools

    import cloudpickle

    # Workers cannot import this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    fails_once = functools.partial(build_or_die, marker)
    monkeypatch.setattr(redwarfs.distributed.dask, "build_shard", fails_once)
    before = set(client.run(os.getpid).values())
    how = {"shards": 6, "client": client, "level": 3, "num_workers": 1}
    result = redwarfs.distributed.dask.build(tree, target, destination, **how)
    assert os.path.exists(marker)
    client.wait_for_workers(3)
    # One process of the three is another one.
    assert len(before - set(client.run(os.getpid).values())) == 1
    if where == "store":
        import fsspec

        objects = fsspec.filesystem("s3")
        objects.invalidate_cache()
        names = objects.ls("bucket/shards", detail=False)
        (tmp_path / "out.dwarfs").write_bytes(objects.cat("bucket/out.dwarfs"))
    else:
        names = os.listdir(destination)
    assert len(names) == 6 and all(name.endswith(".dwarfs") for name in names)
    image = redwarfs.open(tmp_path / "out.dwarfs")
    assert distributed_tree.listing(image) == wanted
    assert result.image_size == (tmp_path / "out.dwarfs").stat().st_size
    # A second call builds nothing. The client is the present one.
    monkeypatch.undo()
    del how["client"]
    again = redwarfs.distributed.dask.build(tree, target, destination, overwrite=True, **how)
    assert again == result


def test_an_entry_that_cannot_be_packed_ends_the_build(client, tmp_path, monkeypatch):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a").write_text("a")
    real = redwarfs.distributed.dask.partition

    def then_it_goes_away(*arguments):
        parts = real(*arguments)
        (tmp_path / "tree/a").unlink()
        return parts

    monkeypatch.setattr(redwarfs.distributed.dask, "partition", then_it_goes_away)
    with pytest.raises(FileNotFoundError):
        redwarfs.distributed.dask.build(
            tmp_path / "tree", tmp_path / "out", tmp_path / "shards", shards=2, retries=0
        )
    assert not (tmp_path / "out").exists()


def test_places_are_checked_before_work(tree, client, tmp_path, monkeypatch):
    def build(target, destination):
        return redwarfs.distributed.dask.build(tree, target, destination, shards=2, level=1)

    for target, destination in [("out", "ftp://a:b@host/x"), ("ftp://a:b@host/x", "shards")]:
        with pytest.raises(ValueError, match="configuration of fsspec"):
            build(target, destination)
    monkeypatch.chdir(tmp_path)
    os.mkdir("taken")
    with pytest.raises(IsADirectoryError):
        build("taken", "shards")
    assert not os.path.exists("shards")
    # Relative places are those of this process. Workers have one thread for a shard, and files of neighbours.
    seen = []
    real = redwarfs.distributed.dask.partition
    monkeypatch.setattr(
        redwarfs.distributed.dask, "partition", lambda *given: seen.append(given) or real(*given)
    )
    client.run(os.chdir, "/")
    build("out", "shards")
    assert len(os.listdir("shards")) == 2 and os.path.isfile("out")
    assert [given[2] for given in seen] == ["directory"]


def test_jobs_run_at_the_same_time(tree, client, tmp_path):
    """The same shard, built by all workers at once: they do not disturb each other."""
    (part,) = redwarfs.distributed.partition(tree, 1)
    tasks = [
        client.submit(
            redwarfs.distributed.build_shard, part, str(tmp_path), level=3, pure=False, workers=[worker]
        )
        for worker in client.scheduler_info()["workers"]
    ]
    shards = client.gather(tasks)
    assert len({shard.path for shard in shards}) == 1 and len(os.listdir(tmp_path)) == 1
    assert redwarfs.open(shards[0].path).verify() == []


def test_options_are_checked_before_the_tree_is_divided(tmp_path):
    for options, error in [
        ({"categorize": "true"}, redwarfs.OptionError),
        ({"colour": "red"}, TypeError),
        ({"level": 10}, ValueError),
    ]:
        with pytest.raises(error):
            redwarfs.distributed.dask.build(
                tmp_path / "missing", tmp_path / "out", tmp_path, shards=2, client=object(), **options
            )
