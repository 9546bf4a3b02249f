"""Raw results of a long run: on disk after each measurement, so that a run can go on later."""

import json
import os
import re
from pathlib import Path

from .measure import Failed


class Store:
    """Results by key, one value for each round, and facts that are found once."""

    def __init__(self, path: Path, identity: dict, keep: re.Pattern | None = None,
                 more: re.Pattern | None = None):
        """`identity` says what is measured: results of something else are refused, or those whose
        key neither `keep` nor `more` matches are thrown away. What `more` matches gets further
        rounds all the same."""
        self.path = Path(path)
        self._more = more
        #: Names in `identity` of the programs that others have replaced since the last run: what
        #: lies around may be by others, too, if nothing says who made it.
        self.replaced = list(identity)
        self.data = {"identity": identity, "facts": {}, "results": {}, "skipped": {}}
        if not self.path.exists():
            return
        found = json.loads(self.path.read_text())
        if found["identity"] != identity and keep is None and more is None:
            raise Failed(
                f"{self.path} has results of other programs or of another scale: "
                "--fresh starts anew, --keep and --more take some of them over"
            )
        self.data = found
        self.replaced = [name for name, value in identity.items()
                         if found["identity"].get(name) != value]
        if self.replaced:
            self._take_over(identity, [regex for regex in (keep, more) if regex])

    def _take_over(self, identity: dict, keep: list) -> None:
        """Keeps what is asked for, and notes that other programs did it."""
        kept = {key: value for key, value in self.data["results"].items()
                if any(regex.match(key) for regex in keep)}
        mixed = [key for key in self.data.get("mixed", []) if key in kept]
        for what in ("skipped", "limits"):
            self.data[what] = {key: value for key, value in self.data.get(what, {}).items()
                               if any(regex.match(key) for regex in keep)}
        self.data.update(identity=identity, results=kept, mixed=mixed,
                         earlier=[key for key in kept if key not in mixed])
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
        """Whether other programs did what is there."""
        return any(key in self.data.get(kind, []) for kind in ("earlier", "mixed"))

    def goes_on(self, key: str) -> bool:
        """Whether there may be further rounds: images that other programs made get them on request."""
        if not self.is_earlier(key):
            return True
        sized = all("size" in round for round in self.rounds(key))
        return bool(sized and self._more and self._more.match(key))

    def add(self, key: str, value) -> None:
        """Another round. One with a file of another size than those that other programs made is
        refused: that would not be the same work."""
        found = self.data["results"].setdefault(key, [])
        if self.is_earlier(key):
            sizes = [round["size"] for round in [*found, value] if "size" in round]
            # Times and paths in it are not the same.
            if sizes and max(sizes) > 1.001 * min(sizes):
                raise Failed(f"{key}: earlier programs made files of another size: {sizes}")
            if key not in self.data.setdefault("mixed", []):
                self.data["mixed"].append(key)
                self.data["earlier"].remove(key)
        found.append(value)
        self.save()

    def fact(self, key: str, find):
        """A fact; `find` is asked when it is not known yet."""
        facts = self.data["facts"]
        if key not in facts:
            facts[key] = find()
            self.save()
        return facts[key]

    def skip(self, what: str, why: str, limit=None) -> None:
        """Leaves something out: for good, or until it may take longer than `limit` seconds."""
        self.data["skipped"][what] = why
        if limit is not None:
            self.data.setdefault("limits", {})[what] = limit
        self.save()

    def left_out(self, what: str, limit) -> bool:
        """Whether something was left out that would be again within `limit` seconds."""
        if what not in self.skipped:
            return False
        before = self.data.get("limits", {}).get(what)
        if before is None or limit is not None and limit <= before:
            return True
        del self.skipped[what], self.data["limits"][what]
        return False

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
