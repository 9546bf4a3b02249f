"""Raw results of a long run: on disk after each measurement, so that a run can go on later."""

import json
import os
from pathlib import Path

from .measure import Failed


class Store:
    """Results by key, one value for each round, and facts that are found once."""

    def __init__(self, path: Path, identity: dict):
        """`identity` says what is measured: results of something else are refused."""
        self.path = Path(path)
        self.data = {"identity": identity, "facts": {}, "results": {}, "skipped": {}}
        if self.path.exists():
            self.data = json.loads(self.path.read_text())
            if self.data["identity"] != identity:
                raise Failed(
                    f"{self.path} has results of other programs or of another scale: "
                    "--fresh starts anew"
                )

    def save(self) -> None:
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text(json.dumps(self.data, indent=1) + "\n")
        os.replace(partial, self.path)

    def rounds(self, key: str) -> list:
        """What was measured under a key; round n is element n."""
        return self.data["results"].get(key, [])

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
