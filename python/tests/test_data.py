"""Data sets, and what the workers of data loaders do with them."""

import collections
import multiprocessing
import pickle
import sys
import types
import warnings

import pytest

import redwarfs
import redwarfs.data

COUNT = 500


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.dwarfs"
    with redwarfs.Writer(path, level=1, block_size_bits=12, order="path") as writer:
        for number in range(COUNT):
            writer.add(f"{number % 10}/{number:05}.txt", f"{number} " * (number % 300))
        writer.add("empty", b"")
    return path


@pytest.fixture
def image(path):
    return redwarfs.open(path, readahead=False)


def first(path, data):
    return (path, len(data))


def test_files_have_numbers(image):
    files = redwarfs.data.Files(image)
    assert len(files) == COUNT + 1 and files.paths == list(image)
    assert files[3] == image[files.paths[3]] and files[-1] == image[files.paths[-1]]
    assert files[2:5] == [files[2], files[3], files[4]]
    numbers = [400, 3, 3, 77]
    assert files.__getitems__(numbers) == [files[number] for number in numbers]
    with pytest.raises(IndexError):
        files[COUNT + 1]
    some = redwarfs.data.Files(image, image.glob("3/*.txt"), first, threads=4)
    assert len(some) == COUNT // 10 and some[0] == ("3/00003.txt", 6)
    assert list(some)[:2] == some[:2]


def order(image, **how):
    epoch = how.pop("epoch", 0)
    shuffled = redwarfs.data.ShuffledFiles(image, transform=first, **how)
    shuffled.set_epoch(epoch)
    found = [path for path, _ in shuffled]
    assert len(found) == len(shuffled)
    return found


def test_each_file_comes_once_in_an_order_that_the_seed_determines(image):
    plain = list(image)
    one = order(image, seed=1)
    assert sorted(one) == sorted(plain) and one != plain
    assert one == order(image, seed=1, threads=3)
    others = [order(image, seed=2), order(image, seed=1, epoch=1), order(image, seed=1, window=2)]
    for other in others:
        assert sorted(other) == sorted(plain) and other != one
    shards = [order(image, seed=1, shard=(number, 3), window=2) for number in range(3)]
    assert sorted(sum(shards, [])) == sorted(plain) and all(shards)
    for wrong in [{"window": 0}, {"shard": (1, 1)}, {"shard": (-1, 2)}]:
        with pytest.raises(ValueError):
            redwarfs.data.ShuffledFiles(image, **wrong)


def test_windows_read_few_blocks_at_a_time(image):
    blocks = dict(zip(image, image._first_blocks(list(image))))
    assert len(set(blocks.values())) > 20 and blocks["empty"] == -1
    window = 4
    found = [blocks[path] for path in order(image, seed=5, window=window)]
    # Once a window is over, its blocks do not come back.
    last = {block: place for place, block in enumerate(found)}
    start = {block: found.index(block) for block in last}
    open_blocks = [
        sum(start[block] <= place <= last[block] for block in last) for place in range(len(found))
    ]
    assert max(open_blocks) <= window
    # In a window of all blocks, neighbours come from anywhere.
    found = [blocks[path] for path in order(image, seed=5, window=10_000)]
    same = sum(a == b for a, b in zip(found, found[1:]))
    most = collections.Counter(found).most_common(1)[0][1]
    assert same < len(found) * most / len(found) * 3


def work(dataset, number, count, epochs, results):
    dataset.shard = (number, count)
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        results.put((epoch, list(dataset)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_four_workers_share_three_epochs(image, method):
    dataset = redwarfs.data.ShuffledFiles(image, transform=first, seed=3, window=3)
    # As a loader does that looks at a sample before it starts its workers.
    list(zip(range(100), dataset))
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        workers = [
            context.Process(target=work, args=(dataset, number, 4, 3, results)) for number in range(4)
        ]
        for worker in workers:
            worker.start()
    epochs = collections.defaultdict(list)
    for _ in range(12):
        epoch, samples = results.get()
        epochs[epoch] += samples
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    wanted = sorted((path, len(image[path])) for path in image)
    assert [sorted(epochs[epoch]) for epoch in range(3)] == [wanted] * 3


def test_data_sets_pickle(image):
    for dataset in (
        redwarfs.data.Files(image, transform=first),
        redwarfs.data.ShuffledFiles(image, transform=first, seed=4),
    ):
        assert list(pickle.loads(pickle.dumps(dataset))) == list(dataset)


def test_the_classes_for_torch(image, monkeypatch):
    """With a stand-in for torch: the package is too large for a test."""
    info = None
    data = types.ModuleType("torch.utils.data")
    data.Dataset = type("Dataset", (), {})
    data.IterableDataset = type("IterableDataset", (data.Dataset,), {})
    data.get_worker_info = lambda: info
    utils = types.ModuleType("torch.utils")
    utils.data = data
    torch = types.ModuleType("torch")
    torch.utils = utils
    for name, module in [("torch", torch), ("torch.utils", utils), ("torch.utils.data", data)]:
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "redwarfs.torch", raising=False)
    import redwarfs.torch

    files = redwarfs.torch.Files(image, transform=first)
    assert isinstance(files, data.Dataset) and files[3] == first(files.paths[3], image[files.paths[3]])
    shuffled = redwarfs.torch.ShuffledFiles(image, transform=first, seed=1, window=2)
    assert isinstance(shuffled, data.IterableDataset)
    whole = list(shuffled)
    parts = []
    for rank in range(2):
        for worker in range(3):
            part = redwarfs.torch.ShuffledFiles(image, transform=first, seed=1, window=2, shard=(rank, 2))
            info = types.SimpleNamespace(id=worker, num_workers=3)
            parts += list(part)
            info = None
    assert sorted(parts) == sorted(whole)
    monkeypatch.delitem(sys.modules, "redwarfs.torch")
