"""What all parts of the report share: data sets, images, rounds that can be interrupted."""

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

from . import cli, measure, trees
from .measure import Failed
from .programs import Programs, Recipe, say
from .store import Store


class OutOfTime(Exception):
    """The time that was allowed is over; what is stored stays."""


@dataclass
class Job:
    """One thing to measure: `run` gives the values of one round."""

    key: str
    run: object
    #: A failure of RedwarFS ends the run; others are left out.
    ours: bool = False


class Suite:
    """State of one run of the report."""

    def __init__(self, programs: Programs, store: Store, work: Path, scale: str, folders: dict):
        self.programs, self.store, self.work, self.scale = programs, store, work, scale
        #: Directories of the data sets by name.
        self.folders = folders
        self.levels = range(1, 10)
        #: Rounds of programs that are only shown for orientation.
        self.peer_rounds = 1
        #: Reading processes at the same time.
        self.jobs = 4
        self.random_files = 2000
        self.fio = False
        self.end = None
        self._entries = {}
        self._warm = set()

    def names(self, wanted) -> list:
        """Those of the wanted data sets that are here."""
        return [name for name in wanted if name in self.folders]

    def who(self) -> tuple:
        """`ours`, and `reference` if it is here."""
        return ("ours", "reference") if self.programs.path("reference/mkdwarfs") else ("ours",)

    def image(self, name: str, recipe: Recipe) -> Path:
        return self.work / "images" / name / recipe.name

    def made(self, name: str, recipe: Recipe):
        """The image of a data set, made if it is not there; none with a notice."""
        return self.made_of(name, recipe, self.folders[name])

    def made_of(self, name: str, recipe: Recipe, tree: Path):
        try:
            image = cli.make_recipe(self.programs, recipe, tree, self.image(name, recipe))
        except Failed as why:
            if recipe.program.startswith("ours/"):
                raise
            self.skip(f"{recipe.title}, {name}", why)
            return None
        if image:
            measure.warm(image)
        return image

    def entries(self, name: str) -> dict:
        """The tree of a data set, described."""
        if name not in self._entries:
            self._entries[name] = trees.describe(self.folders[name])
        return self._entries[name]

    def skip(self, what: str, why) -> None:
        text = str(why).replace(str(self.work), "WORK")
        for name, folder in self.folders.items():
            text = text.replace(str(folder), name)
        say(f"SKIPPED: {what}: {text}")
        self.store.skip(what, text.splitlines()[0][:200] if text else "failed")

    def alternate(self, jobs: list, number: int, rounds=None) -> None:
        """Round `number` of jobs that are compared with each other, if it is not stored yet."""
        if rounds is not None and number >= rounds or not jobs:
            return
        for job in measure.turns(jobs, number):
            if len(self.store.rounds(job.key)) > number or job.key in self.store.skipped:
                continue
            if not self.store.goes_on(job.key):
                continue
            if self.end and time.monotonic() > self.end:
                raise OutOfTime
            try:
                result = job.run()
            except Failed as why:
                if job.ours:
                    raise Failed(f"{job.key}: {why}") from why
                self.skip(job.key, why)
                continue
            self.store.add(job.key, result)
            say(f"{number + 1} {job.key}: " + ", ".join(
                f"{name} {value:,.3f}".removesuffix(".000") for name, value in result.items()
                if isinstance(value, (int, float))
            ))

    def warm(self, name: str) -> None:
        """Brings a data set into the page cache before it is used for the first time."""
        if name not in self._warm:
            self._warm.add(name)
            trees.survey(self.folders[name])

    def inspect(self, name: str, recipe: Recipe, image: Path) -> None:
        """Finds out once what a DwarFS image consists of."""
        self.store.fact(f"image/{name}/{recipe.name}", lambda: self._inspect(image))

    def _inspect(self, image: Path) -> dict:
        checker = self.programs.path("ours/dwarfsck")
        usage = measure.run([checker, image, "-j", "-d", "section_details"], capture=True)
        sections = json.loads(usage.output)["sections"]
        found = {
            "size": image.stat().st_size,
            "blocks": sum(s["type"] == "BLOCK" for s in sections),
            "metadata": sum(
                s["compressed_size"] for s in sections if s["type"].startswith("METADATA_V2")
            ),
        }
        locality = self.programs.ours / "examples/locality"
        if locality.is_file():
            text = measure.run([locality, image], capture=True).output.decode()
            # The last line is about all directories.
            found["spread"] = float(re.findall(r"([\d.]+) blocks each", text)[-1])
        else:
            self.programs.skip("blocks of a directory", "the example `locality` was not built")
        return found


def cost(usage: measure.Usage, **more) -> dict:
    """What is stored of a command: seconds and bytes."""
    return {"wall": usage.wall, "cpu": usage.cpu, "peak": usage.peak, **more}
