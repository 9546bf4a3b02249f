"""Damaged images raise exceptions of the package, and nothing else."""

import random

import redwarfs
from conftest import VECTORS


def use(data):
    image = redwarfs.open(data, cache_size=1 << 20)
    image.info()
    image.verify()
    for path in list(image)[:50]:
        try:
            image.stat(path)
            if image.stat(path).st_size < 1 << 20:
                image.read(path)
        except OSError:
            pass
    for directory, directories, names in image.walk(onerror=lambda e: None):
        for name in names[:20]:
            image.lstat(f"{directory}/{name}")


def test_changed_bytes(image_path):
    rng = random.Random(7)
    originals = [
        (VECTORS / "../fixtures/compat/compat-v0.2.0.dwarfs").read_bytes(),
        (VECTORS / "../fixtures/compat/compat-v0.9.10.dwarfs").read_bytes(),
        image_path.read_bytes(),
    ]
    failed = 0
    for number in range(1500):
        data = bytearray(originals[number % 3])
        for _ in range(rng.choice([1, 1, 2, 8])):
            # Mostly in the metadata, which is at the end.
            at = rng.choice([rng.randrange(len(data)), len(data) - 1 - rng.randrange(2000)])
            data[at] = rng.choice([0, 0xFF, data[at] ^ (1 << rng.randrange(8)), rng.randrange(256)])
        if number % 5 == 0:
            del data[rng.randrange(len(data)) :]
        try:
            use(data)
        except OSError:
            failed += 1
        except (MemoryError, OverflowError):
            failed += 1
    assert failed > 500


def test_bytes_without_meaning():
    rng = random.Random(8)
    for _ in range(300):
        data = b"DWARFS\x02\x05" * rng.randrange(2) + rng.randbytes(rng.randrange(3000))
        try:
            use(bytearray(data))
        except OSError:
            pass
