"""Builds an image on a Dask cluster.

>>> import redwarfs.distributed.dask
>>> client = distributed.Client("tcp://scheduler:8786")                         # doctest: +SKIP
>>> redwarfs.distributed.dask.build(                                             # doctest: +SKIP
...     "/data/photos", "s3://bucket/photos.dwarfs", "s3://bucket/shards", shards=64, client=client
... )
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from distributed import Client, get_client

from .._build import Option, check_options
from .._merge import MergeResult
from . import _store
from ._merge import merge
from ._partition import By, partition
from ._shard import build_shard


def build(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    shards: int,
    by: By = "directory",
    client: Client | None = None,
    retries: int = 3,
    level: int = 7,
    overwrite: bool = False,
    repack: int = 0,
    **options: Option,
) -> MergeResult:
    """Builds the image `target` of the directory `source`, by way of `shards` shards in `destination`.

    Each shard is a task of the cluster. If a worker is lost, its shard is built again elsewhere, unless the shard has
    cost more workers than `distributed.scheduler.allowed-failures` of the configuration of Dask allows.
    `retries` is the number of further attempts if a task raises an exception. `client` is by default the present one.

    A shard is built by one thread, because Dask runs a task on each thread of a worker. If workers have fewer threads
    than CPUs, pass `num_workers`.

    This process divides the tree and joins the shards. The other arguments are those of `partition`, `build_shard`
    and `merge`. The shards stay in `destination`, so that a second call builds only what has changed. A URL must not
    have a password.
    """
    client = client or get_client()
    for place in (target, destination):
        _store.refuse_password(place)
    _store.check_target(target, overwrite)
    more: dict[str, Any] = {"level": level, **options}
    check_options(level, options)
    destination = _store.absolute(destination)
    parts = partition(source, shards, by)
    build_part = partial(build_shard, destination=destination, **{"num_workers": 1, **more})
    tasks = client.map(build_part, parts, retries=retries, pure=False)
    done = [task.result() for task in tasks]
    return merge(done, target, overwrite=overwrite, repack=repack, **more)
