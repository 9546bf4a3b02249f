"""What is done with a mounted tree. Every workload is the same, byte for byte, for everybody."""

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from . import measure, trees
from .measure import Failed, Usage

#: Owners as numbers: names would be looked up in the user database, which takes longer than
#: everything else. Sizes of directories are each file system's own business.
FIND = (
    "-mindepth", "1",
    "(", "-type", "d", "-printf", r"%P %y %m %U %G %Ts\n",
    "-o", "-printf", r"%P %y %m %U %G %Ts %n %s %l\n", ")",
)


@dataclass
class Setup:
    """What all workloads of one tree need."""

    #: Paths below the root, in the order in which they are read.
    files: list
    #: Paths of all entries but the root, sorted.
    paths: list
    #: Path of the largest file below the root, and its size.
    large: tuple
    jobs: int
    reads_4k: int
    reads_64k: int


def tar(mnt, _setup) -> Usage:
    # Without a pipe GNU tar notices that its output goes nowhere and reads nothing.
    return measure.run(["tar", "-C", mnt, "-cf", "-", "."], ["cat"])


def tar_small(mnt, setup) -> Usage:
    largest = b"--exclude=./" + setup.large[0]
    names = ["--anchored", "--no-wildcards", largest, "."]
    return measure.run(["tar", "-C", mnt, "-cf", "-", *names], ["cat"])


def find(mnt, _setup) -> Usage:
    # Without a time zone, each time that is printed costs several looks at /etc/localtime.
    usage = measure.run(["find", mnt, *FIND], capture=True, env={**os.environ, "TZ": "UTC0"})
    lines = sorted(usage.output.split(b"\n"))
    usage.output = hashlib.sha256(b"\n".join(lines)).digest()
    return usage


def _listed(mnt, paths) -> Path:
    lists = Path(os.fspath(mnt) + ".files")
    lists.write_bytes(b"".join(b"./" + path + b"\0" for path in paths))
    return lists


def random_files(mnt, setup) -> Usage:
    return measure.run(["xargs", "-0", "-a", _listed(mnt, setup.files), "cat"], cwd=mnt)


def stat(mnt, setup) -> Usage:
    # Every entry once, by its name: no directory is listed before.
    jobs = ["-r", "-n", "1000", "-P", str(setup.jobs)]
    names = _listed(mnt, setup.paths)
    return measure.run(["xargs", "-0", "-a", names, *jobs, "stat", "-c", "%s %Y"], cwd=mnt)


def parallel(mnt, setup) -> Usage:
    # Every file once, by as many processes as there are jobs.
    names = ["find", ".", "-type", "f", "-print0"]
    return measure.run(names, ["xargs", "-0", "-n", "64", "-P", str(setup.jobs), "cat"], cwd=mnt)


def large(mnt, setup) -> Usage:
    return measure.run([b"cat", os.path.join(os.fsencode(mnt), setup.large[0])])


def fio(path: bytes, how: str, size: int, jobs: int, count: int, total: int) -> Usage:
    """`count` reads of `size` bytes by each of some jobs, of the first `total` bytes of a file.

    `how` is `read` or `randread`.
    """
    usage = measure.run(
        [
            "fio", "--name=r", b"--filename=" + path.replace(b":", rb"\:"), "--readonly",
            f"--rw={how}", f"--bs={size}", "--ioengine=psync", f"--numjobs={jobs}",
            f"--number_ios={count}", f"--size={total // size * size}",
            "--allow_file_create=0", "--randrepeat=1", "--output-format=json",
        ],
        capture=True,
        cwd="/tmp",
    )
    usage.wall, usage.cpu = fio_times(usage.output, jobs * count)
    usage.output = b""
    return usage


def fio_times(output: bytes, wanted: int) -> tuple:
    """Wall and CPU seconds of `wanted` reads in the words of fio: its start takes longer than many
    a row."""
    try:
        jobs = json.loads(output[output.find(b"{"):])["jobs"]
        done = sum(job["read"]["total_ios"] for job in jobs)
        if done != wanted or any(job["error"] for job in jobs):
            raise Failed(f"fio did {done} reads of {wanted}")
        wall = max(job["read"]["runtime"] for job in jobs) / 1000
        cpu = sum((job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
                  for job in jobs)
    except (ValueError, KeyError, TypeError) as why:
        raise Failed(f"fio printed no result: {why!r}") from why
    return wall, cpu


def _fio(mnt, setup, size, count) -> Usage:
    path = os.path.join(os.fsencode(mnt), setup.large[0])
    return fio(path, "randread", size, setup.jobs, count, setup.large[1])


def _reader(mnt, setup, size, count) -> Usage:
    path = os.path.join(os.fsencode(mnt), setup.large[0])
    program = Path(__file__).with_name("preader.py")
    usage = measure.run(
        [sys.executable, "-S", program, path, str(size), str(setup.jobs), str(count)],
        capture=True,
    )
    found = json.loads(usage.output)
    usage.wall, usage.cpu, usage.output = found["wall"], found["cpu"], b""
    return usage


def _random(size, key):
    def run(mnt, setup, with_fio) -> Usage:
        count = min(getattr(setup, key), setup.large[1] // size)
        return (_fio if with_fio else _reader)(mnt, setup, size, count)

    return run


WORKLOADS = {
    "tar": ("`tar cf - MNT \\| cat`", tar),
    "tarsmall": ("`tar` of all but the largest file", tar_small),
    "find": ("`find MNT -printf …`", find),
    "random": ("random small files, whole", random_files),
    "stat": ("`stat` of all names, by several processes", stat),
    "parallel": ("all files, by several `cat` at once", parallel),
    "large": ("`cat` of one large file", large),
    "read4k": ("random reads of 4 KiB in one large file", _random(4 << 10, "reads_4k")),
    "read64k": ("random reads of 64 KiB in one large file", _random(64 << 10, "reads_64k")),
}
NEEDS_LARGE = ("tarsmall", "large", "read4k", "read64k")
#: Those that take the choice between fio and the own reader.
RANDOM = ("read4k", "read64k")


def runner(name: str, fio: bool):
    """A workload as a function of mount point and setup."""
    run = WORKLOADS[name][1]
    if name in RANDOM:
        return lambda mnt, setup: run(mnt, setup, fio)
    return run


def possible(setup: Setup) -> list:
    """Names of the workloads that make sense on a tree."""
    if setup.large[1] >= 16 << 20:
        return list(WORKLOADS)
    return [name for name in WORKLOADS if name not in NEEDS_LARGE]


def prepare(entries: dict, files: int, jobs: int, reads_4k: int, reads_64k: int) -> Setup:
    return Setup(
        files=trees.random_files(entries, files),
        paths=sorted(path for path in entries if path),
        large=trees.largest_file(entries) or (b"", 0),
        jobs=jobs,
        reads_4k=reads_4k,
        reads_64k=reads_64k,
    )
