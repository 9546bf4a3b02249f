"""Reading one day out of images of more and more days, by the size of blocks."""

import shutil

from .. import archives, building, measure as measuring, reading, report, svg
from ..measure import Failed
from ..programs import DRIVERS, RECIPES, dwarfs_recipe, usable
from ..suite import Job, cost

TITLE = "Logs: one day out of many"
WHO = ("ours", "reference")
DRIVER = {"ours": "RedwarFS", "reference": "reference"}
DAYS = (1, 4, 16, 32)
LEVELS = (7, 9)
BITS = (20, 24, 26)
#: Block size of the images with each order: what the level does by default.
ORDER_BITS = {9: 26}
#: Other programs, whose block size is their own, and who reads a day of their images.
OTHERS = {
    "squashfs-zstd22": "kernel squashfs", "squashfs-xz": "kernel squashfs", "tar-zstd19-long": None,
    "tar-xz": None,
}
#: Seconds for a day out of another program's archive.
LIMIT = 600.0
ORDERS = ("path", "revpath", "similarity", "nilsimsa", "families")


def chosen(levels) -> list:
    """The levels of this part, or the slowest one if none of them is wanted."""
    return [level for level in LEVELS if level in levels] or [max(levels)]


def counts(available: int) -> list:
    """How many days the images have."""
    most = min(available, DAYS[-1])
    return [days for days in DAYS if days < most] + [most]


def _days(suite) -> list:
    source = suite.folders["logs"]
    return sorted(path for path in source.iterdir() if path.is_dir())


def around(found: list, days: int) -> list:
    """So many days with the one in the middle of all among them: days differ, so one is read from
    all images."""
    start = max(len(found) // 2 - days // 2, 0)
    return found[start:start + days]


def _folder(suite, days: int):
    """So many days of the logs, as a tree of their own."""
    source = suite.folders["logs"]
    found = _days(suite)
    if days == len(found):
        return source
    target = suite.work / "logs" / str(days)
    if not target.exists():
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        for folder in around(found, days):
            shutil.copytree(folder, partial / folder.name)
        shutil.copystat(source, partial)
        partial.rename(target)
    return target


def measure(suite, number: int) -> None:
    if "logs" not in suite.folders:
        return
    found = _days(suite)
    day = found[len(found) // 2].name
    suite.warm("logs")
    trees = {days: _folder(suite, days) for days in counts(len(found))}
    sizes = [(level, bits) for level in chosen(suite.levels) for bits in BITS]
    recipes = {(level, bits): [dwarfs_recipe(who, level, f"-S{bits}") for who in suite.who()]
               for level, bits in sizes}
    for days, tree in trees.items():
        for size in sizes:
            place = f"{days}/{size[0]}/{size[1]}"
            suite.alternate([_build(suite, days, tree, place, who, recipe)
                             for who, recipe in zip(WHO, recipes[size])], number, 1)
    # All numbers of days in turn: their ratio is what matters.
    for size in sizes:
        for kind in (_mount, _pick):
            jobs = [kind(suite, days, tree, day, f"{days}/{size[0]}/{size[1]}", who, recipe)
                    for days, tree in trees.items() for who, recipe in zip(WHO, recipes[size])]
            suite.alternate([job for job in jobs if job], number)
    others = [which for which in OTHERS if RECIPES[which].commands(suite.programs, "", "")]
    for days, tree in trees.items():
        suite.alternate([_other_build(suite, days, tree, which) for which in others], number, 1)
    jobs = [_other_read(suite, days, tree, day, which)
            for days, tree in trees.items() for which in others]
    suite.alternate([job for job in jobs if job], number)
    for level in chosen(suite.levels):
        for order in ORDERS:
            suite.alternate([_order(suite, suite.folders["logs"], level, order)], number, 1)


def _build(suite, days, tree, place, who, recipe) -> Job:
    image = suite.image(f"logs-{days}", recipe)

    def run():
        usage, size = building.build(suite.programs, recipe, tree, suite.work / "build", image)
        return cost(usage, size=size)

    return Job(f"logs/build/{place}/{who}", run, who == "ours")


def _mount(suite, days, tree, day, place, who, recipe):
    """`tar` of the day on a fresh mount, image in the page cache."""
    driver = DRIVERS[DRIVER[who]]
    if not usable(suite.programs, driver):
        return None

    def run():
        image = suite.made_of(f"logs-{days}", recipe, tree)
        row = reading.Row(driver, recipe.name, image)
        return reading.measure_row(
            suite.programs, row,
            lambda mnt, _: measuring.run(["tar", "-C", mnt, "-cf", "-", day], ["cat"]),
            None, suite.work,
        )

    return Job(f"logs/mount/{place}/{who}", run, who == "ours")


def _pick(suite, days, tree, day, place, who, recipe):
    """Extraction with a pattern."""
    program = suite.programs.path(f"{who}/dwarfsextract")

    def run():
        image = suite.made_of(f"logs-{days}", recipe, tree)
        return cost(measuring.run(
            [program, "-i", image, "-f", "pax", "--log-level=error", "--pattern", f"{day}/**"],
            want_peak=True,
        ))

    return Job(f"logs/pick/{place}/{who}", run, who == "ours")


def _other_build(suite, days, tree, which) -> Job:
    recipe = RECIPES[which]

    def run():
        usage, size = building.build(suite.programs, recipe, tree, suite.work / "build",
                                     suite.image(f"logs-{days}", recipe))
        return cost(usage, size=size)

    return Job(f"logs/other-build/{days}/{which}", run, limit=recipe.limit)


def _other_read(suite, days, tree, day, which):
    """`tar` of the day on a fresh mount, or out of the archive."""
    recipe, driver = RECIPES[which], OTHERS[which] and DRIVERS[OTHERS[which]]
    if driver and not usable(suite.programs, driver):
        return None
    image = suite.image(f"logs-{days}", recipe)

    def run():
        if suite.made_of(f"logs-{days}", recipe, tree) is None:
            raise Failed("there is no such image")
        if driver:
            row = reading.Row(driver, which, image)
            return reading.measure_row(
                suite.programs, row,
                lambda mnt, _: measuring.run(["tar", "-C", mnt, "-cf", "-", day], ["cat"]),
                None, suite.work,
            )
        unpack = archives.uses_of(recipe).unpack[:1]
        lines = archives.filled(unpack, suite.programs, image=image)
        return cost(measuring.run(*lines, ["tar", "-xOf", "-", f"./{day}"], want_peak=True))

    return Job(f"logs/other-read/{days}/{which}", run, limit=LIMIT)


def _order_bits(level) -> int:
    return ORDER_BITS.get(level, 24)


def _order(suite, tree, level, order) -> Job:
    recipe = dwarfs_recipe("ours", level, f"-S{_order_bits(level)}", f"--order={order}")

    def run():
        usage, size = building.build(
            suite.programs, recipe, tree, suite.work / "build"
        )
        return cost(usage, size=size)

    return Job(f"logs/order/{level}/{order}/ours", run, True)


def _median(results, kind, place, who, field):
    return report.median(results.series(f"logs/{kind}/{place}/{who}", field))


def _ratio(results, kind, place, field) -> str:
    series = [results.series(f"logs/{kind}/{place}/{who}", field) for who in WHO]
    return report.times(report.paired_ratio(*series))


def _growth(results, kind, place, first, field) -> str:
    """What RedwarFS needs for the day in this image, to what it needs in the image `first`."""
    series = [results.series(f"logs/{kind}/{which}/ours", field) for which in (place, first)]
    return report.times(report.paired_ratio(*series))


def _plots(results, days, levels, sizes) -> dict:
    plots = {}
    for kind, what in (("mount", "through a mount"), ("pick", "by extraction with a pattern")):
        for level in levels:
            series = [
                svg.Series(f"{DRIVER[who]}, {1 << int(bits) >> 20} MiB", [
                    (int(count), _median(results, kind, f"{count}/{level}/{bits}", who, "cpu"))
                    for count in days
                ])
                for bits in sizes for who in WHO
                if any(results.has(f"logs/{kind}/{count}/{level}/{bits}/{who}") for count in days)
            ]
            series += _other_series(results, days, "read", "cpu")
            plots[f"logs-{kind}-{level}.svg"] = svg.lines(
                f"One day {what}, level {level}", "days in the image", "CPU s", series,
                log_x=True, log_y=True, ticks=[int(count) for count in days],
            )
    for level in levels:
        for field, name, what in (("size", "size, MB", "Size"), ("cpu", "CPU s", "CPU time of making")):
            series = [
                svg.Series(f"{DRIVER[who]}, {1 << int(bits) >> 20} MiB", [
                    (int(count), _scaled(_median(results, "build", f"{count}/{level}/{bits}", who,
                                                 field), field))
                    for count in days
                ])
                for bits in sizes for who in WHO
                if any(results.has(f"logs/build/{count}/{level}/{bits}/{who}") for count in days)
            ]
            series += _other_series(results, days, "build", field)
            plots[f"logs-{field}-{level}.svg"] = svg.lines(
                f"{what} of images of days, level {level}", "days in the image", name, series,
                log_x=True, log_y=True, ticks=[int(count) for count in days],
            )
    return plots


def _scaled(value, field):
    return value / 1e6 if field == "size" and value is not None else value


def _other_series(results, days, kind, field) -> list:
    return [
        svg.Series(RECIPES[which].title, [
            (int(count), _scaled(report.median(results.series(
                f"logs/other-{kind}/{count}/{which}", field)), field)) for count in days
        ])
        for which in OTHERS
        if any(results.has(f"logs/other-{kind}/{count}/{which}") for count in days)
    ]


def _others(results, days) -> str:
    """What other programs need for the same days."""
    rows = []
    for count in days:
        for which in OTHERS:
            size, cpu = (report.median(results.series(f"logs/other-build/{count}/{which}", field))
                         for field in ("size", "cpu"))
            if size is not None:
                read = [report.median(results.series(f"logs/other-read/{count}/{which}", field))
                        for field in ("wall", "cpu")]
                rows.append((count, RECIPES[which].title, report.megabytes(size),
                             report.seconds(cpu), " / ".join(map(report.seconds, read))))
    if not rows:
        return ""
    return ("### Other programs\n\nReading the day through the kernel, or from the start of the "
            "archive.\n\n" + report.table(
                ("days", "settings", "size MB", "CPU s", "the day: wall / CPU s"), rows))


def _orders(results, level) -> str:
    """All days with each order of RedwarFS, and what both programs do by default."""
    days = max(results.names("logs/build/", 2), key=int)
    places = [(f"RedwarFS, {order}", ("order", f"{level}/{order}", "ours"))
              for order in results.names(f"logs/order/{level}/", 3)]
    best = min(_median(results, *place, "size") for _, place in places)
    same = f"{days}/{level}/{_order_bits(int(level))}"
    places += [(f"{DRIVER[who]}, by default", ("build", same, who)) for who in WHO]
    rows = []
    for title, place in places:
        size = _median(results, *place, "size")
        if size is not None:
            rows.append((title, "", report.megabytes(size), f"{size / best:.3f}",
                         report.seconds(_median(results, *place, "cpu"))))
    return report.table(("order", "", "size MB", "to the best", "CPU s"), rows)


def show(results):
    days = sorted(results.names("logs/build/", 2), key=int)
    levels, sizes = (sorted(results.names("logs/build/", n), key=int) for n in (3, 4))
    if not days:
        return "", {}
    plots = _plots(results, days, levels, sizes)
    rows = []
    for level in levels:
        for bits in sizes:
            for count in days:
                place = f"{count}/{level}/{bits}"
                if not any(results.has(f"logs/build/{place}/{who}") for who in WHO):
                    continue
                cells = [level, 1 << int(bits) >> 20, count]
                for who in WHO:
                    cells.append(report.megabytes(_median(results, "build", place, who, "size")))
                first = f"{days[0]}/{level}/{bits}"
                for kind in ("mount", "pick"):
                    cells.append(" / ".join(_growth(results, kind, place, first, field)
                                            for field in ("wall", "cpu")))
                    for who in WHO:
                        cells.append(" / ".join(
                            report.seconds(_median(results, kind, place, who, field))
                            for field in ("wall", "cpu")))
                    cells.append(_ratio(results, kind, place, "cpu"))
                rows.append(cells)
    text = [
        "These tests read the same day from images with more and more days around it. The image "
        "is in the page cache. `tar` reads the day from a fresh mount (CPU time of `tar` and "
        "driver), and `dwarfsextract` extracts it with a pattern. Each program has its own images. "
        "Ideally, the CPU time does not rise with the number of days.\n",
        *(f"![one day]({name})\n" for name in plots),
        report.table((
            "level", "block MiB", "days", "size MB, RedwarFS", "reference",
            "mount, to the first row", "RedwarFS: wall / CPU s", "reference", "CPU ×",
            "pattern, to the first row", "RedwarFS: wall / CPU s", "reference", "CPU ×",
        ), rows),
        _others(results, days),
        *(text for level in results.names("logs/order/", 2) for text in (
            f"### Orders\n\nAll days at level {level}, in blocks of "
            f"{(1 << _order_bits(int(level))) >> 20} MiB, with each order.\n",
            _orders(results, level),
        )),
    ]
    return "\n".join(text), plots
