"""What all parts of the report share: data sets, images, rounds that can be interrupted."""

import json
import os
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
    #: Seconds that a command of it may take, if that is less than the limit of the run.
    limit: float | None = None
    #: Key of the same work with an easier setting: what outlasts a limit with that one is not tried.
    easier: str | None = None


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
        #: A pattern of the keys to measure; without it, all.
        self.keys = None
        self._entries = {}
        self._warm = set()

    def names(self, wanted) -> list:
        """Those of the wanted data sets that are here."""
        return [name for name in wanted if name in self.folders]

    def who(self) -> tuple:
        """`ours`, and `reference` if it is here."""
        return ("ours", "reference") if self.programs.path("reference/mkdwarfs") else ("ours",)

    def forget(self, who: str) -> None:
        """Removes images of a program that another build has replaced."""
        for image in self.work.glob(f"images/*/{who}-*"):
            image.unlink()

    def image(self, name: str, recipe: Recipe) -> Path:
        return self.work / "images" / name / (recipe.name + recipe.suffix)

    def made(self, name: str, recipe: Recipe):
        """The image of a data set, made if it is not there; none with a notice."""
        return self.made_of(name, recipe, self.folders[name])

    def made_of(self, name: str, recipe: Recipe, tree: Path):
        what = f"{recipe.title}, {name}"
        if self.store.left_out(what, measure.time_limit):
            return None
        try:
            with measure.limited(recipe.limit):
                image = cli.make_recipe(self.programs, recipe, tree, self.image(name, recipe))
        except Failed as why:
            if recipe.program.startswith("ours/"):
                raise
            self.skip(what, why)
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
        self.store.skip(what, text.splitlines()[0][:200] if text else "failed",
                        getattr(why, "limit", None))

    def alternate(self, jobs: list, number: int, rounds=None) -> None:
        """Round `number` of jobs that are compared with each other, if it is not stored yet."""
        if rounds is not None and number >= rounds or not jobs:
            return
        for job in measure.turns(jobs, number):
            if self.keys and not self.keys.search(job.key):
                continue
            limits = [limit for limit in (job.limit, measure.time_limit) if limit is not None]
            if len(self.store.rounds(job.key)) > number:
                continue
            limit = min(limits, default=None)
            if self.store.left_out(job.key, limit) or self._hopeless(job, limit):
                continue
            if not self.store.goes_on(job.key):
                continue
            if self.end and time.monotonic() > self.end:
                raise OutOfTime
            load = os.getloadavg()[0]
            try:
                with measure.limited(job.limit):
                    result = job.run()
            except Failed as why:
                if job.ours:
                    raise Failed(f"{job.key}: {why}") from why
                self.skip(job.key, why)
                continue
            self.store.add(job.key, {**result, "load": load})
            say(f"{number + 1} {job.key}: " + ", ".join(
                f"{name} {value:,.3f}".removesuffix(".000") for name, value in result.items()
                if isinstance(value, (int, float))
            ))

    def _hopeless(self, job: Job, limit) -> bool:
        """Whether an easier setting took too long; the report says so."""
        before = self.store.data.get("limits", {}).get(job.easier)
        if before is None or limit is None or limit > before:
            return False
        why = self.store.skipped[job.easier]
        if not why.startswith("not tried"):
            why = f"not tried: {job.easier.rpartition('/')[2]} {why}"
        say(f"SKIPPED: {job.key}: {why}")
        self.store.skip(job.key, why, before)
        return True

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
    """What is stored of a command: seconds and bytes, and how many CPUs others kept busy."""
    # What ends at once is over before anybody looks at its memory.
    return {"wall": usage.wall, "cpu": usage.cpu, "peak": usage.peak or None,
            "others": usage.others(), **more}
