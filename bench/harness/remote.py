"""Ways to read an image in an object store, and tables of what they took."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

from . import objects, report
from .measure import Failed
from .programs import RECIPES as ALL
from .programs import Recipe, _first_line, dwarfs_recipe

#: Images by the ending of their objects. Blocks of 1 MiB are what the manual recommends for small reads over a slow line.
RECIPES = {
    "app.dwarfs": dwarfs_recipe("ours", 7, "-S20"),
    "app.sqfs": ALL["squashfs-zstd15-128k"],
    "stream.dwarfs": dwarfs_recipe("ours", 1, "-S20"),
    "small.dwarfs": dwarfs_recipe("ours", 7, "-S20"),
}
#: What is measured of most ways.
PARTS = ("mount", "first", "ls", "python", "random", "all")
#: The same for ways that get the whole image first: the rest would say the same again.
WHOLE = ("first", "random", "all")
#: Workloads whose time is that of the line.
LIGHT = ("mount", "first", "small")
#: Files that a workload reads, for programs that can be told.
HOT = {"python": "python/**", "random": "group-*/**", "all": "**"}


@dataclass(frozen=True)
class Row:
    """A way: commands that mount in turn, or run to their end if they do not mention a mount point.

    `{mnt0}` is the mount point of the first command, `{tmp}` a directory that is new for each session, `{image}` the
    name of the image without its ending, `{hot}` a pattern of the files that will be read, and `{hints}` a file of hints about
    them.
    """

    name: str
    commands: tuple
    workloads: tuple
    #: The program that must be there, and packages that have it.
    needs: str = ""


def rows(arguments, images, dwarfs: str) -> list:
    """All ways; the first one is the one that others are compared with."""
    url = f"s3://{objects.BUCKET}/{{image}}"
    cache = arguments.work / "servers.cache"
    ours = (dwarfs, f"{url}.dwarfs", "{mnt0}", "-f")
    inside = (dwarfs, "{mnt0}/{image}.dwarfs", "{mnt1}", "-f")
    squashfs = ("squashfuse_ll", "-f", "{mnt0}/{image}.sqfs", "{mnt1}")
    rclone = ("rclone", "mount", f"STORE:{objects.BUCKET}", "{mnt0}", "--read-only", "--cache-dir", "{tmp}")
    cached = (*rclone, "--vfs-cache-mode", "full")
    s3fs = ("s3fs", objects.BUCKET, "{mnt0}", "-f", "-o", f"url={objects.ADDRESS},use_path_request_style,ro",
            "-o", f"endpoint={objects.REGION}")
    local = images["app.dwarfs"].parent
    found = [
        Row("RedwarFS", (ours,), (*PARTS, "stream", "small")),
        Row("RedwarFS, --prefetch", ((*ours, "--prefetch", "{hot}"),), tuple(HOT)),
        Row("RedwarFS, hints", ((*ours, "-o", "hints_file={hints}"),), tuple(HOT)),
        Row("RedwarFS, second start", ((*ours, "-o", f"cache_dir={cache}"),), PARTS),
        Row("RedwarFS, offline", ((*ours, "-o", f"cache_dir={cache},offline"),), PARTS),
        Row("RedwarFS, local image", ((dwarfs, f"{local}/{{image}}.dwarfs", "{mnt0}", "-f"),), PARTS),
        Row("download, then RedwarFS", (
            ("curl", *objects.SIGNED, "-o", "{tmp}/image", f"{objects.ADDRESS}/{objects.BUCKET}/{{image}}.dwarfs"),
            (dwarfs, "{tmp}/image", "{mnt1}", "-f")), (*WHOLE, "python", "stream", "small")),
        Row("rclone, RedwarFS in it", (rclone, inside), ("mount", "first", "ls", "python", "small"), "rclone"),
        Row("rclone with its cache, RedwarFS in it", (cached, inside), (*PARTS, "stream", "small"), "rclone"),
        Row("s3fs, RedwarFS in it", (s3fs, inside), (*WHOLE, "stream", "small"), "s3fs"),
    ]
    if "app.sqfs" in images:
        found += [
            Row("rclone with its cache, squashfuse_ll in it", (cached, squashfs), PARTS, "rclone"),
            Row("s3fs, squashfuse_ll in it", (s3fs, squashfs), WHOLE, "s3fs"),
            Row("ratarmount, SquashFS", (("ratarmount", "-f", f"{url}.sqfs", "{mnt0}"),), ("first",), "ratarmount"),
        ]
    return found


def recording(images, dwarfs: str) -> Row:
    """A local mount that records hints."""
    local = images["app.dwarfs"].parent
    return Row("recording", ((dwarfs, f"{local}/{{image}}.dwarfs", "{mnt0}", "-f", "-o", "hints_file={hints}"),), ())


class Session:
    """Everything that a row has mounted; nothing of it outlasts [`close`]."""

    alive = []

    def __init__(self, row: Row, directory: Path):
        self.row, self.directory = row, directory / "servers"
        self._processes, self._mounts = [], []
        shutil.rmtree(self.directory / "tmp", ignore_errors=True)
        (self.directory / "tmp").mkdir(parents=True)
        Session.alive.append(self)

    def mount(self, image: str, hot: str = "*", hints: Path = Path("none"), limit: float = 60) -> Path:
        """Runs the commands for an image of which files that match `hot` will be read, of which there may be hints; returns the
        last mount point once its root could be listed."""
        places = {f"mnt{n}": self.directory / f"mnt{n}" for n in range(len(self.row.commands))}
        places["tmp"] = self.directory / "tmp"
        for place in places.values():
            place.mkdir(exist_ok=True)
        for number, command in enumerate(self.row.commands):
            point = places[f"mnt{number}"]
            words = [os.fspath(word) for word in command]
            mounts = any(f"{{mnt{number}}}" in word for word in words)
            words = [word.format(**places, image=image, hot=hot, hints=hints) for word in words]
            self._run(words, point if mounts else None, limit)
        os.listdir(point)
        return point

    def _run(self, words: list, point, limit: float) -> None:
        # Not a pipe: nobody would read it.
        errors = open(self.directory / "log", "w+b")
        with errors:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                                       cwd=self.directory / "tmp", start_new_session=True)
            self._processes.append(process)
            end = time.monotonic() + limit
            while not (point and os.path.ismount(point)):
                if process.poll() is not None and (point or process.returncode != 0):
                    errors.seek(0)
                    text = errors.read().decode(errors="replace").strip()
                    raise Failed(f"{words[0]}: exit code {process.returncode}: {text[-200:]}")
                if process.returncode == 0:
                    return
                if time.monotonic() > end:
                    raise Failed(f"{words[0]}: has not mounted after {limit:.0f} s")
                time.sleep(0.0005)
            self._mounts.append(point)

    def close(self) -> None:
        """Unmounts everything, the last one first, and ends what does not end by itself."""
        for point in reversed(self._mounts):
            if subprocess.run(["umount", point], stderr=subprocess.DEVNULL).returncode != 0:
                subprocess.run(["umount", "-l", point], stderr=subprocess.DEVNULL)
        for process in reversed(self._processes):
            try:
                process.wait(5 if self._mounts else 0)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        # What came late, after its program had been given up.
        left = Path("/proc/self/mounts").read_bytes()
        for number in range(len(self.row.commands)):
            point = self.directory / f"mnt{number}"
            if os.fsencode(f" {point} ") in left:
                subprocess.run(["umount", "-l", point], stderr=subprocess.DEVNULL)
        if self in Session.alive:
            Session.alive.remove(self)


@atexit.register
def _clean_up():
    for session in list(Session.alive):
        session.close()


def copy_python(to: Path) -> None:
    """This interpreter with its library, without what a program does not need."""
    (to / "bin").mkdir(parents=True)
    (to / "lib").mkdir()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy2(os.path.realpath(sys.executable), to / "bin" / version)
    shared = Path(sysconfig.get_config_var("LIBDIR") or "/") / (sysconfig.get_config_var("LDLIBRARY") or "?")
    if shared.is_file() and ".so" in shared.name:
        for path in shared.parent.glob(shared.name + "*"):
            shutil.copy2(path, to / "lib" / path.name, follow_symlinks=False)
    ignored = shutil.ignore_patterns("site-packages", "dist-packages", "test", "tests", "idlelib", "config-*", "*.a")
    shutil.copytree(sysconfig.get_path("stdlib"), to / "lib" / version, symlinks=True, ignore=ignored,
                    ignore_dangling_symlinks=True)


def versions() -> dict:
    """Versions of the other programs."""
    asked = {"versitygw": "--version", "rclone": "version", "s3fs": "--version", "curl": "--version",
             "squashfuse_ll": "--version", "ratarmount": "--version"}
    return {name: _first_line([name, option]) for name, option in asked.items() if shutil.which(name)}


# --- kept results ---------------------------------------------------------------------------------


def merged(kept: dict, results: dict, sizes: dict, rate: float, congestion: str) -> dict:
    """Kept results, in which those of what was measured again are replaced. Another line, or images of another size, are
    refused: the ways would have had other work."""
    if (kept["rate"], kept["congestion"]) != (rate, congestion):
        raise Failed(f"kept results are of {kept['rate']:.0f} Mbit/s with {kept['congestion']}: "
                     f"cannot add some of {rate:.0f} Mbit/s with {congestion}")
    for name, size in sizes.items():
        before = kept["sizes"].get(name, size)
        if abs(size - before) * 100 > before:
            raise Failed(f"kept results are of {name} with {before:,} bytes: cannot add some of {size:,} bytes")
    new = {key: [{name: field for name, field in value.items() if name != "methods"} for value in values]
           for key, values in results.items()}
    return {**kept, "sizes": {**kept["sizes"], **sizes}, "measurements": {**kept["measurements"], **new}}


def kept_text(kept: dict) -> str:
    """Kept results as JSON with a line for each way, so that changes can be read."""
    def lines(value):
        if not all(isinstance(found, list) for found in value.values()):
            return json.dumps(value, indent=1)
        rows = (f" {json.dumps(key)}: {json.dumps(found, separators=(',', ':'))}" for key, found in value.items())
        return "{\n" + ",\n".join(rows) + "\n}"

    parts = (f"{json.dumps(key)}: " + (lines(value) if isinstance(value, dict) else json.dumps(value))
             for key, value in kept.items())
    return "{\n" + ",\n".join(parts) + "\n}\n"


# --- tables ---------------------------------------------------------------------------------------


def total(value: dict, workload: str):
    """Seconds from the start of the first command to the end of the workload."""
    if "seconds" not in value:
        return None
    return value["seconds"] if workload in ("mount", "first", "small") else value["mounted"] + value["seconds"]


def cell(values: list, workload: str, rounds: int) -> str:
    """The median time, with the number of measurements if there are less than `rounds`, or why there is none."""
    times = [total(value, workload) for value in values]
    median = report.median(times)
    if median is None:
        over = [value["over"] for value in values if "over" in value]
        return f"> {over[0]:.0f}" if over else "failed" if values else "–"
    few = sum(time is not None for time in times)
    return report.seconds(median) + (f" ({few})" if few < rounds else "")


def middle(values: list, field: str):
    return report.median([value.get(field) for value in values])


def round_trips(results: dict, workload: str, row: str, delays: list):
    """By how many round trips the time grows from the shortest to the longest delay."""
    first, last = min(delays), max(delays)
    ends = [report.median([total(value, workload) for value in results.get(f"{delay}/{workload}/{row}", [])])
            for delay in (first, last)]
    if None in ends or first == last:
        return None
    return (ends[1] - ends[0]) / ((last - first) / 1000)


def share(values: list, size: int, rate: float):
    """How fast the image came from the start of the first command, as a share of the speed of the line."""
    return report.median([size / total(value, "stream") / (rate * 125_000) for value in values if "seconds" in value])


def tables(results: dict, delays: list, workloads: list, titles: dict, sizes: dict, rate: float) -> str:
    """Times for each delay, what they grow by, and what passed the line; ways are rows, workloads columns."""
    names = list(dict.fromkeys(key.split("/", 2)[2] for key in results))
    names.sort(key=lambda name: not name.startswith("RedwarFS"))
    rounds = max(map(len, results.values()), default=0)

    def values(delay, workload, name):
        return results.get(f"{delay}/{workload}/{name}", [])

    def matrix(title, text, chosen):
        lines = [[f"**{name}**" if name == names[0] else name, *(text(workload, name) for workload in chosen)]
                 for name in names]
        kept = [line for line in lines if any(word != "–" for word in line[1:])]
        return f"\n## {title}\n\n" + report.table(("way", *chosen), kept)

    def passed(delay, workload, name):
        found = values(delay, workload, name)
        requests, received = middle(found, "requests"), middle(found, "to_client")
        if requests is None:
            return "–"
        return f"{requests:.0f} / " + (report.megabytes(received) if received >= 10_000 else "0")

    def trips(workload, name):
        number = round_trips(results, workload, name, delays)
        return "–" if number is None else f"{number:.1f}".replace("-0.0", "0.0")

    parts = ["Sizes: " + ", ".join(f"{suffix} {size:,}" for suffix, size in sizes.items())
             + f" bytes. The line has {rate:.0f} Mbit/s. Times are from the start of the first command.\n\n"
             + "".join(f"* {workload}: {titles[workload]}\n" for workload in workloads)]
    for delay in delays:
        parts.append(matrix(f"Seconds, {delay} ms", lambda w, n, delay=delay: cell(values(delay, w, n), w, rounds), workloads))
    light = [workload for workload in workloads if workload in LIGHT]
    if len(delays) > 1 and light:
        parts.append(matrix("Round trips: growth of the time with the delay", trips, light))
    counted = delays[len(delays) // 2]
    parts.append(matrix(f"Requests / MB received, {counted} ms", lambda w, n: passed(counted, w, n), workloads))
    if "stream" in workloads:
        lines = []
        for name in names:
            found = [share(values(delay, "stream", name), sizes["stream.dwarfs"], rate) for delay in delays]
            if any(found):
                lines.append([f"**{name}**" if name == names[0] else name, *map(report.times, found)])
        parts.append("\n## Share of the speed of the line, stream\n\n"
                     + report.table(("way", *(f"{delay} ms" for delay in delays)), lines))
    loads = [value["load"] for found in results.values() for value in found if "load" in value]
    if loads:
        parts.append(f"\nLoad of the machine before each measurement: median {report.median(loads):.1f}, "
                     f"{min(loads):.1f} to {max(loads):.1f}.\n")
    return "".join(parts)
