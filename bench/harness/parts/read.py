"""Reading through mounts, and extraction to memory."""

import os
from pathlib import Path

from .. import extraction, reading, report, svg, workloads
from ..measure import Failed
from ..programs import RECIPES
from ..suite import Job, cost

TITLE = "Reading"
SETS = ("mixed", "web")
EXTRACTED = ("mixed", "web", "root", "versions", "wheels")
#: Who gets every round; all others are shown for orientation.
ALWAYS = ("RedwarFS", "reference", "unsquashfs")
DEST = Path("/dev/shm")
#: Seconds for a workload on an archive: some are read from the start for each file.
ARCHIVE_LIMIT = 120.0


def measure(suite, number: int) -> None:
    for name in suite.names(SETS):
        setup = workloads.prepare(suite.entries(name), suite.random_files, suite.jobs, 4000, 1000)
        for family in reading.FAMILIES:
            rows = _rows(suite, name, family)
            for workload in workloads.possible(setup):
                _in_turn(suite, [_job(suite, name, family, workload, row, setup) for row in rows],
                         number)
    for name in suite.names(EXTRACTED):
        for family in extraction.FAMILIES:
            jobs = [_extract(suite, name, family, *row) for row in extraction.FAMILIES[family]]
            _in_turn(suite, [job for job in jobs if job], number)


def _in_turn(suite, jobs, number) -> None:
    """Round `number`, in which others than those of `ALWAYS` take part only at first."""
    if number >= suite.peer_rounds:
        jobs = [job for job in jobs if job.key.rpartition("/")[2] in ALWAYS]
    suite.alternate(jobs, number)


def _rows(suite, name, family) -> list:
    """The rows of a family whose mounts show the same tree."""
    rows = []
    for driver in reading.FAMILIES[family]:
        what = f"read/{name}/{family}/{driver[0]}"
        if what in suite.store.skipped:
            continue
        try:
            found = reading.rows_of(suite.programs, suite.work / "images" / name,
                                    suite.folders[name], (driver,))
            for row in found:
                suite.store.fact(f"same/{name}/{family}/{row.name}",
                                 lambda r=row: _same(suite, name, r))
        except Failed as why:
            if driver[0] == "RedwarFS":
                raise
            suite.skip(what, why)
            continue
        rows += found
    return rows


def _same(suite, name, row) -> bool:
    reading.verify(suite.programs, row, suite.entries(name), suite.work)
    return True


def _job(suite, name, family, workload, row, setup) -> Job:
    run = workloads.runner(workload, suite.fio)

    def measure_row():
        return reading.measure_row(suite.programs, row, run, setup, suite.work)

    archive = family == "archives" and row.name != "RedwarFS"
    return Job(f"read/{name}/{family}/{workload}/{row.name}", measure_row, row.name == "RedwarFS",
               ARCHIVE_LIMIT if archive else None)


def _extract(suite, name, family, program, which, *pipe):
    dest = DEST / f"redwarfs-report-{os.getpid()}"
    image = suite.image(name, RECIPES[which])
    lines = extraction.commands(suite.programs, pipe, image, dest)
    if not lines:
        return None

    def run():
        suite.made(name, RECIPES[which])
        key = f"extracted/{name}/{family}/{program}"
        entries = None if key in suite.store.data["facts"] else suite.entries(name)
        usage = extraction.extract(lines, dest, entries)
        suite.store.fact(key, lambda: True)
        return cost(usage)

    return Job(f"extract/{name}/{family}/{program}", run, program == "RedwarFS")


def _rows_shown(results, prefix, fields) -> list:
    """A row for each program below `prefix`, with ratios of RedwarFS to it."""
    found = []
    place = prefix.count("/")
    names = results.names(prefix, place)
    for name in names:
        cells = [f"**{name}**" if name == "RedwarFS" else name]
        for field, style in fields:
            series = results.series(prefix + name, field)
            cells.append(style(report.median(series)))
            if field in ("wall", "cpu"):
                base = results.series(prefix + "RedwarFS", field)
                cells.append("" if name == "RedwarFS"
                             else report.times(report.paired_ratio(base, series)))
        found.append(cells)
    return found


def _bars(results, title, prefixes, field, label) -> str:
    names = list(dict.fromkeys(
        name for _, prefix in prefixes for name in results.names(prefix, prefix.count("/"))
    ))
    return svg.bars(title, label, [group for group, _ in prefixes], {
        name: [report.median(results.series(prefix + name, field)) for _, prefix in prefixes]
        for name in names
    }, log_y=True)


READ_FIELDS = (("wall", report.seconds), ("cpu", report.seconds), ("server", report.seconds),
               ("peak", report.mebibytes))
READ_HEAD = ("workload", "file system", "wall s", "×", "CPU s", "×", "of it the driver",
             "driver peak MiB")
EXTRACT_FIELDS = READ_FIELDS[:2] + READ_FIELDS[3:]
EXTRACT_HEAD = ("images", "program", "wall s", "×", "CPU s", "×", "peak MiB")


def show(results):
    text, plots = [], {}
    for name in results.names("read/", 1):
        for family in results.names(f"read/{name}/", 2):
            base = f"read/{name}/{family}/"
            kinds = results.names(base, 3)
            groups = [(kind, f"{base}{kind}/") for kind in kinds]
            plot = f"read-{name}-{family}.svg"
            plots[plot] = _bars(results, f"CPU of reader and driver: {name}, {family}", groups,
                                "cpu", "CPU s")
            rows = [(workloads.WORKLOADS[kind][0], *cells)
                    for kind, prefix in groups
                    for cells in _rows_shown(results, prefix, READ_FIELDS)]
            text += [f"### {name}, {family}\n", f"![CPU of reading]({plot})\n",
                     report.table(READ_HEAD, rows)]
    for name in results.names("extract/", 1):
        groups = [(family, f"extract/{name}/{family}/")
                  for family in results.names(f"extract/{name}/", 2)]
        plot = f"extract-{name}.svg"
        plots[plot] = _bars(results, f"CPU of extraction: {name}", groups, "cpu", "CPU s")
        rows = [(family, *cells) for family, prefix in groups
                for cells in _rows_shown(results, prefix, EXTRACT_FIELDS)]
        text += [f"### {name}, extraction to memory\n", f"![CPU of extraction]({plot})\n",
                 report.table(EXTRACT_HEAD, rows)]
    if text:
        text.insert(0, (
            "Each row is a fresh mount with the image in the page cache. `fast` is LZ4 in "
            "blocks of 1 MiB (EROFS 64 KiB). `medium` is level 4 beside the defaults of SquashFS "
            "with zstd, and the EROFS of `fast`. `small` is zstd 22 in blocks of 16 MiB (SquashFS "
            "1 MiB, EROFS its best codec). `archives` are other programs that mount archives. "
            "Ratios are RedwarFS to the other program: below 1, RedwarFS takes less. The "
            "drivers of the reference read the images of RedwarFS.\n"))
    return "\n".join(text), plots
