"""What the number of files costs: making an image, mounting it, and listing all of it."""

from .. import building, cli, reading, report, svg, workloads
from ..programs import DRIVERS, RECIPES, usable
from ..suite import Job, cost

TITLE = "Many tiny files"
BUILDERS = ("ours-l7", "reference-l7", "squashfs-zstd22", "erofs-lz4hc")
#: What is mounted: its name, the driver, and the image. Level 1 leaves metadata as they are.
MOUNTS = (
    ("RedwarFS", "RedwarFS", "ours-l7"),
    ("RedwarFS, plain metadata", "RedwarFS", "ours-l1"),
    ("reference", "reference", "reference-l7"),
    ("reference, plain metadata", "reference", "ours-l1"),
    ("squashfuse_ll", "squashfuse_ll", "squashfs-zstd22"),
    ("kernel squashfs", "kernel squashfs", "squashfs-zstd22"),
    ("kernel erofs", "kernel erofs", "erofs-lz4hc"),
)


def measure(suite, number: int) -> None:
    for name in [name for name in suite.folders if name.startswith("tiny-")]:
        count = name.removeprefix("tiny-")
        suite.alternate([_build(suite, name, count, recipe) for recipe in BUILDERS
                         if _possible(suite, recipe)], number)
        jobs = [_mount(suite, name, count, *mount) for mount in MOUNTS]
        suite.alternate([job for job in jobs if job], number)


def _possible(suite, recipe: str) -> bool:
    lines = RECIPES[recipe].commands(suite.programs, "", "")
    return bool(lines) and cli.supported(suite.programs, RECIPES[recipe])


def _build(suite, name, count, which) -> Job:
    recipe = RECIPES[which]
    image = suite.image(name, recipe)

    def run():
        suite.warm(name)
        usage, size = building.build(
            suite.programs, recipe, suite.folders[name], suite.work / "build", image
        )
        if which.startswith(("ours", "reference")):
            suite.inspect(name, recipe, image)
        return cost(usage, size=size)

    return Job(f"files/build/{count}/{which}", run, which.startswith("ours"))


def _mount(suite, name, count, title, driver, which):
    if not _possible(suite, which) or not usable(suite.programs, DRIVERS[driver]):
        return None

    def run():
        row = reading.Row(DRIVERS[driver], which, suite.made(name, RECIPES[which]))
        return reading.measure_row(suite.programs, row, workloads.find, None, suite.work)

    return Job(f"files/mount/{count}/{title}", run, driver == "RedwarFS")


def _series(results, kind, field, counts, scale=1.0):
    return [
        svg.Series(_title(who), [
            (int(count), None if (value := _median(results, kind, count, who, field)) is None
             else value / scale)
            for count in counts
        ])
        for who in results.names(f"files/{kind}/", 3)
    ]


def _title(who: str) -> str:
    return RECIPES[who].title if who in RECIPES else who


def _median(results, kind, count, who, field):
    return report.median(results.series(f"files/{kind}/{count}/{who}", field))


def _table(results, kind, counts, fields) -> str:
    """`fields`: name in the results, and how it is shown."""
    rows = []
    for count in counts:
        for who in results.names(f"files/{kind}/{count}/", 3):
            title = _title(who)
            row = [f"{int(count):,}",
                   f"**{title}**" if title.startswith("RedwarFS") else title]
            row += [style(_median(results, kind, count, who, field)) for _, field, style in fields]
            if kind == "build":
                facts = results.facts.get(f"image/tiny-{count}/{who}")
                row.append(report.megabytes(facts["metadata"]) if facts else "–")
            rows.append(row)
    head = ["files", "", *(title for title, _, _ in fields)]
    return report.table(head + (["metadata MB"] if kind == "build" else []), rows)


PLOTS = (
    ("files-cpu.svg", "CPU time of the build", "build", "cpu", "CPU s", 1),
    ("files-peak.svg", "Peak memory of the build", "build", "peak", "MiB", report.MIB),
    ("files-size.svg", "Size of the image", "build", "size", "MB", 1e6),
    ("files-mount.svg", "Time until the mount answers", "mount", "mount", "s", 1),
    ("files-find.svg", "`find` on a fresh mount", "mount", "wall", "s", 1),
)


def show(results):
    counts = sorted(results.names("files/build/", 2), key=int)
    if not counts:
        return "", {}
    plots = {
        name: svg.lines(title, "files", label, _series(results, kind, field, counts, scale),
                        log_x=True, log_y=True)
        for name, title, kind, field, label, scale in PLOTS
        if results.names(f"files/{kind}/", 2)
    }
    text = [
        "Files of up to 300 bytes; every fifth file is the same. This measures the cost per "
        "file.\n",
        *(f"![cost by number of files]({name})\n" for name in plots),
        _table(results, "build", counts, (
            ("size MB", "size", report.megabytes), ("CPU s", "cpu", report.seconds),
            ("wall s", "wall", report.seconds), ("peak MiB", "peak", report.mebibytes))),
        "The table shows mounting until the root can be listed, and `find -printf` of all "
        "attributes on the fresh mount, with the CPU time of the driver. The images have level "
        "7, at which both programs compress the metadata. The rows for plain metadata use the "
        "image of RedwarFS at level 1.\n",
        _table(results, "mount", counts, (
            ("mount s", "mount", report.seconds), ("find wall s", "wall", report.seconds),
            ("find CPU s", "cpu", report.seconds), ("driver peak MiB", "peak", report.mebibytes))),
    ]
    return "\n".join(text), plots
