"""One page on ten programs and three data sets, with the rows in which another program leads."""

from dataclasses import dataclass

from . import report, svg
from .measure import Failed
from .parts import build, peers
from .programs import RECIPES
from .store import Results

SETS = ("interpreters", "root", "web")
#: CPUs that others may keep busy while something is timed, on average.
QUIET = 0.15
#: Load before what is too short to tell: the runs before are part of it.
LOAD = 3.0
PLOT = "bench/comparison/size-and-file.svg"
MARKS = ("<!-- comparison -->", "<!-- /comparison -->")


@dataclass(frozen=True)
class Program:
    """A row of the tables."""

    family: str
    title: str
    #: Name of the recipe of its images.
    recipe: str
    #: Driver of its mounts; none for archives.
    driver: str = ""

    @property
    def ours(self) -> bool:
        return self.family == "RedwarFS"

    def made(self, name: str) -> str:
        """Key of the results of making its image of a data set."""
        who, _, level = self.recipe.partition("-l")
        if who in build.WHO:
            return build.key(name, level, who)
        return f"peers/{name}/{self.recipe}"


PROGRAMS = (
    Program("RedwarFS", "RedwarFS -l1", "ours-l1", "RedwarFS"),
    Program("RedwarFS", "RedwarFS -l4", "ours-l4", "RedwarFS"),
    Program("RedwarFS", "RedwarFS -l7 (default)", "ours-l7", "RedwarFS"),
    Program("RedwarFS", "RedwarFS -l9", "ours-l9", "RedwarFS"),
    Program("DwarFS", "DwarFS -l7 (default)", "reference-l7", "reference"),
    Program("SquashFS", "SquashFS, zstd 22, kernel", "squashfs-zstd22", "kernel squashfs"),
    Program("SquashFS", "SquashFS, xz, kernel", "squashfs-xz", "kernel squashfs"),
    Program("EROFS", "EROFS, lz4hc, kernel", "erofs-lz4hc", "kernel erofs"),
    Program("EROFS", "EROFS, lzma, kernel", "erofs-lzma", "kernel erofs"),
    Program("EROFS", "EROFS, zstd 22, deduplicated, kernel", "erofs-zstd22", "kernel erofs"),
    Program("wimlib", "wimlib, LZX", "wim-lzx", "wimlib"),
    Program("wimlib", "wimlib, LZMS, solid", "wim-solid"),
    Program("tar and zstd", "tar, zstd --ultra -22 --long=31", "tar-zstd22-long"),
    Program("tar and xz", "tar, xz -9", "tar-xz"),
    Program("lrzip", "lrzip", "lrzip"),
    Program("zpaq", "zpaq -m3", "zpaq-m3"),
    Program("7z", "7z -mx9", "7z"),
)
#: Families of programs by how the names of recipes begin.
FAMILY_OF_PREFIX = {
    "squashfs": "SquashFS", "erofs": "EROFS", "wim": "wimlib", "tar-zstd": "tar and zstd",
    "tar-xz": "tar and xz", "tar-gz": "tar and gzip", "lrzip": "lrzip", "zpaq": "zpaq", "7z": "7z",
}


def _others() -> tuple:
    shown = {program.recipe for program in PROGRAMS}
    return tuple(Program(family, _titled(family, RECIPES[peer].title), peer)
                 for peer in peers.PEERS for start, family in FAMILY_OF_PREFIX.items()
                 if peer not in shown and peer.startswith(start))


def _titled(family: str, title: str) -> str:
    """The title of a recipe with the name of its program as the tables spell it."""
    word, _, rest = title.partition(" ")
    return f"{family} {rest}" if word == family.lower() else title


#: Settings that have no row in the tables. They can lead nevertheless.
OTHERS = _others()
#: Measures: words, unit, and how a value is shown.
MEASURES = {
    "size": ("size", "MB", report.megabytes),
    "cpu": ("build, CPU time", "s", report.seconds),
    "wall": ("build, wall time", "s", report.seconds),
    "peak": ("build, peak memory", "MiB", report.mebibytes),
    "mount": ("mount", "s", report.seconds),
    "file": ("mount and read one file", "s", report.seconds),
    "all": ("`grep -r`", "s", report.seconds),
    "unpack": ("unpack", "s", report.seconds),
}
#: In which measures the times of a quiet machine count.
TIMES = ("cpu", "wall", "mount", "file", "all", "unpack")

_SOLID = "the archive is one stream: a match may be anywhere before, but no file can be read alone"
_SMALL = "its settings do less: a weaker code, or no search for repeated data in other files"
_STREAM = "it is a stream with one small window, whatever the data"
_KERNEL = "the kernel reads the tables in place, and starts no process"
_DIRECT = "the kernel decodes into the page cache: no request goes to a process and back"
_TAR = {
    "size": _SOLID, "cpu": "one pass without reordering or a hash of each file",
    "wall": "one pass without reordering or a hash of each file", "peak": _STREAM,
    "mount": "", "file": "the file is near the start of the archive",
    "unpack": "everything is unpacked in the order in which it is stored",
}
#: Why another program leads, by family and measure.
REASONS = {
    "DwarFS": {
        "size": "it places versions of large libraries side by side, which spreads a directory "
                "over more blocks",
        "cpu": "it searches less for repeated data at this level",
        "wall": "its stages keep more threads busy at this level",
        "peak": "it keeps fewer blocks in work",
        "mount": "its metadata are compressed with a code that decodes faster",
        "file": "its metadata are compressed with a code that decodes faster",
        "all": "its cache holds more blocks at once",
        "unpack": "it decodes more blocks at once",
    },
    "SquashFS": {
        "size": "small blocks that are coded for themselves suit data without repetition",
        "cpu": _SMALL, "wall": _SMALL, "peak": "its blocks have at most 1 MiB",
        "mount": _KERNEL, "file": _DIRECT, "all": _DIRECT,
        "unpack": _SMALL,
    },
    "EROFS": {
        "size": "tails and fragments of all files share one code stream",
        "cpu": _SMALL, "wall": _SMALL, "peak": "its clusters have at most 1 MiB",
        "mount": _KERNEL, "file": _DIRECT, "all": _DIRECT,
        "unpack": _SMALL,
    },
    "wimlib": {
        "size": "its solid blocks of 64 MiB are coded with models that adapt to each kind of data",
        "cpu": _SMALL, "wall": _SMALL, "peak": "it keeps one chunk for each thread",
        "mount": "its metadata are one small resource, and it starts no thread pool",
        "file": "it decodes one chunk for one file",
        "all": "it decodes chunk after chunk without a cache between",
        "unpack": "it decodes chunk after chunk without a cache between",
    },
    "tar and zstd": _TAR,
    "tar and gzip": _TAR,
    "tar and xz": _TAR,
    "lrzip": {
        "size": "its window is the whole archive, which has to be unpacked as a whole",
        "cpu": "repeated data over any distance are left out before the slow code runs",
        "wall": "repeated data over any distance are left out before the slow code runs",
        "peak": "it maps its input instead of keeping it", "mount": "",
        "file": "the file is near the start of the archive",
        "unpack": "what is left after the removal of repeated data is small",
    },
    "zpaq": {
        "size": "context mixing predicts each bit: reading takes as long as writing",
        "cpu": "fragments that are there already are not coded again",
        "wall": "it codes as many blocks at once as there are CPUs",
        "peak": "its blocks have 16 to 64 MiB", "mount": "",
        "file": "only the block with the file is decoded",
        "unpack": "fragments that are there several times are decoded once",
    },
    "7z": {
        "size": "one solid block, in a window of 256 MiB",
        "cpu": "it sorts by name only, and searches in one window",
        "wall": "it sorts by name only, and searches in one window", "peak": _STREAM,
        "mount": "", "file": "the file is in a small solid block",
        "unpack": "everything is unpacked in the order in which it is stored",
    },
}
#: Reasons of single recipes, some for one data set.
OWN_REASONS = {
    ("lrzip-zpaq", "size"): "context mixing predicts each bit, and its window is the whole "
                            "archive: one file takes as long as everything",
    ("7z", "size", "root"): "its filter for code of x86, BCJ2, which xz does not have; without a "
                            "filter (`-mf=off`), the archive has 66.33 MB",
    ("7z", "size", "web"): "one solid block, in a window of 256 MiB, which is nearly the whole "
                           "tree; a block of RedwarFS has 64 MiB. Filters change nothing: "
                           "with `-mf=off`, the archive has the same size",
}


def reason(program: Program, measure: str, name: str) -> str:
    """Why a program leads in a measure of a data set."""
    key = program.recipe, measure
    return (OWN_REASONS.get((*key, name)) or OWN_REASONS.get(key)
            or REASONS[program.family][measure])


INTRODUCTION = """\
Ten programs make an image or archive of the same trees, and give the data back. The tables are a choice;
[Another page](bench/comparison/report.md) has all settings, rounds and ratios, and every single value.
[bench/README.md](../bench/README.md) has the commands that repeat them.
"""

MORE = """## More tables

These measure other things than the tables above. In some of their rows, other programs lead.

* [Data and metadata](bench/comparison/report.md#kernel-file-systems-data-metadata-clusters), as EROFS publishes them: in order, at
  random and `fio`, beside EROFS and SquashFS in the kernel.
* [Large files, sources, small files](bench/README.md#large-blocks-and-uncompressed-blocks): beside archives that are mounted,
  a pass-through, EROFS and btrfs.
* [One day out of 32 days of logs](bench/README.md#one-directory-of-many), by the size of blocks.
* [Audio and images](bench/media.md): beside `flac`, `fpack` and 7z.
* [Memory of 1, 10 and 100 mounts](bench/README.md#many-mounts).
* [Many small files](bench/README.md#many-files): up to a million.
"""
NOT_FOR = """\
## When not to use RedwarFS

* **One archive that is unpacked as a whole, and the last percent of size counts.** Solid archives have one window over
  all data. RedwarFS keeps the files of a directory in few blocks, so that one file can be read alone.
* **The root of a system without user space.** RedwarFS is a FUSE driver. EROFS and SquashFS are in the kernel, start
  before any process, and work with `dm-verity`.
* **Many random reads with microseconds between them, in files that no cache holds.** Each read that the page cache
  does not answer goes to a process and back.
* **Few data without repetition.** With small trees of different, compressed files, all programs make images of about
  the same size. Then the program that is installed everywhere is the better choice.
* **Data that change.** Images are read-only. An append adds a snapshot; it is no file system to write to.
"""

CROMFS = """\
## Cromfs

[Cromfs](https://bisqwit.iki.fi/source/cromfs.html) cannot be had in a form that builds on current systems, so it is not in
the tables. The README of DwarFS publishes these figures, measured on another machine with an early version of DwarFS:

| 20 versions of Perl, 612 MiB | bytes | wall time | CPU time |
|---|--:|--:|--:|
| Cromfs, blocks of 16 MiB | 35,328,512 | 27 min 39 s | 289 min |
| DwarFS, blocks of 16 MiB | 25,175,016 | 33 s | 3 min 47 s |
"""


def quiet(round_: dict) -> bool:
    """Whether the times of a round were taken on a machine without much other work."""
    others = round_.get("others")
    if others is not None:
        return others <= QUIET
    return round_.get("load", LOAD + 1) <= LOAD


class Comparison:
    """What the page shows of raw results."""

    def __init__(self, raw: dict, draft: bool = False):
        self.raw, self.results, self.draft = raw, Results(raw), draft
        self.old = frozenset(raw.get("earlier", [])) | frozenset(raw.get("mixed", []))
        # RedwarFS and the reference alone are no comparison with other programs.
        found = [(name, p.family) for name in SETS for p in PROGRAMS
                 if self.value(p, name, "size") is not None]
        compared = {name for name, family in found if family not in ("RedwarFS", "DwarFS")}
        wanted = compared or {name for name, _ in found}
        self.names = [name for name in SETS if name in wanted]
        if not self.names:
            raise Failed(f"none of {', '.join(SETS)} was measured, so there is no comparison")
        if self.old and not draft:
            used = sorted(self.old & set(self._keys()))
            if used:
                raise Failed(f"results of an earlier build: {', '.join(used[:5])}"
                             f"{', …' if len(used) > 5 else ''}; measure them again")

    def _keys(self):
        for name in self.names:
            for program in PROGRAMS + OTHERS:
                for measure in MEASURES:
                    yield from (key for key, _ in self._places(program, name, measure))

    def _places(self, program: Program, name: str, measure: str) -> list:
        """Keys and fields whose medians add up to a measure."""
        if measure in ("size", "cpu", "wall", "peak"):
            return [(program.made(name), measure)]
        if measure == "unpack":
            return [(f"after/{name}/unpack/{program.recipe}", "wall")]
        if program.driver:
            who = f"{program.driver} {program.recipe}"
            return {
                "mount": [(f"after/{name}/mount/{who}", "mount")],
                "file": [(f"after/{name}/file/{who}", "mount"),
                         (f"after/{name}/file/{who}", "wall")],
                "all": [(f"after/{name}/grep-all/{who}", "wall")],
            }[measure]
        return [(f"after/{name}/pick/{program.recipe}", "wall")] if measure == "file" else []

    def value(self, program: Program, name: str, measure: str):
        """A median; none of nothing, or of times that other work has disturbed."""
        total = 0.0
        places = self._places(program, name, measure)
        for key, field in places:
            rounds = self.raw["results"].get(key, [])
            if measure in TIMES and not self.draft:
                rounds = [one for one in rounds if quiet(one)]
            median = report.median([one.get(field) for one in rounds])
            if median is None:
                return None
            total += median
        return total if places else None

    def raw_size(self, name: str):
        """Bytes of a data set."""
        return self.results.facts.get(f"data/{name}", {}).get("bytes")

    def table(self, name: str, measures=tuple(MEASURES)) -> str:
        """All programs with one data set; the best value of each measure is bold."""
        best = {measure: min((value for program in PROGRAMS if (
            value := self.value(program, name, measure)) is not None), default=None)
            for measure in measures}
        rows = []
        for program in PROGRAMS:
            found = {measure: self.value(program, name, measure) for measure in measures}
            if found.get("size") is None:
                continue
            cells = []
            for measure, value in found.items():
                cell = MEASURES[measure][2](value)
                cells.append(f"**{cell}**" if value is not None and value == best[measure]
                             else cell)
            rows.append((program.title, "", *cells))
        heads = (f"{MEASURES[measure][0]}, {MEASURES[measure][1]}" for measure in measures)
        return report.table(("program", "", *heads), rows)

    def leads(self) -> list:
        """Where another program is better than RedwarFS at every shown level: data, measure,
        program, its value, our best one, and the reason. Of each program, the best setting."""
        found = []
        for name in self.names:
            for measure in MEASURES:
                ours = [(value, program) for program in PROGRAMS if program.ours
                        and (value := self.value(program, name, measure)) is not None]
                if not ours:
                    continue
                least, level = min(ours, key=lambda pair: pair[0])
                best = {}
                for program in PROGRAMS + OTHERS:
                    value = None if program.ours else self.value(program, name, measure)
                    # What takes less than a digit of the table is no lead.
                    if value is None or value >= least or not _differ(value, least):
                        continue
                    if program.family not in best or value < best[program.family][0]:
                        best[program.family] = value, program
                found += [(name, measure, program, value, level, least,
                           reason(program, measure, name))
                          for value, program in best.values()]
        return found

    def leads_table(self) -> str:
        rows = []
        for name, measure, program, value, level, least, why in self.leads():
            words, unit, style = MEASURES[measure]
            by = f"{least / value:.2f} times" if value else "–"
            rows.append((f"{name}: {words}", f"{program.title}: {why}",
                         f"{style(value)} {unit}", f"{style(least)} {unit} ({level.title})", by))
        if not rows:
            return "No other program leads in any row.\n"
        return report.table(("row", "who leads, and why", "its value", "best of RedwarFS",
                             "RedwarFS needs"), rows)

    def plot(self) -> str:
        """Size against the time until one file was read: to the left and below is better."""
        name = self.names[0]
        total = self.raw_size(name)
        series = {}
        for program in PROGRAMS:
            size, file = (self.value(program, name, measure) for measure in ("size", "file"))
            if size is not None and file is not None:
                series.setdefault(program.family, []).append((
                    file, 100 * size / total if total else size / 1e6,
                    program.title.partition("-")[2].partition(" ")[0] if program.ours else ""))
        unit = "% of the data" if total else "MB"
        return svg.lines(
            f"Size, and time until one file is read: {name}", "s to mount and read one file",
            f"size, {unit}",
            [svg.Series(family, [(x, y) for x, y, _ in points], [text for *_, text in points],
                        joined=family == "RedwarFS") for family, points in series.items()],
            log_x=True, log_y=True)

    def page(self):
        """Markdown, and plots by path beside it."""
        text = ["# RedwarFS and other programs\n", INTRODUCTION]
        text.append(report.about(self.raw["environment"]))
        text.append("MB are millions of bytes. *Mount* ends when the root can be listed. *Mount and "
                    "read one file* starts with a fresh mount; archives are asked for the file. "
                    "*`grep -r`* reads everything through a mount, *unpack* writes it to memory. "
                    "Images are in the page cache. The best value of each column is bold. A value "
                    "is missing if the program cannot do it, took too long, or was disturbed by "
                    "other work.\n")
        if self.draft:
            text.append("**Draft: times were measured beside other work, or with earlier builds.**\n")
        plots = {PLOT: self.plot()}
        text.append(f"![size, and time until one file is read]({PLOT})\n")
        for name in self.names:
            fact = self.results.facts.get(f"data/{name}")
            text.append(f"## {name}\n")
            if fact:
                text.append(f"{fact['title'][0].upper()}{fact['title'][1:]}: {fact['files']:,} "
                            f"files, {report.megabytes(fact['bytes'])} MB.\n")
            text.append(self.table(name))
            if left := self._left_out(name):
                text.append(left)
        text += ["## Where another program leads\n",
                 "Rows in which a program is better than RedwarFS at each of the levels above, with the best of all settings in "
                 "[the other page](bench/comparison/report.md). The reasons follow from how the programs work. Only "
                 "those with numbers were measured. A program that was not measured is in no row.\n",
                 self.leads_table(), MORE, NOT_FOR, CROMFS]
        return "\n".join(text), plots

    def _left_out(self, name: str) -> str:
        """What was tried and failed or took too long, and what was not tried: neither is worse or
        better than the rows."""
        skipped = {**self.raw.get("missing", {}), **self.raw["skipped"]}
        lines, untried = [], []
        for program in PROGRAMS:
            keys = {key for measure in MEASURES for key, _ in self._places(program, name, measure)}
            failed = sorted(keys & set(skipped))
            lines += [f"SKIPPED: {program.title} ({key.split('/')[0]}): {skipped[key]}\n"
                      for key in failed]
            if program.made(name) not in failed and self.value(program, name, "size") is None:
                untried.append(program.title)
        if untried:
            lines.append("Not measured:\n\n" + "".join(f"* {title}\n" for title in untried))
        return "\n".join(lines)

    def short(self) -> str:
        """The table of the README: the first data set."""
        name = self.names[0]
        fact = self.results.facts.get(f"data/{name}")
        about = f"{fact['title'][0].upper()}{fact['title'][1:]}, {report.megabytes(fact['bytes'])} " \
                "MB:\n\n" if fact else ""
        table = self.table(name, ("size", "cpu", "mount", "file", "all", "unpack"))
        left = self._left_out(name)
        return about + table + (f"\n{left}" if left else "")


def _differ(value: float, other: float) -> bool:
    return abs(value - other) > 0.005 * max(value, other)


def replaced(text: str, table: str) -> str:
    """A text with another table between the marks."""
    start, end = MARKS
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise Failed(f"the README needs one line {start} and after it one line {end}")
    before, after = text.partition(start)[0], text.partition(end)[2]
    return f"{before}{start}\n{table}{end}{after}"
