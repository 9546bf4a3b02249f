"""What can be done with the images and archives of one data set after they were made."""

import hashlib
import os
import shutil
from pathlib import Path

from .. import archives, cli, measure as measuring, reading, report, svg, trees
from ..measure import Failed
from ..programs import DRIVERS, RECIPES, mounted_title, usable
from ..suite import Job, cost

TITLE = "Using what was made"
SETS = ("interpreters", "root", "web")
#: Drivers and the images that they mount.
MOUNTED = (
    ("RedwarFS", "ours-l1"), ("RedwarFS", "ours-l4"), ("RedwarFS", "ours-l7"),
    ("RedwarFS", "ours-l9"), ("reference", "reference-l7"),
    ("squashfuse_ll", "squashfs-zstd22"), ("kernel squashfs", "squashfs-zstd22"),
    ("kernel squashfs", "squashfs-xz"), ("kernel erofs", "erofs-lz4hc"),
    ("kernel erofs", "erofs-lzma"), ("kernel erofs", "erofs-zstd22"), ("erofsfuse", "erofs-lz4hc"),
    ("wimlib", "wim-lzx"),
)
#: What is unpacked, and asked for one file.
UNPACKED = (
    "ours-l1", "ours-l4", "ours-l7", "ours-l9", "reference-l7", "squashfs-zstd22", "squashfs-xz",
    "erofs-lz4hc", "erofs-lzma", "erofs-zstd22", "wim-lzx", "wim-solid", "tar-gz",
    "tar-zstd19-long", "tar-zstd22-long", "tar-xz", "lrzip", "zpaq-m1", "zpaq-m3", "zpaqfranz-m1",
    "7z",
)
#: What takes one more release; with all others, everything is made again.
GROWING = ("ours-l1", "ours-l4", "ours-l7", "squashfs-zstd22", "wim-lzx", "zpaq-m1", "zpaq-m3",
           "zpaqfranz-m1", "7z")
#: Images that the part `peers` keeps for this one.
KEPT = frozenset([recipe for _, recipe in MOUNTED] + list(UNPACKED) + list(GROWING))
#: A directory to look into, and a word that is there, by data set.
PLACES = {
    "interpreters": (None, "Buffer"),
    "root": ("usr/share/doc", "GNU"),
    "web": ("node_modules/typescript", "License"),
}
#: Seconds for a use by another program.
LIMIT = 600.0
DEST = Path("/dev/shm")
GREP = 'grep -rFcD skip -e "$1" -- "$2" | LC_ALL=C sort | sha256sum'
RUN = 'ls -d */bin/node | xargs -P "$1" -I{} env ./{} -p process.version | LC_ALL=C sort'


def measure(suite, number: int) -> None:
    for name in suite.names(SETS):
        rows = [row for row in MOUNTED if _possible(suite, name, *row)]
        for use, run in _uses(suite, name).items():
            suite.alternate([_mounted(suite, name, use, run, *row) for row in rows], number)
        recipes = [which for which in UNPACKED if _available(suite, name, which)]
        for use, job in (("pick", _pick), ("unpack", _unpack)):
            jobs = [job(suite, name, which) for which in recipes]
            suite.alternate([found for found in jobs if found], number)
    if "interpreters" in suite.folders and "added" in suite.folders:
        recipes = [which for which in GROWING if _available(suite, "interpreters", which)]
        jobs = [_add(suite, which) for which in recipes]
        suite.alternate([found for found in jobs if found], number)


def _wanted_level(suite, which: str) -> bool:
    who, _, level = which.partition("-l")
    return who not in ("ours", "reference") or int(level) in suite.levels


def _available(suite, name: str, which: str) -> bool:
    """Whether there may be an image: those whose making took too long are not tried again."""
    return bool(
        _wanted_level(suite, which)
        and RECIPES[which].commands(suite.programs, "", "")
        and cli.supported(suite.programs, RECIPES[which])
        and not suite.store.left_out(f"peers/{name}/{which}", measuring.time_limit)
    )


def _possible(suite, name: str, driver: str, which: str) -> bool:
    return bool(_available(suite, name, which) and usable(suite.programs, DRIVERS[driver]))


def _image(suite, name: str, which: str):
    image = suite.made(name, RECIPES[which])
    if image is None:
        raise Failed("there is no such image")
    return image


def place(folder: Path, name: str) -> tuple:
    """The directory to look into, and the word to look for."""
    inside, word = PLACES[name]
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if inside is None or not (folder / inside).is_dir():
        inside = folders[len(folders) // 2]
    return inside, word


def _uses(suite, name: str) -> dict:
    """Workloads by name; each answers the same in every mount."""
    one, word = place(suite.folders[name], name)
    path = os.fsdecode(trees.random_files(suite.entries(name), 1)[0])

    def shell(script, *words):
        return lambda mnt: measuring.run(["sh", "-c", script, "sh", *words], cwd=mnt, capture=True)

    found = {
        "mount": lambda mnt: measuring.run(["true"]),
        "file": lambda mnt: measuring.run(["cat", mnt / path], capture=True),
        "grep-one": shell(GREP, word, one),
        "grep-all": shell(GREP, word, "."),
    }
    if name == "interpreters":
        found["run"] = shell(RUN, str(os.cpu_count()))
    return found


def _mounted(suite, name, use, run, driver, which) -> Job:
    def same(mnt, _setup):
        usage = run(mnt)
        digest = hashlib.sha256(usage.output).hexdigest()
        wanted = suite.store.fact(f"answer/{name}/{use}", lambda: _answer(suite, name, use, run))
        if digest != wanted:
            raise Failed(f"{use} gave another answer than in the source: {usage.output[:80]!r}")
        usage.output = b""
        return usage

    def measured():
        row = reading.Row(DRIVERS[driver], which, _image(suite, name, which))
        return reading.measure_row(suite.programs, row, same, None, suite.work)

    ours = driver == "RedwarFS"
    return Job(f"after/{name}/{use}/{driver} {which}", measured, ours, None if ours else LIMIT)


def _answer(suite, name, use, run) -> str:
    output = run(suite.folders[name]).output
    if not output and use != "mount":
        raise Failed(f"{use} gives no answer in the source")
    return hashlib.sha256(output).hexdigest()


def _values(suite, name: str, which: str, **more) -> dict:
    tree = suite.folders[name]
    image = suite.image(name, RECIPES[which])
    word = which.rpartition("-")[2]
    return {"image": image, "tree": tree, "base": tree.name, "method": f"-{word}",
            "level": f"-{word}", **more}


def _dest() -> Path:
    return DEST / "redwarfs-after"


def _pick(suite, name, which):
    path = os.fsdecode(trees.random_files(suite.entries(name), 1)[0])
    lines = archives.filled(archives.uses_of(RECIPES[which]).pick, suite.programs,
                            **_values(suite, name, which, dest=_dest(), path=path))
    if not lines:
        return None

    def run():
        _image(suite, name, which)
        return cost(archives.pick(lines, _dest(), (suite.folders[name] / path).read_bytes()))

    return _job(f"after/{name}/pick/{which}", run, which)


def _unpack(suite, name, which):
    uses = archives.uses_of(RECIPES[which])
    lines = archives.filled(uses.unpack, suite.programs,
                            **_values(suite, name, which, dest=_dest()))
    if not lines:
        return None

    def run():
        _image(suite, name, which)
        key, first = f"unpacked/{name}/{which}", {}
        if key not in suite.store.data["facts"]:
            first = {"entries": suite.entries(name)} if uses.exact else {"root": suite.folders[name]}
        usage = archives.unpack(lines, _dest(), **first)
        suite.store.fact(key, lambda: True)
        return cost(usage)

    return _job(f"after/{name}/unpack/{which}", run, which)


def _job(key, run, which) -> Job:
    ours = which.startswith("ours-")
    return Job(key, run, ours, None if ours else LIMIT)


def _grown_path(suite) -> Path:
    return suite.work / "grown"


def grown(suite) -> Path:
    """The interpreters with one more release. Hard links would change the source: its files would
    have two names."""
    target, source = _grown_path(suite), suite.folders["interpreters"]
    if not target.exists():
        partial = target.with_name("grown.partial")
        shutil.rmtree(partial, ignore_errors=True)
        for folder in (source, suite.folders["added"]):
            shutil.copytree(folder, partial, symlinks=True, dirs_exist_ok=True)
        partial.rename(target)
    return target


def _add(suite, which):
    name = "interpreters"
    add = archives.uses_of(RECIPES[which]).add
    added = next(path for path in suite.folders["added"].iterdir() if path.is_dir())
    copy = suite.work / f"growing{RECIPES[which].suffix}"
    lines = archives.filled(add, suite.programs, **{
        **_values(suite, name, which), "image": copy, "added": added, "grown": _grown_path(suite)})
    if not lines:
        return None

    def run():
        image = _image(suite, name, which)
        trees.survey(grown(suite))
        try:
            shutil.copyfile(image, copy)
            usage = measuring.run(*lines, want_peak=True)
            return cost(usage, size=copy.stat().st_size, before=image.stat().st_size)
        finally:
            copy.unlink(missing_ok=True)

    return _job(f"after/{name}/add/{which}", run, which)


# --- the report -----------------------------------------------------------------------------------


USES = {
    "mount": "mount", "file": "one file", "grep-one": "`grep -r`, one", "grep-all": "all",
    "run": "run all",
}


def title(which: str) -> str:
    """`kernel erofs erofs-lz4hc` for people."""
    driver, _, recipe = which.rpartition(" ")
    if driver:
        return mounted_title(driver, recipe)
    return RECIPES[recipe].title if recipe in RECIPES else recipe


def _median(results, key, field="wall"):
    return report.median(results.series(key, field))


def mounted_table(results, name) -> str:
    uses = [use for use in USES if results.names(f"after/{name}/{use}/", 3)]
    programs = list(dict.fromkeys(
        who for use in uses for who in results.names(f"after/{name}/{use}/", 3)))
    rows = []
    for who in programs:
        cells = [title(who), ""]
        for use in uses:
            key = f"after/{name}/{use}/{who}"
            if use == "mount":
                cells.append(report.seconds(_median(results, key, "mount")))
            else:
                cells.append(" / ".join(report.seconds(_median(results, key, field))
                                        for field in ("wall", "cpu")))
        rows.append(cells)
    return report.table(("mounted", "", *(USES[use] for use in uses)), rows)


def unpacked_table(results, name) -> str:
    rows = []
    for which in dict.fromkeys(who for use in ("pick", "unpack")
                               for who in results.names(f"after/{name}/{use}/", 3)):
        cells = [title(which), ""]
        for use in ("pick", "unpack"):
            key = f"after/{name}/{use}/{which}"
            cells += [" / ".join(report.seconds(_median(results, key, field))
                                 for field in ("wall", "cpu")),
                      report.mebibytes(_median(results, key, "peak"))]
        rows.append(cells)
    return report.table(("unpacked", "", "one file", "peak MiB", "everything", "peak MiB"), rows)


def added_table(results) -> str:
    rows = []
    for which in results.names("after/interpreters/add/", 3):
        key = f"after/interpreters/add/{which}"
        size, before = (_median(results, key, field) for field in ("size", "before"))
        rows.append((title(which), "", report.megabytes(before), report.megabytes(size - before),
                     report.seconds(_median(results, key)),
                     report.seconds(_median(results, key, "cpu")),
                     report.mebibytes(_median(results, key, "peak"))))
    return report.table(("one more release", "", "image MB", "added MB", "wall s", "CPU s",
                         "peak MiB"), rows)


def show(results):
    names = results.names("after/", 1)
    if not names:
        return "", {}
    text = ["Each use starts on a fresh mount with the image in the page cache, and gives the same "
            "answer as the source. Cells with two numbers are wall / CPU seconds.\n"]
    plots = {}
    for name in names:
        text.append(f"### {name}\n")
        uses = [use for use in USES if use != "mount" and results.names(f"after/{name}/{use}/", 3)]
        if uses:
            who = results.names(f"after/{name}/{uses[0]}/", 3)
            plots[f"after-{name}.svg"] = svg.bars(
                f"Wall time of uses: {name}", "s", uses,
                {title(one): [_median(results, f"after/{name}/{use}/{one}") for use in uses]
                 for one in who}, log_y=True)
            text += [f"![uses](after-{name}.svg)\n", mounted_table(results, name)]
        if results.names(f"after/{name}/unpack/", 3) or results.names(f"after/{name}/pick/", 3):
            text.append(unpacked_table(results, name))
        if results.names(f"after/{name}/add/", 3):
            text.append(added_table(results))
            text.append("All other programs make the whole image again.\n")
    return "\n".join(text), plots
