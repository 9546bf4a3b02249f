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

from .._build import Option
from .._merge import MergeResult
from ._merge import merge
from ._partition import By, partition
from ._shard import build_shard


def build(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    shards: int,
    by: By = "similarity",
    client: Client | None = None,
    retries: int = 3,
    level: int = 7,
    overwrite: bool = False,
    repack: int = 0,
    **options: Option,
) -> MergeResult:
    """Builds the image `target` of the directory `source`, by way of `shards` shards in `destination`.

    Each shard is a task of the cluster; that of a worker that is lost is built again elsewhere. `client` is by default
    the present one. `retries` is the number of further attempts if a task fails. This process divides the tree
    and joins the shards. The other arguments are those of `partition`, `build_shard` and `merge`. The shards stay in
    `destination`, so that a second call builds only what has changed.
    """
    client = client or get_client()
    parts = partition(source, shards, by)
    more: dict[str, Any] = {"level": level, **options}
    build_part = partial(build_shard, destination=os.fspath(destination), **more)
    tasks = client.map(build_part, parts, retries=retries, pure=False)
    done = [task.result() for task in tasks]
    return merge(done, target, overwrite=overwrite, repack=repack, **more)
