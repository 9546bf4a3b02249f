"""Raw results of a long run: on disk after each measurement, so that a run can go on later."""

import json
import os
import re
from pathlib import Path

from .measure import Failed


class Store:
    """Results by key, one value for each round, and facts that are found once."""

    def __init__(self, path: Path, identity: dict, keep: re.Pattern | None = None):
        """`identity` says what is measured: results of something else are refused, or those whose
        key `keep` does not match are thrown away."""
        self.path = Path(path)
        self.data = {"identity": identity, "facts": {}, "results": {}, "skipped": {}}
        if not self.path.exists():
            return
        found = json.loads(self.path.read_text())
        if found["identity"] != identity and keep is None:
            raise Failed(
                f"{self.path} has results of other programs or of another scale: "
                "--fresh starts anew, --keep takes some of them over"
            )
        self.data = found
        if found["identity"] != identity:
            self._take_over(identity, keep)

    def _take_over(self, identity: dict, keep: re.Pattern) -> None:
        """Keeps what is asked for, and notes that other programs did it."""
        kept = {key: value for key, value in self.data["results"].items() if keep.match(key)}
        # What was left out then is still not there.
        self.data.update(identity=identity, results=kept, earlier=list(kept))
        facts = self.data["facts"]
        for key in [key for key in facts if key.startswith("image/") and not _made(key, kept)]:
            del facts[key]

    def save(self) -> None:
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text(json.dumps(self.data, indent=1) + "\n")
        os.replace(partial, self.path)

    def rounds(self, key: str) -> list:
        """What was measured under a key; round n is element n."""
        return self.data["results"].get(key, [])

    def is_earlier(self, key: str) -> bool:
        """Whether other programs did what is there: it gets no further rounds."""
        return key in self.data.get("earlier", [])

    def add(self, key: str, value) -> None:
        self.data["results"].setdefault(key, []).append(value)
        self.save()

    def fact(self, key: str, find):
        """A fact; `find` is asked when it is not known yet."""
        facts = self.data["facts"]
        if key not in facts:
            facts[key] = find()
            self.save()
        return facts[key]

    def skip(self, what: str, why: str) -> None:
        self.data["skipped"][what] = why
        self.save()

    @property
    def skipped(self) -> dict:
        return self.data["skipped"]


def _made(fact: str, results: dict) -> bool:
    """Whether the building of the image that a fact is about is among the results."""
    _, name, recipe = fact.split("/", 2)
    who, _, level = recipe.partition("-l")
    return f"build/{name}/{level}/{who}" in results


class Results:
    """Reading access to raw results, for the parts of a report."""

    def __init__(self, data: dict):
        self.facts, self._results = data["facts"], data["results"]

    def series(self, key: str, field: str) -> list:
        """One field of all rounds; empty when nothing was measured."""
        return [value.get(field) for value in self._results.get(key, [])]

    def has(self, key: str) -> bool:
        return bool(self._results.get(key))

    def names(self, prefix: str, place: int) -> list:
        """The different words at a place of all keys that start with a prefix, as they came."""
        words = (key.split("/") for key in self._results if key.startswith(prefix))
        return list(dict.fromkeys(parts[place] for parts in words if len(parts) > place))
