"""Data sets for training: the files of an image one by one, by number, or shuffled.

The classes need no other package. `redwarfs.torch` has the same ones for PyTorch.

>>> import io, redwarfs, redwarfs.data
>>> target = io.BytesIO()
>>> with redwarfs.Writer(target) as writer:
...     for number in range(5):
...         writer.add(f"{number % 2}/{number}.txt", str(number))
>>> image = redwarfs.open(target)
>>> samples = redwarfs.data.Files(image, transform=lambda path, data: (path[0], int(data)))
>>> len(samples), samples[1]
(5, ('0', 2))
>>> shuffled = redwarfs.data.ShuffledFiles(image, seed=7)
>>> sorted(int(data) for data in shuffled)
[0, 1, 2, 3, 4]

An image can be used by the workers of a data loader with every start method: a forked worker opens it
anew from the same descriptor, and a spawned one from its path.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ._image import Image

Transform = Callable[[str, bytes], Any]

# Files that are read together.
_TOGETHER = 64


class Files(Sequence[Any]):
    """The files of an image by number: a map-style data set.

    `paths` are the files, by default all regular files of the image in the order of a walk. A sample is
    `transform(path, bytes)`, or the bytes without `transform`. Batches (`__getitems__`) are read in the
    order of the blocks of the image, on `threads` threads.
    """

    def __init__(
        self,
        image: Image,
        paths: Iterable[str] | None = None,
        transform: Transform | None = None,
        *,
        threads: int = 1,
    ) -> None:
        self.image = image
        self.paths = list(image if paths is None else paths)
        self.transform = transform
        self.threads = threads

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return self.__getitems__(range(*number.indices(len(self.paths))))
        path = self.paths[number]
        return self._sample(path, self.image.read(path))

    def __getitems__(self, numbers: Iterable[int]) -> list[Any]:
        """The samples with these numbers."""
        paths = [self.paths[number] for number in numbers]
        contents = self.image.read_many(paths, self.threads)
        return [self._sample(path, data) for path, data in zip(paths, contents)]

    def _sample(self, path: str, data: bytes) -> Any:
        return data if self.transform is None else self.transform(path, data)


class ShuffledFiles:
    """The files of an image in a random order that reads each block about once: an iterable data set.

    How random it is: the blocks of the image are shuffled, and divided into windows of `window` blocks.
    All files of a window are shuffled together. So a file is equally likely in each window, and at each
    place in its window, but neighbours come from `window` blocks. A larger window mixes more, and needs
    `window` times the block size as cache (`cache_size` of `redwarfs.open`). With at least as many as the
    image has blocks, the order is uniformly random. Files that need several blocks count for the first.

    `seed` and the epoch (`set_epoch`) determine the order, for any number of readers. `shard` is
    `(number, count)`: a reader with it takes each `count`-th window. So shards have no file in common, and
    together all files, but their lengths differ. The other arguments are those of `Files`.
    """

    def __init__(
        self,
        image: Image,
        paths: Iterable[str] | None = None,
        transform: Transform | None = None,
        *,
        seed: int = 0,
        window: int = 16,
        shard: tuple[int, int] = (0, 1),
        threads: int = 1,
    ) -> None:
        if window < 1:
            raise ValueError("a window has at least one block")
        self.files = Files(image, paths, transform, threads=threads)
        self.seed = seed
        self.window = window
        self.shard = _checked(shard)
        self.epoch = 0
        blocks: dict[int, list[int]] = {}
        for number, block in enumerate(image._first_blocks(list(self.files.paths))):
            blocks.setdefault(block, []).append(number)
        self._blocks = [blocks[block] for block in sorted(blocks)]

    def __len__(self) -> int:
        return sum(len(window) for window in self._windows(self._shard()))

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next iterations."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for window in self._windows(self._shard()):
            for first in range(0, len(window), _TOGETHER):
                yield from self.files.__getitems__(window[first : first + _TOGETHER])

    def _shard(self) -> tuple[int, int]:
        return self.shard

    def _windows(self, shard: tuple[int, int]) -> Iterator[list[int]]:
        """The numbers of the files in each window of a shard, in their order."""
        number, count = shard
        blocks = list(range(len(self._blocks)))
        random.Random(f"{self.seed}/{self.epoch}").shuffle(blocks)
        starts = range(0, len(blocks), self.window)
        for position, start in enumerate(starts):
            if position % count != number:
                continue
            files = [
                file for block in blocks[start : start + self.window] for file in self._blocks[block]
            ]
            random.Random(f"{self.seed}/{self.epoch}/{position}").shuffle(files)
            yield files


def _checked(shard: tuple[int, int]) -> tuple[int, int]:
    number, count = shard
    if not 0 <= number < count:
        raise ValueError(f"no such shard: {shard}")
    return number, count
