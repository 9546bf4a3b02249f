"""The whole report: Markdown and plots from raw results."""

from . import report
from .measure import Failed
from .parts import after, build, decode, files, logs, peers, performance, read
from .store import Results

PARTS = {"build": build, "decode": decode, "logs": logs, "files": files, "read": read,
         "peers": peers, "after": after, "performance": performance}


def data_sets(results: Results) -> str:
    rows = [
        (name.removeprefix("data/"), fact["title"], f"{fact['entries']:,}", f"{fact['files']:,}",
         report.megabytes(fact["bytes"]))
        for name, fact in results.facts.items() if name.startswith("data/")
    ]
    return report.table(("data", "what", "entries", "files", "MB"), rows)


def rounds(results: Results, raw: dict) -> str:
    """How often things were measured, which may differ when a run was cut short."""
    counts = {}
    for key, values in raw["results"].items():
        counts.setdefault(key.split("/")[0], set()).add(len(values))
    shown = ", ".join(
        f"{part}: {min(n)}" + (f" to {max(n)}" if len(n) > 1 else "") for part, n in counts.items()
    )
    return f"Rounds ({shown})."


def earlier(keys: list, which: str = "an earlier build") -> str:
    """What was measured with earlier programs; levels or other last words are joined."""
    places = {}
    for key in keys:
        part, *rest = key.split("/")
        # The last word says who.
        place = "/".join([part, *rest[:-2]])
        places.setdefault(place, []).extend(rest[-2:-1])
    shown = "; ".join(
        f"{place} {', '.join(dict.fromkeys(words))}".strip() for place, words in places.items()
    )
    return f"Measured with {which} of RedwarFS: {shown}.\n"


def assemble(raw: dict):
    """Markdown, and the plots by file name."""
    if not any(raw["results"].values()):
        raise Failed("nothing was measured, so there is no report")
    results = Results(raw)
    body, plots = [], {}
    for module in PARTS.values():
        text, found = module.show(results)
        if text:
            body.append(f"## {module.TITLE}\n\n{text}")
            plots.update(found)
    skipped = {**raw.get("missing", {}), **raw["skipped"]}
    head = [
        "# RedwarFS compared with other programs\n",
        "`bench/report` makes this report and repeats the measurements: see "
        "[bench/README.md](../../bench/README.md).\n",
        report.about(raw["environment"]),
        f"Medians. {rounds(results, raw)} In each round, all programs of a comparison take "
        "turns, in changing order, with the data in the page cache. × is the ratio of RedwarFS "
        "to the other program, the median over the rounds: below 1, RedwarFS is smaller or "
        "takes less. CPU is user and system time of all processes. MB are millions of bytes, "
        "MiB are 1,048,576. Every single value is in [report.json](report.json).\n",
        report.skipped(skipped),
    ]
    if raw.get("earlier"):
        head.append(earlier(raw["earlier"]))
    if raw.get("mixed"):
        head.append(earlier(raw["mixed"], "several builds, whose images had the same size,"))
    if results.names("build/", 1):
        head += ["## Overview\n",
                 "Size and CPU time of building images, as ratios to the reference.\n",
                 build.overview(results)]
    head += ["## Data\n", data_sets(results)]
    return "\n".join(head + body), plots
