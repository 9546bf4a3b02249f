"""Options and preparations that all benchmarks share."""

import argparse
import os
import re
import shutil
import signal
import sys
from pathlib import Path

from . import measure, report, trees
from .measure import Failed
from .programs import RECIPES, REPOSITORY, Programs, Recipe, environment, erofs_compressors, say


def size(text: str) -> int:
    """A number with an optional suffix k, m or g."""
    match = re.fullmatch(r"(\d+)([kmg]?)(?:i?b)?", text.lower())
    if not match:
        raise argparse.ArgumentTypeError(f"not a size: {text}")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def parser(description: str, repeat: int) -> argparse.ArgumentParser:
    """Options that all benchmarks have."""
    p = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    program_options(p)
    p.add_argument("--work", type=Path, default=Path("/tmp/redwarfs-bench"),
                   help="images, mount points and the generated tree; kept for the next run")
    p.add_argument("--out", help="also write BASE.md and BASE.json", metavar="BASE")
    p.add_argument("--repeat", type=int, default=repeat, help="rounds; medians are shown")
    p.add_argument("--only", type=re.compile, metavar="REGEX",
                   help="only rows whose name matches; RedwarFS is always among them")
    return p


def program_options(p: argparse.ArgumentParser) -> None:
    """Where the programs are."""
    p.add_argument("--bin", type=Path, default=REPOSITORY / "target/release",
                   help="directory with the RedwarFS binaries")
    p.add_argument("--reference", type=Path, help="directory with the reference's binaries "
                   "(or REDWARFS_REFERENCE)")


def tree_options(p: argparse.ArgumentParser) -> None:
    """Options of the benchmarks that work on one tree."""
    p.add_argument("--tree", type=Path, action="append", help="a directory to use; may be given "
                   "several times (default: a generated tree)")
    p.add_argument("--files", type=int, default=20_000, help="small files of the generated tree")
    p.add_argument("--large", type=size, default="256M", help="large file of the generated tree")


class Tree:
    """A source tree with its description."""

    def __init__(self, path: Path, name: str, title: str):
        self.path, self.name, self.title = path, name, title
        say(f"reading {path}")
        self.entries = trees.describe(path)
        self.summary = trees.summary(self.entries)


def source_trees(arguments):
    """The trees to work on; the generated one is made if it is not there yet."""
    if arguments.tree:
        for path in arguments.tree:
            path = path.resolve()
            name = re.sub(r"[^\w.-]", "_", str(path).strip("/"))
            yield Tree(path, name, str(path))
        return
    name = f"generated-{arguments.files}-{arguments.large >> 10}k"
    path = arguments.work / "trees" / name
    if not path.exists():
        say(f"generating {path}")
        partial = path.with_name(name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        trees.generate(partial, arguments.files, arguments.large)
        partial.rename(path)
    yield Tree(path, name, "generated tree")


def supported(programs: Programs, recipe) -> bool:
    """Whether the program was built with the recipe's compression, and the machine has the memory."""
    if recipe.memory > measure.free_memory():
        programs.skip(recipe.title, f"needs {recipe.memory >> 30} GiB of memory")
        return False
    if recipe.program != "mkfs.erofs":
        return True
    setting = next((word for word in recipe.arguments if word.startswith("-z")), None)
    if setting is None:
        return True
    wanted = setting.removeprefix("-z").partition(",")[0]
    if wanted in erofs_compressors(programs):
        return True
    programs.skip(recipe.title, f"this mkfs.erofs has no {wanted}")
    return False


def make_image(programs: Programs, recipe_name: str, tree: Path, image: Path):
    """Makes an image unless it is there; returns its path, or none with a notice."""
    return make_recipe(programs, RECIPES[recipe_name], tree, image)


def make_recipe(programs: Programs, recipe: Recipe, tree: Path, image: Path):
    """The same with settings that have no name of their own."""
    commands = recipe.commands(programs, tree, image)
    if not commands:
        return None
    if not supported(programs, recipe):
        return None
    if not image.exists():
        image.parent.mkdir(parents=True, exist_ok=True)
        say(f"making {image.name}")
        # Some programs insist on the end of the name.
        partial = image.with_name("partial-" + image.name)
        partial.unlink(missing_ok=True)
        measure.run(*recipe.commands(programs, tree, partial))
        partial.rename(image)
    return image


def start(arguments) -> tuple:
    """Programs and environment; the working directory exists afterwards."""
    arguments.work = arguments.work.resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    programs = Programs(arguments.bin.resolve(), arguments.reference)
    return programs, environment(programs)


def finish(arguments, programs, found, title: str, body: str, data: dict) -> None:
    """Adds what every report has, and writes it."""
    text = f"# {title}\n\n{report.about(found)}\n{body}\n{report.skipped(programs.skipped)}"
    data = {
        "environment": found,
        "skipped": programs.skipped,
        "arguments": [os.fsdecode(word) for word in sys.argv[1:]],
        **data,
    }
    report.write(arguments.out, text, data)


def run(main) -> None:
    """Runs a benchmark; an expected failure is one line, and nothing stays mounted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except (Failed, OSError) as error:
        say(f"{os.path.basename(sys.argv[0])}: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
