"""Reading through mounts: which drivers with which images, and one measurement of one of them."""

from dataclasses import dataclass, field

from . import cli, measure, trees
from .measure import Failed
from .programs import DRIVERS, Mount, usable

#: Images with comparable decompression: the driver, and settings in order of preference. The first
#: row of a family is what the others are compared with.
FAMILIES = {
    "fast": (
        ("RedwarFS", ("ours-l1",)),
        ("reference", ("ours-l1",)),
        ("squashfuse_ll", ("squashfs-lz4",)),
        ("squashfuse", ("squashfs-lz4",)),
        ("kernel squashfs", ("squashfs-lz4",)),
        ("kernel erofs", ("erofs-lz4",)),
    ),
    "medium": (
        ("RedwarFS", ("ours-l4",)),
        ("reference", ("ours-l4",)),
        ("squashfuse_ll", ("squashfs-zstd15-128k",)),
        ("kernel squashfs", ("squashfs-zstd15-128k",)),
        ("kernel erofs", ("erofs-lz4",)),
    ),
    "small": (
        ("RedwarFS", ("ours-l7",)),
        ("reference", ("ours-l7",)),
        ("squashfuse_ll", ("squashfs-zstd22",)),
        ("squashfuse", ("squashfs-zstd22",)),
        ("kernel squashfs", ("squashfs-zstd22",)),
        ("kernel erofs", ("erofs-zstd19", "erofs-lz4hc")),
    ),
    "archives": (
        ("RedwarFS", ("ours-l7",)),
        ("wimlib", ("wim-lzx",)),
        ("ratarmount", ("tar-zstd19",)),
    ),
}


@dataclass
class Row:
    """One driver with its image."""

    driver: object
    recipe: str
    image: object
    #: `-o` options of the driver.
    options: tuple = ()
    results: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.driver.name


def rows_of(programs, images, tree, drivers, options=()) -> list:
    """The rows that can be measured here; their images are made in the directory `images`.

    `options` are for RedwarFS and the reference.
    """
    rows = []
    for name, recipes in drivers:
        driver = DRIVERS[name]
        if not usable(programs, driver):
            continue
        for recipe in recipes:
            image = cli.make_image(programs, recipe, tree, images / recipe)
            if image:
                own = options if name in ("RedwarFS", "reference") else ()
                words = tuple(word for option in own for word in ("-o", option))
                rows.append(Row(driver, recipe, image, words))
                break
    return rows


def mount(programs, row: Row, work) -> Mount:
    mountpoint = work / "mnt" / row.name.replace(" ", "-")
    return Mount(programs, row.driver, row.image, mountpoint, row.options)


def verify(programs, row: Row, entries: dict, work) -> None:
    """Reads the whole tree through the mount and compares it with the source.

    Of drivers of archives only the names: some read the archive from its start for each file.
    """
    with mount(programs, row, work) as mounted:
        if row.driver.exact:
            found = trees.describe(mounted.path)
        else:
            found = trees.names(mounted.path)
            entries = {path: () for path in entries if path}
    if trees.digest(found) != trees.digest(entries):
        raise Failed(
            f"{row.name} shows another tree with {row.image} (delete the image if the tree has "
            f"changed): {trees.difference(entries, found)}"
        )


def measure_row(programs, row: Row, run, setup, work) -> dict:
    """One workload on a fresh mount. Times in seconds, memory in bytes."""
    # Some systems give up pages of files that nobody used for a while.
    measure.warm(row.image)
    with mount(programs, row, work) as mounted:
        pids = mounted.pids
        server = measure.cpu_at_rest(pids) if pids else 0.0
        kernel = measure.kernel_threads_cpu()
        usage = run(mounted.path, setup)
        kernel = measure.grown(kernel, measure.kernel_threads_cpu())
        if pids:
            server = measure.cpu_at_rest(pids) - server
        # Work of the kernel's own threads belongs to a mount in the kernel; beside a FUSE driver
        # it is other people's.
        return {
            "wall": usage.wall,
            "client": usage.cpu,
            "server": server if pids else kernel,
            "cpu": usage.cpu + (server if pids else kernel),
            "kernel_threads": kernel,
            "others": usage.others(server if pids else kernel),
            "peak": measure.peak_memory(pids) if pids else None,
            "memory": measure.shared_memory(pids) if pids else None,
            "mount": mounted.seconds,
            "output": usage.output.hex(),
        }
