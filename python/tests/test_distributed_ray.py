"""`redwarfs.distributed.ray` with several worker processes, one of which is killed. `scripts/test-ray` runs it: Ray is
too large for the other tests."""

import os
import signal

import pytest

import distributed_tree
import redwarfs
import redwarfs.distributed

ray = pytest.importorskip("ray", reason="Ray is not installed (scripts/test-ray)")

import redwarfs.distributed.ray  # noqa: E402


def test_a_killed_worker_costs_its_shard(tmp_path, monkeypatch):
    tree, shards, target = tmp_path / "tree", tmp_path / "shards", tmp_path / "out.dwarfs"
    tree.mkdir()
    distributed_tree.make(tree)
    redwarfs.build(tree, tmp_path / "whole", level=3)
    marker = str(tmp_path / "marker")

    def build_or_die(partition, destination, **options):
        import redwarfs.distributed._shard as module

        if partition.number == 2:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                # The build asks about each entry.
                real = module.build
                module.build = lambda *arguments, **more: real(
                    *arguments, **{**more, "select": lambda *_: os.kill(os.getpid(), signal.SIGKILL)}
                )
        return module.build_shard(partition, destination, **options)

    monkeypatch.setattr(redwarfs.distributed.ray, "build_shard", build_or_die)
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        result = redwarfs.distributed.ray.build(tree, target, shards, shards=6, level=3)
        assert os.path.exists(marker)
        assert len(os.listdir(shards)) == 6 and result.image_size == target.stat().st_size
        wanted = distributed_tree.listing(redwarfs.open(tmp_path / "whole"))
        assert distributed_tree.listing(redwarfs.open(target)) == wanted
        # A second call builds nothing.
        monkeypatch.undo()
        again = redwarfs.distributed.ray.build(
            tree, target, shards, shards=6, level=3, overwrite=True
        )
        assert again == result
        (tree / "v0/project0-0/README").unlink()
        with pytest.raises(FileExistsError):
            redwarfs.distributed.ray.build(tree, target, shards, shards=6, level=3)
    finally:
        ray.shutdown()
