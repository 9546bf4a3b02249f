"""Random reads of one file by several processes: what is used where fio is missing.

Arguments: file, bytes per read, processes, reads per process. Prints JSON: `wall` and `cpu` in
seconds, without the start of the interpreter.
"""

import json
import os
import random
import resource
import sys
import time


def read(path: str, size: int, count: int, seed: int) -> None:
    blocks = max(1, os.path.getsize(path) // size)
    rng = random.Random(seed)
    offsets = [rng.randrange(blocks) * size for _ in range(count)]
    buffer = bytearray(size)
    file = os.open(path, os.O_RDONLY)
    for offset in offsets:
        if os.preadv(file, [buffer], offset) == 0:
            raise OSError(f"nothing to read at {offset}")
    os.close(file)


def main() -> None:
    path, size, processes, count = sys.argv[1], *map(int, sys.argv[2:5])
    start = time.perf_counter()
    children = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                read(path, size, count, number)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"wall": wall, "cpu": used.ru_utime + used.ru_stime}))
    sys.exit(1 if failed else 0)


main()
