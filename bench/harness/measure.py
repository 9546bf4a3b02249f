"""What a piece of work costs: wall time, CPU time of everybody who took part, memory."""

import os
import resource
import select
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")
KERNEL_THREAD = 0x0020_0000
#: Seconds below which the ticks of the kernel say nothing about other work.
SHORTEST = 0.5


class Failed(Exception):
    """A command did not do what it should."""


class TooLong(Failed):
    """A command was ended because it took longer than allowed."""

    def __init__(self, limit: float):
        super().__init__(f"took longer than {limit:g} s")
        #: Seconds that were allowed.
        self.limit = limit


@dataclass
class Usage:
    """Cost of a command, or of several in a pipe."""

    wall: float = 0.0
    cpu: float = 0.0
    #: Sum of the peaks of all processes, bytes.
    peak: int = 0
    output: bytes = field(default=b"", repr=False)
    #: Wall and CPU seconds of the command itself, where `wall` and `cpu` are its own words, and CPU
    #: seconds of the whole machine meanwhile, with what the hypervisor gave to others.
    whole: tuple = (0.0, 0.0, 0.0)

    def others(self, drivers: float = 0.0):
        """CPUs that others kept busy meanwhile, on average; none if the time was too short to tell.

        `drivers` are CPU seconds of processes that took part without being part of the command.
        """
        wall, cpu, busy = self.whole
        return max(0.0, busy - cpu - drivers) / wall if wall >= SHORTEST else None


def _status_kib(pid, key: str) -> int:
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith(key):
                    return int(line.split()[1])
    except (OSError, IndexError, ValueError):
        pass
    return 0


class _Peaks(threading.Thread):
    """Samples the peak memory of processes.

    The kernel's own record for children (`ru_maxrss`) counts what the interpreter used before it
    became another program, so it says nothing about programs that are smaller than Python.
    """

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.peaks = dict.fromkeys(pids, 0)
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(0.01):
            for pid in self.peaks:
                self.peaks[pid] = max(self.peaks[pid], _status_kib(pid, "VmHWM:") << 10)


def turns(rows: list, number: int) -> list:
    """The rows in the order of a round: nobody always comes first, or always after the same one."""
    turn = number % len(rows)
    order = rows[turn:] + rows[:turn]
    return order[::-1] if number % 2 else order


#: Seconds that a command of [`run`] may take; none for no limit.
time_limit = None


@contextmanager
def limited(seconds):
    """Sets a lower limit for commands meanwhile; none leaves the one that is there."""
    global time_limit
    before = time_limit
    if seconds is not None:
        time_limit = seconds if before is None else min(seconds, before)
    try:
        yield
    finally:
        time_limit = before


def machine_busy() -> float:
    """CPU seconds of everything since the start of the machine, also those that were stolen."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, *rest = map(int, file.readline().split()[1:])
    # Interrupts and stolen time; guests are in the time of their processes.
    return (user + nice + system + sum(rest[:3])) * TICK


def descendants(pids) -> list:
    """Living processes that those with the given numbers have started, and what these started."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            parents[int(pid)] = int(fields[1])
        except (OSError, ValueError, IndexError):
            continue
    found, new = set(), set(pids)
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return sorted(found)


def kill_all(pids) -> None:
    """Ends processes, their groups, and whatever they have started in groups of its own.

    The numbers must be those of processes that started a session and were not waited for yet.
    """
    for _ in range(10):
        # A process that is stopped cannot start another one while the list is made.
        for pid in pids:
            _signal(os.killpg, pid, signal.SIGSTOP)
        children = descendants(pids)
        for pid in children:
            _signal(os.kill, pid, signal.SIGSTOP)
        if descendants(pids) == children:
            break
    for pid in children:
        _signal(os.kill, pid, signal.SIGKILL)
    for pid in pids:
        _signal(os.killpg, pid, signal.SIGKILL)


def _signal(send, pid, which) -> None:
    try:
        send(pid, which)
    except (ProcessLookupError, PermissionError):
        pass


def _end(processes, ended) -> None:
    ended.set()
    # Not `Popen.kill`: that would wait for the process, which is what the caller does. What the
    # command has started would keep a mount busy.
    kill_all([process.pid for process in processes if process.returncode is None])


def wait(process, limit=None) -> None:
    """Waits until a process of `subprocess` has ended.

    `Popen.wait` with a limit looks at the process after 0.5, 1.5, 3.5, 7.5 and 15.5 ms, so anything
    short would take one of these times. One that takes longer than `limit` seconds goes on.
    """
    handle = os.pidfd_open(process.pid)
    try:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        if not ended.poll(None if limit is None else limit * 1000):
            raise TooLong(limit)
    finally:
        os.close(handle)
    process.wait()


def run(*commands, cwd=None, capture=False, want_peak=False, env=None) -> Usage:
    """Runs commands as one pipe and waits for all of them.

    The output of the last one is thrown away, or kept with `capture`.
    """
    own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    processes = []
    errors = []
    source = subprocess.DEVNULL
    limit = time_limit
    busy = machine_busy()
    start = time.perf_counter()
    for number, command in enumerate(commands):
        last = number == len(commands) - 1
        error = open(os.memfd_create("stderr"), "w+b")
        errors.append(error)
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=source,
            stdout=subprocess.DEVNULL if last and not capture else subprocess.PIPE,
            stderr=error,
            start_new_session=limit is not None,
        )
        if source is not subprocess.DEVNULL:
            source.close()
        source = process.stdout
        processes.append(process)
    sampler = _Peaks([p.pid for p in processes])
    if want_peak:
        sampler.start()
    too_long = threading.Event()
    if limit:
        timer = threading.Timer(limit, _end, (processes, too_long))
        timer.daemon = True
        timer.start()
    usage = Usage()
    try:
        if capture:
            usage.output = source.read()
            source.close()
        for process in processes:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            usage.cpu += used.ru_utime + used.ru_stime
            if used.ru_maxrss > own_peak:
                usage.peak += used.ru_maxrss << 10
            else:
                usage.peak += sampler.peaks.get(process.pid, 0)
    except BaseException:
        # Interrupted: a group of its own does not hear of that by itself.
        if limit is not None:
            _end(processes, too_long)
        raise
    usage.wall = time.perf_counter() - start
    usage.whole = (usage.wall, usage.cpu, machine_busy() - busy)
    sampler.ended.set()
    if limit:
        timer.cancel()
    for process, command, error in zip(processes, commands, errors):
        error.seek(0)
        text = error.read().decode(errors="replace").strip()
        error.close()
        if too_long.is_set():
            raise TooLong(limit)
        # The next one may have had enough: if it should not have, it says so itself.
        enough = process is not processes[-1] and process.returncode == -signal.SIGPIPE
        if process.returncode != 0 and not enough:
            name = " ".join([os.path.basename(os.fsdecode(command[0])),
                             *(os.fsdecode(word) for word in command[1:6])])
            raise Failed(f"{name}: exit code {process.returncode}: {text[-500:]}")
    return usage


def process_cpu(pid: int) -> float:
    """CPU seconds of a living process.

    Ticks include threads that have ended; the scheduler's nanoseconds are finer but know living
    threads only.
    """
    ticks = 0.0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = (int(fields[11]) + int(fields[12])) * TICK
        fine = 0
        for task in os.listdir(f"/proc/{pid}/task"):
            fine += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        fine /= 1e9
        return fine if fine + 3 * TICK >= ticks else ticks
    except (OSError, ValueError, IndexError):
        return ticks


def cpu_at_rest(pids: list, limit: float = 3.0) -> float:
    """CPU seconds of living processes, after work that goes on in the background has ended."""
    end = time.monotonic() + limit
    before = sum(map(process_cpu, pids))
    while time.monotonic() < end:
        time.sleep(0.04)
        now = sum(map(process_cpu, pids))
        if now - before < 0.002:
            return now
        before = now
    return before


def kernel_threads_cpu() -> dict:
    """CPU seconds of every kernel thread: decompression and loop devices of mounts in the kernel.

    Includes whatever else the kernel does at that time.
    """
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[6]) & KERNEL_THREAD:
                nanoseconds = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
                found[pid] = nanoseconds / 1e9
        except (OSError, ValueError, IndexError):
            continue
    return found


def grown(before: dict, after: dict) -> float:
    """Sum of what was added between two answers of [`kernel_threads_cpu`]."""
    return sum(max(0.0, value - before.get(pid, 0.0)) for pid, value in after.items())


def peak_memory(pids: list) -> int:
    """Most memory that living processes held at any time, each for itself, bytes."""
    return sum(_status_kib(pid, "VmHWM:") << 10 for pid in pids)


def free_memory() -> int:
    """Bytes that processes can have without swapping."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


def shared_memory(pids: list) -> dict:
    """Memory of processes in bytes: `pss` counts shared pages in parts, `anon` is their own."""
    total = {"pss": 0, "anon": 0, "rss": 0, "threads": 0}
    keys = {"Pss": "pss", "Pss_Anon": "anon", "Rss": "rss"}
    for pid in pids:
        total["threads"] += _status_kib(pid, "Threads:")
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                for line in file:
                    key, _, rest = line.partition(":")
                    if key in keys:
                        total[keys[key]] += int(rest.split()[0]) << 10
        except (OSError, ValueError):
            continue
    return total


def drop_caches() -> None:
    """Empties all caches of the kernel (root)."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def warm(path) -> None:
    """Reads a file, so that it is in the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
