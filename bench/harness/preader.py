"""Random reads of one file by several processes: what is used where fio is missing.

Arguments: file, bytes per read, processes, reads per process. Prints JSON: `wall` and `cpu` in
seconds, without the start of the interpreter, and the times of a read that half of all (`p50`) and
99 of 100 (`p99`) do not exceed.
"""

import array
import json
import os
import random
import resource
import sys
import time


def read(path: str, size: int, count: int, seed: int) -> array.array:
    """Reads, and returns the seconds of each."""
    blocks = max(1, os.path.getsize(path) // size)
    rng = random.Random(seed)
    offsets = [rng.randrange(blocks) * size for _ in range(count)]
    buffer = bytearray(size)
    times = array.array("d")
    clock = time.perf_counter
    file = os.open(path, os.O_RDONLY)
    for offset in offsets:
        start = clock()
        if os.preadv(file, [buffer], offset) == 0:
            raise OSError(f"nothing to read at {offset}")
        times.append(clock() - start)
    os.close(file)
    return times


def main() -> None:
    path, size, processes, count = sys.argv[1], *map(int, sys.argv[2:5])
    start = time.perf_counter()
    children, files = [], []
    for number in range(processes):
        # Not a pipe, which would be full before its reader comes.
        note = os.memfd_create("times")
        files.append(note)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with open(note, "wb", closefd=False) as file:
                    file.write(read(path, size, count, number).tobytes())
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = array.array("d")
    for note in files:
        times.frombytes(os.pread(note, os.fstat(note).st_size, 0))
    times = sorted(times) or [None]
    found = {"wall": wall, "cpu": used.ru_utime + used.ru_stime}
    for share in (50, 99):
        found[f"p{share}"] = times[min(len(times) - 1, len(times) * share // 100)]
    print(json.dumps(found))
    sys.exit(1 if failed else 0)


main()
