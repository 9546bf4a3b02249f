"""Making images: RedwarFS and the reference at the same levels."""

from .. import building, report, svg
from ..programs import dwarfs_recipe
from ..suite import Job, cost
from . import after

TITLE = "Making images"
WHO = ("ours", "reference")
SETS = ("versions", "interpreters", "modules", "root", "wheels", "web", "logs", "locales")
#: The set whose images take so much room that only those are kept that are used again.
LARGE = "interpreters"


def measure(suite, number: int) -> None:
    for name in suite.names(SETS):
        for level in suite.levels:
            suite.alternate([job(suite, name, level, who) for who in suite.who()], number)


def job(suite, name: str, level: int, who: str) -> Job:
    recipe = dwarfs_recipe(who, level)
    image = suite.image(name, recipe)

    def run():
        suite.warm(name)
        usage, size = building.build(
            suite.programs, recipe, suite.folders[name], suite.work / "build", image
        )
        suite.inspect(name, recipe, image)
        if name == LARGE and recipe.name not in after.KEPT:
            image.unlink()
        return cost(usage, size=size)

    return Job(f"build/{name}/{level}/{who}", run, who == "ours")


def key(name, level, who) -> str:
    return f"build/{name}/{level}/{who}"


def ratio(results, name, level, field):
    """Ours to the reference's, median of the rounds."""
    ours, theirs = (results.series(key(name, level, who), field) for who in WHO)
    return report.paired_ratio(ours, theirs)


def share(results, name, level, who) -> str:
    facts = results.facts.get(f"image/{name}/{who}-l{level}")
    if not facts:
        return "–"
    return f"{facts['metadata'] / 1000:,.0f} ({100 * facts['metadata'] / facts['size']:.1f} %)"


def spread(results, name, level, who) -> str:
    value = results.facts.get(f"image/{name}/{who}-l{level}", {}).get("spread")
    return "–" if value is None else f"{value:.2f}"


HEAD = ("level", "", "size MB", "×", "CPU s", "×", "wall s", "×", "peak MiB", "×",
        "metadata KB", "blocks per directory")


def table(results, name, levels) -> str:
    rows = []
    for level in levels:
        for who, title in zip(WHO, ("**RedwarFS**", "reference")):
            if not results.has(key(name, level, who)):
                continue

            def value(field, level=level, who=who):
                return report.median(results.series(key(name, level, who), field))

            def times(field, level=level, who=who):
                style = report.exact_times if field == "size" else report.times
                return style(ratio(results, name, level, field)) if who == "ours" else ""

            rows.append((
                level, title, report.megabytes(value("size")), times("size"),
                report.seconds(value("cpu")), times("cpu"),
                report.seconds(value("wall")), times("wall"),
                report.mebibytes(value("peak")), times("peak"),
                share(results, name, level, who), spread(results, name, level, who),
            ))
    return report.table(HEAD, rows)


def overview(results) -> str:
    """Ratios by level: one pair for each data set."""
    names = results.names("build/", 1)
    levels = sorted(results.names("build/", 2), key=int)
    rows = []
    for level in levels:
        cells = []
        for name in names:
            # Sizes are exact, so a third digit means something.
            size, cpu = (ratio(results, name, level, field) for field in ("size", "cpu"))
            cells.append(f"{report.exact_times(size)} / {report.times(cpu)}")
        rows.append((level, "size / CPU", *cells))
    return report.table(("level", "×", *names), rows)


def show(results):
    names = results.names("build/", 1)
    levels = sorted(results.names("build/", 2), key=int)
    if not names:
        return "", {}
    text = [
        "Sizes and CPU time are ratios of RedwarFS to the reference at the same level: below 1, "
        "RedwarFS is smaller or takes less. The dashed line means equal.\n",
        "![size by level](build-size.svg)\n", "![CPU by level](build-cpu.svg)\n",
    ]
    plots = {}
    for field, title in (("size", "Size of the image"), ("cpu", "CPU time of the build")):
        plots[f"build-{field}.svg"] = svg.lines(
            f"{title}: RedwarFS to the reference", "level", "ratio",
            [svg.Series(name, [(int(level), ratio(results, name, level, field))
                               for level in levels]) for name in names],
            mark=1.0, ticks=[int(level) for level in levels],
        )
    for name in names:
        text += [f"### {name}\n", table(results, name, levels)]
    return "\n".join(text), plots
