"""Decoding whole images: each program with its own images."""

from .. import measure as measuring, report, svg
from ..programs import dwarfs_recipe
from ..suite import Job, cost
from .build import SETS, WHO

TITLE = "Decoding"


def measure(suite, number: int) -> None:
    for name in suite.names(SETS):
        for level in suite.levels:
            jobs = [job(suite, name, level, who) for who in suite.who()]
            suite.alternate([job for job in jobs if job], number)


def job(suite, name: str, level: int, who: str):
    recipe = dwarfs_recipe(who, level)
    program = suite.programs.path(f"{who}/dwarfsextract")

    def run():
        image = suite.made(name, recipe)
        return cost(measuring.run([program, "-i", image, "-f", "pax", "--log-level=error"],
                                  want_peak=True))

    return Job(f"decode/{name}/{level}/{who}", run, who == "ours")


def show(results):
    names = results.names("decode/", 1)
    levels = sorted(results.names("decode/", 2), key=int)
    if not names:
        return "", {}
    rows, lines = [], []
    for name in names:
        size = results.facts[f"data/{name}"]["bytes"]
        points = []
        for level in levels:
            ours, theirs = (results.series(f"decode/{name}/{level}/{who}", "cpu") for who in WHO)
            walls = [results.series(f"decode/{name}/{level}/{who}", "wall") for who in WHO]
            ratio = report.paired_ratio(ours, theirs)
            points.append((int(level), ratio))
            rows.append((
                name, level, report.seconds(report.median(ours)),
                report.seconds(report.median(theirs)), report.times(ratio),
                report.speed(size, report.median(ours)), report.speed(size, report.median(theirs)),
                report.times(report.paired_ratio(*walls)),
            ))
        lines.append(svg.Series(name, points))
    text = [
        "`dwarfsextract -f pax` reads, decodes and checks every file, and writes an archive "
        "that is discarded. MB/s are contents of files per second of CPU time.\n",
        "![CPU by level](decode-cpu.svg)\n",
        report.table(("data", "level", "RedwarFS CPU s", "reference CPU s", "×", "RedwarFS MB/s",
                      "reference MB/s", "wall ×"), rows),
    ]
    return "\n".join(text), {"decode-cpu.svg": svg.lines(
        "CPU time of decoding: RedwarFS to the reference", "level", "ratio", lines, mark=1.0,
        ticks=[int(level) for level in levels])}
