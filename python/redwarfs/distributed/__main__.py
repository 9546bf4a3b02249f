"""`python -m redwarfs.distributed`: builds an image in the jobs of a batch system.

    plan PLAN SOURCE DESTINATION --shards N      divides the tree
    shard PLAN NUMBER                            builds a shard, for example in a job of an array
    merge PLAN TARGET                            joins the shards
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

from .._build import check_options, option_names
from . import _store
from ._merge import merge
from ._partition import BY, Partition, partition
from ._shard import Shard, build_shard, check_entries, shard_place

# The plan is lines of JSON, a head and one line for each part, so that a job reads only its own.
_FORMAT = "redwarfs-plan-1"
_OF_PARTS = ("size", "kinds", "paths", "directories")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program, and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m redwarfs.distributed", description="Build an image on many machines."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    plan = commands.add_parser("plan", help="divide a tree")
    plan.add_argument("plan", metavar="PLAN", help="the file that says how")
    plan.add_argument("source", metavar="SOURCE", help="the directory with the tree")
    plan.add_argument("destination", metavar="DESTINATION", help="directory or URL for the shards")
    plan.add_argument("--shards", type=int, required=True, metavar="N", help="number of parts")
    plan.add_argument("--by", choices=BY, default="directory", help="[default: directory]")
    plan.add_argument("--level", type=int, choices=range(10), default=7, metavar="0..9", help="[default: 7]")
    plan.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of mkdwarfs"
    )
    plan.add_argument("--overwrite", action="store_true", help="replace an existing plan")
    plan.set_defaults(run=_plan)

    shard = commands.add_parser("shard", help="build a shard")
    shard.add_argument("plan", metavar="PLAN")
    shard.add_argument("number", metavar="NUMBER", type=int, help="from 0")
    shard.add_argument("--num-workers", type=int, metavar="N", help="threads [default: all CPUs]")
    shard.add_argument("--rebuild", action="store_true", help="replace a shard that is there")
    shard.set_defaults(run=_shard)

    join = commands.add_parser("merge", help="join the shards")
    join.add_argument("plan", metavar="PLAN")
    join.add_argument("target", metavar="TARGET", help="path or URL of the image")
    join.add_argument("--overwrite", action="store_true", help="replace an existing image")
    join.add_argument("--repack", type=int, default=0, metavar="PERCENT", help="[default: 0]")
    join.set_defaults(run=_merge)

    given = parser.parse_args(arguments)
    try:
        given.run(given)
        return 0
    except (OSError, ValueError, TypeError) as e:
        where = ""
        if isinstance(e, OSError) and e.filename:
            where = f"{os.fsdecode(e.filename)}: "
        reason = e.strerror if isinstance(e, OSError) else None
        hint = ""
        if isinstance(e, FileExistsError) and "overwrite" in given:
            hint = " (--overwrite replaces it)"
        print(f"redwarfs.distributed: {where}{reason or e}{hint}", file=sys.stderr)
        return 1


def _plan(given: argparse.Namespace) -> None:
    options: dict[str, Any] = {}
    for option in given.option:
        name, _, value = option.partition("=")
        name = name.replace("-", "_")
        if not value or name not in option_names():
            raise ValueError(f"no option of mkdwarfs with its value: {option}")
        options.setdefault(name, []).append(value)
    check_options(given.level, options)
    _store.refuse_password(given.destination)
    place = _store.check_target(os.path.abspath(given.plan), given.overwrite)
    parts = partition(given.source, given.shards, given.by)
    head = {
        "format": _FORMAT,
        "source": os.path.abspath(given.source),
        "destination": _store.absolute(given.destination),
        "count": len(parts),
        "level": given.level,
        "options": options,
    }

    def write(file: BinaryIO) -> None:
        file.write(f"{json.dumps(head)}\n".encode("ascii"))
        for part in parts:
            line = {name: getattr(part, name) for name in _OF_PARTS}
            file.write(f"{json.dumps(line)}\n".encode("ascii"))

    # It has the names of all entries, also of those in directories that others cannot read.
    _store.publish(place, write, mode=0o600)
    print(_counted(len(parts)))


def _counted(parts: int) -> str:
    return "1 part" if parts == 1 else f"{parts} parts"


class _Plan:
    """A plan, as far as it has been read."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, encoding="ascii") as file:
            try:
                head = json.loads(file.readline())
                if head["format"] != _FORMAT:
                    raise ValueError
                self.source: str = head["source"]
                self.destination: str = head["destination"]
                self.count: int = head["count"]
                self.level: int = head["level"]
                self.options: dict[str, Any] = head["options"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{path}: not a plan") from None

    def parts(self, wanted: int | None = None) -> list[Partition]:
        """The part with a number, or all of them."""
        found = []
        with open(self.path, encoding="ascii") as file:
            file.readline()
            for number, line in enumerate(file):
                if wanted is None or wanted == number:
                    try:
                        part = json.loads(line)
                        found.append(
                            Partition(
                                source=self.source,
                                number=number,
                                count=self.count,
                                paths=tuple(part["paths"]),
                                kinds=part["kinds"],
                                directories=tuple((path, of) for path, of in part["directories"]),
                                size=part["size"],
                            )
                        )
                    except (ValueError, KeyError, TypeError):
                        raise ValueError(f"{self.path}: part {number} is damaged") from None
        return found


def _shard(given: argparse.Namespace) -> None:
    plan = _Plan(given.plan)
    parts = plan.parts(given.number)
    if not parts:
        # The tree may have fewer entries than there are jobs.
        print(f"the plan has {_counted(plan.count)}, so part {given.number} is empty")
        return
    options = dict(plan.options)
    if given.num_workers is not None:
        options["num_workers"] = given.num_workers
    shard = build_shard(
        parts[0], plan.destination, rebuild=given.rebuild, level=plan.level, **options
    )
    for warning in shard.warnings:
        print(f"redwarfs.distributed: {warning}", file=sys.stderr)
    what = "is there" if shard.reused else "built"
    print(f"{shard.path}: {what}, {shard.size} bytes")


def _merge(given: argparse.Namespace) -> None:
    plan = _Plan(given.plan)
    shards = []
    for part in plan.parts():
        place = shard_place(part, plan.destination, plan.level, plan.options)
        size = _store.size_of_image(place)
        if size is None:
            check_entries(part)
            raise FileNotFoundError(2, "not built, or the tree has changed since then", place)
        shards.append(Shard(place, part.number, part.count, size, True))
    options = {"overwrite": given.overwrite, "repack": given.repack, **plan.options}
    done = merge(shards, given.target, level=plan.level, **options)
    for message in [*done.warnings, *done.problems]:
        print(f"redwarfs.distributed: {message}", file=sys.stderr)
    print(f"{given.target}: {done.image_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
