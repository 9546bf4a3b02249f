"""Builds an image on a Ray cluster.

>>> import redwarfs.distributed.ray
>>> ray.init("auto")                                                             # doctest: +SKIP
>>> redwarfs.distributed.ray.build(                                              # doctest: +SKIP
...     "/data/photos", "s3://bucket/photos.dwarfs", "s3://bucket/shards", shards=64
... )
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from .._build import Option, check_options
from .._merge import MergeResult
from . import _store
from ._merge import merge
from ._partition import By, partition
from ._shard import build_shard

# Checkers of types take this file for that package if it is not installed.
_ray: Any = import_module("ray")


def build(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    shards: int,
    by: By = "directory",
    retries: int = 3,
    cpus: float = 1,
    level: int = 7,
    overwrite: bool = False,
    repack: int = 0,
    **options: Option,
) -> MergeResult:
    """Builds the image `target` of the directory `source`, by way of `shards` shards in `destination`.

    Each shard is a task of the cluster that has `cpus` CPUs; that of a worker that is lost is built again elsewhere,
    up to `retries` times. A shard is built by as many threads as a task has CPUs, unless `num_workers` says otherwise.
    This process divides the tree and joins the shards. The other arguments are those of `partition`,
    `build_shard` and `merge`. The shards stay in `destination`, so that a second call builds only what has
    changed. A URL must not have a password.
    """
    for place in (target, destination):
        _store.refuse_password(place)
    _store.check_target(target, overwrite)
    more: dict[str, Any] = {"level": level, "num_workers": max(1, int(cpus)), **options}
    check_options(level, options)
    destination = _store.absolute(destination)
    parts = partition(source, shards, by)
    task = _ray.remote(build_shard).options(max_retries=retries, num_cpus=cpus)
    done = _ray.get([task.remote(part, destination, **more) for part in parts])
    return merge(done, target, overwrite=overwrite, repack=repack, **more)
