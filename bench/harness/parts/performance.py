"""The measurements that EROFS publishes of itself: data and metadata of a root, and `fio` on one
file, from front to back and at random, and the size of images by that of their clusters."""

import os
import random

from .. import building, cli, measure as measuring, reading, report, svg, workloads
from ..programs import (
    DRIVERS, RECIPES, dwarfs_recipe, erofs_recipe, mounted_title, squashfs_recipe, usable,
)
from ..suite import Job, cost

TITLE = "Kernel file systems: data, metadata, clusters"
TREE, FILE = "root", "assorted"
ROWS = (
    ("RedwarFS", "ours-l1"), ("RedwarFS", "ours-l4"), ("RedwarFS", "ours-l7"),
    ("reference", "reference-l1"), ("reference", "reference-l4"), ("reference", "reference-l7"),
    ("kernel erofs", "erofs-lz4"), ("kernel erofs", "erofs-lz4hc"), ("kernel erofs", "erofs-lzma"),
    ("kernel erofs", "erofs-zstd19"), ("kernel squashfs", "squashfs-lz4"),
    ("kernel squashfs", "squashfs-zstd15-128k"), ("erofsfuse", "erofs-lz4"),
    ("squashfuse_ll", "squashfs-lz4"),
)
#: Shares of the files, and of the reads, at random.
SHARES = (0.07, 1.0)
FEW_READS = 0.05
READ = 4 << 10
#: Sizes of clusters or blocks, KiB.
CLUSTERS = (4, 8, 16, 32, 64, 128)
LIMIT = 600.0


def measure(suite, number: int) -> None:
    for name, uses in ((TREE, _tree_uses), (FILE, _file_uses)):
        if name not in suite.folders:
            continue
        rows = [(driver, which) for driver, which in ROWS
                if usable(suite.programs, DRIVERS[driver]) and _wanted(suite, which)
                and RECIPES[which].commands(suite.programs, "", "")
                and cli.supported(suite.programs, RECIPES[which])]
        for use, run in uses(suite, name).items():
            suite.alternate([_job(suite, name, use, run, *row) for row in rows], number)
    for name in suite.names((TREE, FILE)):
        for kib in CLUSTERS:
            jobs = [_sized(suite, name, kib, who, recipe)
                    for who, recipe in clusters(suite.who(), suite.levels, kib).items()
                    if recipe.commands(suite.programs, "", "")
                    and cli.supported(suite.programs, recipe)]
            suite.alternate(jobs, number, 1)


def _wanted(suite, which: str) -> bool:
    who, _, level = which.partition("-l")
    return who not in ("ours", "reference") or int(level) in suite.levels


def share(paths: list, part: float) -> list:
    """So many of the paths, in random order: the same ones each time."""
    rng = random.Random(7)
    return rng.sample(sorted(paths), max(1, round(part * len(paths)))) if paths else []


def _tree_uses(suite, name) -> dict:
    paths = [path for path, row in suite.entries(name).items() if row[0].startswith("-")]

    def tar(where, chosen=None):
        def run(mnt):
            words = ["tar", "-C", mnt, "-cf", where, "."]
            if chosen is not None:
                lists = suite.work / "files.list"
                lists.write_bytes(b"".join(b"./" + path + b"\0" for path in chosen))
                words = ["tar", "-C", mnt, "--null", "--no-recursion", "-cf", where, "-T", lists]
            # Into /dev/null, tar writes headers and reads no data.
            return measuring.run(words, *([["cat"]] if where == "-" else []))
        return run

    found = {"data": tar("-"), "metadata": tar("/dev/null")}
    for part in SHARES:
        chosen = share(paths, part)
        found[f"data-{part:.0%}"] = tar("-", chosen)
        found[f"metadata-{part:.0%}"] = tar("/dev/null", chosen)
    return found


def _file_uses(suite, name) -> dict:
    if not suite.fio:
        return {}
    size = (suite.folders[name] / name).stat().st_size

    def fio(how, part):
        return lambda mnt: workloads.fio(
            os.path.join(os.fsencode(mnt), os.fsencode(name)), how, READ, 1,
            int(size // READ * part), size)

    return {"fio-sequential": fio("read", 1), "fio-random": fio("randread", 1),
            f"fio-random-{FEW_READS:.0%}": fio("randread", FEW_READS)}


def _job(suite, name, use, run, driver, which) -> Job:
    def measured():
        image = suite.made(name, RECIPES[which])
        if image is None:
            raise measuring.Failed("there is no such image")
        row = reading.Row(DRIVERS[driver], which, image)
        return reading.measure_row(suite.programs, row, lambda mnt, _: run(mnt), None, suite.work)

    ours = driver == "RedwarFS"
    return Job(f"performance/{name}/{use}/{driver} {which}", measured, ours,
               None if ours else LIMIT)


def clusters(who, levels, kib: int) -> dict:
    """Settings by name with clusters or blocks of a size."""
    bits = (kib << 10).bit_length() - 1
    found = {
        "erofs lz4hc": erofs_recipe(f"erofs-lz4hc-{kib}k", "-zlz4hc,12", f"-C{kib << 10}"),
        "erofs lzma": erofs_recipe(f"erofs-lzma-{kib}k", "-zlzma,9", f"-C{kib << 10}"),
        "erofs zstd 19": erofs_recipe(f"erofs-zstd-{kib}k", "-zzstd,19", f"-C{kib << 10}"),
        "squashfs lz4hc": squashfs_recipe(f"squashfs-lz4hc-{kib}k", "-comp", "lz4", "-Xhc", "-b",
                                          f"{kib}K"),
        "squashfs zstd 19": squashfs_recipe(f"squashfs-zstd-{kib}k", "-comp", "zstd",
                                            "-Xcompression-level", "19", "-b", f"{kib}K"),
        "squashfs xz": squashfs_recipe(f"squashfs-xz-{kib}k", "-comp", "xz", "-b", f"{kib}K"),
    }
    for one in who:
        for level in (1, 4, 7):
            if level in levels:
                found[f"{'RedwarFS' if one == 'ours' else one} -l{level}"] = dwarfs_recipe(
                    one, level, f"-S{bits}")
    return found


def _sized(suite, name, kib, who, recipe) -> Job:
    def run():
        usage, size = building.build(suite.programs, recipe, suite.folders[name],
                                     suite.work / "build")
        return cost(usage, size=size)

    return Job(f"performance/{name}/size-{kib}/{who}", run, who.startswith("RedwarFS"))


# --- the report -----------------------------------------------------------------------------------


NAMES = {
    "data": "all data", "metadata": "all metadata", "fio-sequential": "4 KiB, sequential",
    "fio-random": "4 KiB, random",
}


def label(use: str) -> str:
    """`data-7%` for people."""
    if use in NAMES:
        return NAMES[use]
    what, _, part = use.rpartition("-")
    return f"{NAMES[what]}, {part}" if what in NAMES else f"{what}, {part} at random"


def _title(who: str) -> str:
    driver, _, recipe = who.rpartition(" ")
    return mounted_title(driver, recipe)


def _median(results, key, field="wall"):
    return report.median(results.series(key, field))


def _uses(results, name) -> list:
    return [use for use in results.names(f"performance/{name}/", 2) if not use.startswith("size-")]


def _used(results, name, plots) -> list:
    uses = _uses(results, name)
    if not uses:
        return []
    programs = list(dict.fromkeys(
        who for use in uses for who in results.names(f"performance/{name}/{use}/", 3)))
    plots[f"performance-{name}.svg"] = svg.bars(
        f"Wall time: {name}", "s", [label(use) for use in uses],
        {_title(who): [_median(results, f"performance/{name}/{use}/{who}") for use in uses]
         for who in programs}, log_y=True)
    rows = [(_title(who), "", *(
        " / ".join(report.seconds(_median(results, f"performance/{name}/{use}/{who}", field))
                   for field in ("wall", "cpu")) for use in uses)) for who in programs]
    return [f"![wall time](performance-{name}.svg)\n",
            report.table(("mounted", "", *map(label, uses)), rows)]


def _sizes(results, name, plots) -> list:
    sizes = sorted((int(use.removeprefix("size-")) for use in
                    results.names(f"performance/{name}/", 2) if use.startswith("size-")))
    if not sizes:
        return []
    programs = list(dict.fromkeys(
        who for kib in sizes for who in results.names(f"performance/{name}/size-{kib}/", 3)))
    found = {who: [_median(results, f"performance/{name}/size-{kib}/{who}", "size")
                   for kib in sizes] for who in programs}
    plots[f"clusters-{name}.svg"] = svg.lines(
        f"Size by cluster: {name}", "KiB of a cluster or block", "size, MB",
        [svg.Series(who, [(kib, size / 1e6) for kib, size in zip(sizes, row) if size])
         for who, row in found.items()], log_x=True, ticks=sizes)
    rows = [(who, "", *map(report.megabytes, row)) for who, row in found.items()]
    return [f"![size by cluster](clusters-{name}.svg)\n",
            report.table(("size, MB", "", *(f"{kib} KiB" for kib in sizes)), rows)]


def show(results):
    names = results.names("performance/", 1)
    if not names:
        return "", {}
    text, plots = [
        "These are the measurements of EROFS' own performance page. Each starts on a fresh mount "
        "with the image in the page cache. Cells with two numbers are wall / CPU seconds.\n"], {}
    for name in names:
        text += [f"### {name}, mounted\n", *_used(results, name, plots)]
        text += [f"### {name}, by size of clusters\n", *_sizes(results, name, plots)]
    return "\n".join(text), plots
