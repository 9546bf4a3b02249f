"""Builds an image on many machines: each packs a part of the tree, and one joins the parts.

>>> import os, tempfile, redwarfs, redwarfs.distributed
>>> work = tempfile.TemporaryDirectory()
>>> source, target = os.path.join(work.name, "tree"), os.path.join(work.name, "tree.dwarfs")
>>> os.mkdir(source)
>>> for number in range(4):
...     with open(os.path.join(source, f"{number}.txt"), "w") as file:
...         _ = file.write(f"the number {number}")
>>> parts = redwarfs.distributed.partition(source, 2)
>>> shards = [redwarfs.distributed.build_shard(part, work.name, level=4) for part in parts]
>>> result = redwarfs.distributed.merge(shards, target)
>>> redwarfs.open(target)["3.txt"]
b'the number 3'

`partition` divides the tree, `build_shard` is a function that any engine can call anywhere, and `merge` joins
what it has built. `redwarfs.distributed.dask` and `redwarfs.distributed.ray` do all three with these engines,
and `python -m redwarfs.distributed` does them in the jobs of a batch system.

All machines need the tree under the same path, and it must not change meanwhile. Shards and the image go to a directory
outside of the tree, or to a store that fsspec knows, such as `s3://bucket/shards`.
"""

from ._merge import merge
from ._partition import BY, Partition, partition
from ._shard import Shard, build_shard

__all__ = ["BY", "Partition", "Shard", "build_shard", "merge", "partition"]
