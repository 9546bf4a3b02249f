"""Finds files that probably have data in common, from their names and samples of their contents.

Files form groups. The strongest evidence counts first:

1. Their samples have the same length and checksum.
2. All six minima of their samples agree, or four of them in two of three pairs. A minimum is the smallest of the hashes
   of all words of the sample, and each has hash values of its own (MinHash with bands). For samples that have the share
   `j` of all their words in common, two pairs agree with a probability of about `3 * j**4`: nearly always for 0.8, and
   0.005 for 0.2.
3. The last three names of their paths are equal but for letter case, numbers and digests, as those of versions are.
4. They are large, and their own names are equal in this way, as those of a library in several packages are.

A group grows up to a quarter of a shard. Groups that would be one without this limit are a family and follow each
other. Families are put in the order of the paths of their first files, because neighbours in the tree are similar in
ways that samples do not show.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from ._partition import Unit

# They make six hash values of one. Any constants do, but they must never change.
_MASKS = (0x00000000, 0x9E3779B9, 0x7F4A7C15, 0xF39CC060, 0x5CEDC834, 0x1082276B)
# Groups in a shard, at least.
_GROUPS = 4
# Files whose samples are read at the same time, or wait for that.
_WINDOW = 4096
# Samples with fewer words say too little.
_FEWEST_WORDS = 8

_WORD = re.compile(rb"[0-9A-Za-z_\x80-\xff]{3,}")
# Digests have at least six digits of base 16, one of them a decimal digit.
_DIGITS = r"(?:(?<![0-9a-z])(?=[a-f]*\d)[0-9a-f]{6,}(?![0-9a-z])|\d+)"
_NUMBERS = re.compile(rf"{_DIGITS}(?:[-_.]?{_DIGITS})*")
# Bytes from which a name alone says that files are similar: nearly each package has an `index.js`.
_LARGE = 64 << 10


class _Evidence(IntEnum):
    """Why two files may be similar, the best reason first."""

    EQUAL = 0
    ALL_PAIRS = 1
    TWO_PAIRS = 2
    NAMES = 3
    NAME = 4


def families(
    root: str, units: list[Unit], shards: int, sample: int, threads: int
) -> list[list[list[Unit]]]:
    """The units in families, each of one or more groups."""
    largest = sum(unit.weight for unit in units) // (shards * _GROUPS)
    keys = partial(_keys, root, sample)
    found: list[dict[_Evidence, list[Any]]] = []
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for start in range(0, len(units), _WINDOW):
            found.extend(pool.map(keys, units[start : start + _WINDOW]))
    grouped, related = _Sets(units, largest), _Sets(units, sum(unit.weight for unit in units))
    newest: dict[Any, int] = {}
    for evidence in _Evidence:
        newest.clear()
        for number, of_unit in enumerate(found):
            for key in of_unit.get(evidence, ()):
                other = newest.get(key, number)
                grouped.join(number, other)
                related.join(number, other)
                # If a group is full, the next units with this key join the newer one.
                newest[key] = number
    # The first unit of a set is the one with the first path.
    members: dict[int, dict[int, list[Unit]]] = {}
    for number, unit in enumerate(units):
        family = members.setdefault(related.first(number), {})
        family.setdefault(grouped.first(number), []).append(unit)
    return [list(family.values()) for family in members.values()]


class _Sets:
    """Disjoint sets of units, by their numbers, up to a weight."""

    def __init__(self, units: list[Unit], largest: int) -> None:
        self._largest = largest
        # Each unit points to an earlier one of its set, and the first one to itself.
        self._leaders = list(range(len(units)))
        self._weights = [unit.weight for unit in units]

    def first(self, number: int) -> int:
        """The first unit of the set of a unit."""
        leaders = self._leaders
        while leaders[number] != number:
            leaders[number] = leaders[leaders[number]]
            number = leaders[number]
        return number

    def join(self, one: int, two: int) -> None:
        """Joins two sets, unless they would be too large together."""
        early, late = sorted((self.first(one), self.first(two)))
        together = self._weights[early] + self._weights[late]
        if early != late and together <= self._largest:
            self._leaders[late] = early
            self._weights[early] = together


def _keys(root: str, sample: int, unit: Unit) -> dict[_Evidence, list[Any]]:
    """What similar units have in common."""
    if not unit.is_file or unit.size == 0:
        return {}
    names = _NUMBERS.sub("0", unit.paths[0].lower()).split("/")
    keys: dict[_Evidence, list[Any]] = {_Evidence.NAMES: ["/".join(names[-3:])]}
    if unit.size >= _LARGE:
        keys[_Evidence.NAME] = [names[-1]]
    if sample > 0:
        data = _sample(os.path.join(root, unit.paths[0]), unit.size, sample)
        keys[_Evidence.EQUAL] = [(len(data), crc32(data))]
        words = set(_WORD.findall(data))
        if len(words) >= _FEWEST_WORDS:
            hashes = [crc32(word) for word in words]
            minima = [min([value ^ mask for value in hashes]) for mask in _MASKS]
            pairs = [(at, *minima[at : at + 2]) for at in range(0, len(minima), 2)]
            keys[_Evidence.ALL_PAIRS] = [tuple(minima)]
            keys[_Evidence.TWO_PAIRS] = list(combinations(pairs, 2))
    return keys


def _sample(path: str, size: int, sample: int) -> bytes:
    """The bytes at the start and in the middle of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if size <= sample:
            return os.pread(descriptor, sample, 0)
        half = sample // 2
        middle = max(half, size // 2)
        return os.pread(descriptor, half, 0) + os.pread(descriptor, sample - half, middle)
    finally:
        os.close(descriptor)
