"""Making images and archives with other programs, beside all levels of RedwarFS."""

from .. import building, cli, report, svg
from ..programs import RECIPES
from ..suite import Job, cost
from . import after
from .build import SETS, WHO, key

TITLE = "Other programs"
PEERS = (
    "squashfs-lz4", "squashfs-zstd15-128k", "squashfs-zstd22", "squashfs-xz", "erofs-lz4",
    "erofs-lz4hc", "erofs-lzma", "erofs-zstd19", "erofs-zstd22", "wim-lzx", "wim-solid",
    "tar-gz", "tar-zstd1", "tar-zstd19", "tar-zstd19-long", "tar-zstd22-long", "tar-xz",
    "tar-xz-1536m", "lrzip", "lrzip-zpaq", "zpaq-m1", "zpaq-m2", "zpaq-m3", "zpaq-m4", "zpaq-m5",
    "zpaqfranz-m1", "zpaqfranz-m3", "7z", "7z-1g",
)
#: For a setting, one of the same program that searches less, and that has no more threads.
EASIER = {
    "erofs-zstd22": "erofs-zstd19",
    "tar-zstd22-long": "tar-zstd19-long",
    "zpaq-m4": "zpaq-m3",
    "zpaq-m5": "zpaq-m4",
    "zpaqfranz-m3": "zpaqfranz-m1",
}
#: Lines of the plot: more could not be told from each other.
PLOTTED = {
    "squashfs": ("squashfs-lz4", "squashfs-zstd15-128k", "squashfs-zstd22"),
    "squashfs xz": ("squashfs-xz",),
    "erofs lz4": ("erofs-lz4", "erofs-lz4hc"),
    "erofs lzma": ("erofs-lzma",),
    "erofs zstd": ("erofs-zstd19", "erofs-zstd22"),
    "wim": ("wim-lzx", "wim-solid"),
    "tar, gzip": ("tar-gz",),
    "tar, zstd": ("tar-zstd1", "tar-zstd19", "tar-zstd19-long", "tar-zstd22-long"),
    "tar, xz": ("tar-xz", "tar-xz-1536m"),
    "lrzip": ("lrzip", "lrzip-zpaq"),
    "zpaq": ("zpaq-m1", "zpaq-m2", "zpaq-m3", "zpaq-m4", "zpaq-m5"),
    "zpaqfranz": ("zpaqfranz-m1", "zpaqfranz-m3"),
    "7z": ("7z", "7z-1g"),
}


def measure(suite, number: int) -> None:
    for name in suite.names(SETS):
        suite.alternate([job for peer in PEERS if (job := _job(suite, name, peer))], number,
                        suite.peer_rounds)


def _job(suite, name: str, peer: str):
    recipe = RECIPES[peer]
    if not recipe.commands(suite.programs, "", "") or not cli.supported(suite.programs, recipe):
        return None

    def run():
        suite.warm(name)
        kept = peer in after.KEPT and name in after.SETS
        usage, size = building.build(
            suite.programs, recipe, suite.folders[name], suite.work / "build",
            suite.image(name, recipe) if kept else None,
        )
        return cost(usage, size=size)

    easier = f"peers/{name}/{EASIER[peer]}" if peer in EASIER else None
    return Job(f"peers/{name}/{peer}", run, limit=recipe.limit, easier=easier)


def _values(results, path, *fields):
    return [report.median(results.series(path, field)) for field in fields]


def show(results):
    names = results.names("peers/", 1)
    if not names:
        return "", {}
    text = ["Every program makes an image or archive of the same tree. To the left and below is "
            "better. The numbers beside the lines are levels.\n"]
    plots = {}
    for name in names:
        series, rows = [], []
        for who, title in zip(WHO, ("RedwarFS", "reference")):
            levels = sorted(results.names(f"build/{name}/", 2), key=int)
            points = [_values(results, key(name, level, who), "cpu", "size") for level in levels]
            found = [(level, cpu, size / 1e6) for level, (cpu, size) in zip(levels, points)
                     if cpu is not None]
            if found:
                series.append(svg.Series(title, [(cpu, size) for _, cpu, size in found],
                                         [level for level, _, _ in found]))
        measured = {peer: _values(results, f"peers/{name}/{peer}", "size", "cpu", "wall", "peak")
                    for peer in results.names(f"peers/{name}/", 2)}
        for title, settings in PLOTTED.items():
            found = [(measured[peer][1], measured[peer][0] / 1e6) for peer in settings
                     if peer in measured]
            if found:
                series.append(svg.Series(title, found))
        for peer, (size, cpu, wall, peak) in measured.items():
            rows.append((RECIPES[peer].title if peer in RECIPES else peer, "", report.megabytes(size), report.seconds(cpu),
                         report.seconds(wall), report.mebibytes(peak)))
        plots[f"peers-{name}.svg"] = svg.lines(
            f"Size against CPU: {name}", "CPU s", "size, MB", series, log_x=True, log_y=True)
        text += [f"### {name}\n", f"![size against CPU](peers-{name}.svg)\n", report.table(
            ("settings", "", "size MB", "CPU s", "wall s", "peak MiB"), rows)]
    return "\n".join(text), plots
