"""Data sets of PyTorch over the files of an image; needs the package torch.

    from torch.utils.data import DataLoader
    import redwarfs, redwarfs.torch

    image = redwarfs.open("train.dwarfs", readahead=False)

    def picture(path, data):
        return decode_jpeg(data), label_of(path)

    loader = DataLoader(redwarfs.torch.Files(image, transform=picture), batch_size=64, shuffle=True,
                        num_workers=4)
    loader = DataLoader(redwarfs.torch.ShuffledFiles(image, transform=picture, seed=1), batch_size=64,
                        num_workers=4)

The classes and their arguments are those of `redwarfs.data`. The workers of a `DataLoader` share the
windows of a `ShuffledFiles`: each file comes once in an epoch.
"""

from __future__ import annotations

from typing import Any

import torch.utils.data as _data  # pyright: ignore[reportMissingImports]

from . import data as _ours


class Files(_ours.Files, _data.Dataset):  # type: ignore[misc]
    """The files of an image by number, as `redwarfs.data.Files`."""


class ShuffledFiles(_ours.ShuffledFiles, _data.IterableDataset):  # type: ignore[misc]
    """The files of an image in a random order, as `redwarfs.data.ShuffledFiles`.

    A worker takes its part of the shard. For several ranks, pass `shard=(rank, world_size)`.
    """

    def _shard(self) -> tuple[int, int]:
        number, count = self.shard
        worker: Any = _data.get_worker_info()
        if worker is None:
            return number, count
        return number * worker.num_workers + worker.id, count * worker.num_workers
