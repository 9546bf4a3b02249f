"""Medians, ratios, and tables in Markdown and JSON."""

import json
import re
import statistics
from pathlib import Path

MIB = 1 << 20


def median(values):
    """Median of what is there; none of nothing."""
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def paired_ratio(theirs, ours):
    """Median of the ratios of each round, so that a machine that slows down does no harm."""
    ratios = [a / b for a, b in zip(theirs, ours) if a is not None and b]
    return statistics.median(ratios) if ratios else None


def seconds(value) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def mebibytes(value) -> str:
    if value is None:
        return "–"
    value /= MIB
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def megabytes(value) -> str:
    """Millions of bytes: for images, whose small differences matter."""
    if value is None:
        return "–"
    value /= 1e6
    return f"{value:.3f}" if value < 10 else f"{value:,.2f}" if value < 1000 else f"{value:,.1f}"


def speed(size, seconds_taken) -> str:
    """Millions of bytes in a second."""
    return f"{size / 1e6 / seconds_taken:,.0f}" if seconds_taken else "–"


def times(value) -> str:
    return "–" if value is None else f"{value:.2f}"


def exact_times(value) -> str:
    return "–" if value is None else f"{value:.3f}"


def table(head, rows) -> str:
    """A Markdown table; all columns but the first two are numbers."""
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "|".join("---" if n < 2 else "--:" for n in range(len(head))) + "|")
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def about(environment: dict) -> str:
    """The machine, and a table of versions. Memory and load are shown if they are known."""
    known = dict(environment)
    first = [f"{known.pop('cpus')} CPUs ({known.pop('cpu', '?')})"]
    if "memory" in known:
        first.append(f"{known.pop('memory') / (1 << 30):.0f} GiB")
    first.append(f"Linux {known.pop('kernel')}")
    if "load" in known:
        first.append(f"load {known.pop('load'):.1f} at the start")
    versions = table(("program", "version"),
                     [(name, version(text)) for name, text in known.items()])
    return f"{', '.join(first)}.\n\n{versions}"


def version(text: str) -> str:
    """The part of a program's own words that names its version."""
    found = re.search(r"v?\d+\.\d+[\w.+-]*", text)
    return found[0] if found else text


def skipped(what: dict) -> str:
    """What was left out, and why; never silent."""
    if not what:
        return "Nothing was skipped.\n"
    return "".join(f"SKIPPED: {name}: {why}\n\n" for name, why in what.items())


def write(base, markdown: str, data: dict) -> None:
    """Prints the tables; with a base path also writes BASE.md and BASE.json."""
    print(markdown)
    if base:
        base = Path(base)
        base.parent.mkdir(parents=True, exist_ok=True)
        base.with_name(base.name + ".md").write_text(markdown)
        base.with_name(base.name + ".json").write_text(json.dumps(data, indent=1) + "\n")
