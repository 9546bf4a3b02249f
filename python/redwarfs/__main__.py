"""`python -m redwarfs`: lists, prints and extracts the entries of images."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Sequence

from . import __version__
from ._image import Image, open as _open


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program, and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m redwarfs", description="Read DwarFS images."
    )
    parser.add_argument("--version", action="version", version=f"redwarfs {__version__}")
    reader = argparse.ArgumentParser(add_help=False)
    reader.add_argument("image", metavar="IMAGE", help="an image file, or the URL of one on a server")
    reader.add_argument(
        "--snapshot", metavar="NAME|NUMBER|TIME", help="an older state of the image [default: the newest]"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    ls = commands.add_parser("ls", parents=[reader], help="list entries")
    ls.add_argument("paths", metavar="PATH", nargs="*", help="[default: the root]")
    ls.add_argument("-l", dest="long", action="store_true", help="with attributes")
    ls.add_argument("-R", dest="recursive", action="store_true", help="with all entries below")
    ls.set_defaults(run=_ls)

    cat = commands.add_parser("cat", parents=[reader], help="write files to standard output")
    cat.add_argument("paths", metavar="PATH", nargs="+")
    cat.set_defaults(run=_cat)

    extract = commands.add_parser("extract", parents=[reader], help="extract into a directory")
    extract.add_argument("directory", metavar="DIRECTORY")
    extract.add_argument("paths", metavar="PATH", nargs="*", help="[default: everything]")
    extract.add_argument(
        "--continue-on-error", action="store_true", help="leave out what cannot be read"
    )
    extract.set_defaults(run=_extract)

    info = commands.add_parser("info", parents=[reader], help="print numbers about an image")
    info.add_argument("--json", action="store_true", help="for programs")
    info.add_argument("--verify", action="store_true", help="compare all checksums, too")
    info.set_defaults(run=_info)

    given = parser.parse_args(arguments)
    try:
        code: int = given.run(_open(given.image, snapshot=given.snapshot), given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has seen enough. Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as e:
        where = f"{_shown(e.filename)}: " if e.filename else ""
        print(f"redwarfs: {where}{e.strerror or e}", file=sys.stderr)
        return 1


def _ls(image: Image, given: argparse.Namespace) -> int:
    for path in given.paths or [""]:
        image.lstat(path)
        if not image.is_dir(path) or image.is_symlink(path):
            _line(image, path, given.long)
        elif given.recursive:
            for directory, directories, files in image.walk(path):
                prefix = f"{directory}/" if directory else ""
                for name in sorted([*directories, *files]):
                    _line(image, prefix + name, given.long)
        else:
            for entry in image.scandir(path):
                _line(image, entry.path, given.long)
    return 0


def _line(image: Image, path: str, long: bool) -> None:
    if not long:
        print(_shown(path))
        return
    found = image.lstat(path)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found.st_mtime))
    target = f" -> {_shown(image.readlink(path))}" if stat.S_ISLNK(found.st_mode) else ""
    print(
        f"{stat.filemode(found.st_mode)} {found.st_nlink:3} {found.st_uid:5} {found.st_gid:5} "
        f"{found.st_size:12} {when} {_shown(path)}{target}"
    )


def _cat(image: Image, given: argparse.Namespace) -> int:
    sys.stdout.flush()
    for path in given.paths:
        with image.open(path, "rb", 0) as file:
            shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
    return 0


def _extract(image: Image, given: argparse.Namespace) -> int:
    done = image.extract(
        given.directory,
        paths=given.paths or None,
        continue_on_error=given.continue_on_error,
    )
    for message in (*done.warnings, *done.damaged):
        print(f"redwarfs: {message}", file=sys.stderr)
    return 2 if done.errors else 0


def _info(image: Image, given: argparse.Namespace) -> int:
    numbers: dict[str, object] = dict(vars(image.info()))
    findings = image.verify() if given.verify else []
    if given.json:
        if given.verify:
            numbers["findings"] = [vars(finding) for finding in findings]
        print(json.dumps(numbers, indent=1))
    else:
        for name, number in numbers.items():
            print(f"{name.replace('_', ' ')}: {number}")
        for finding in findings:
            print(f"damage: {finding.message}")
        if given.verify and not findings:
            print("no damage")
    return 1 if findings else 0


def _shown(path: object) -> str:
    """A path in one line that any terminal can print."""
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else str(path)
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


if __name__ == "__main__":
    # Ctrl-C ends the program, also where it waits for a server, unless a shell has started it in the background.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
