"""The programs that are compared: where they are, how images are made, how they are mounted."""

import atexit
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import measure
from .measure import Failed

REPOSITORY = Path(__file__).resolve().parents[2]


class Programs:
    """Paths of all programs; what is missing is told once and remembered."""

    def __init__(self, ours: Path, reference=None):
        self.ours = Path(ours)
        reference = reference or os.environ.get("REDWARFS_REFERENCE")
        self.reference = Path(reference) if reference else None
        self.skipped = {}

    def path(self, name: str):
        """A program by the name used in recipes; none if it is not here."""
        where, _, program = name.rpartition("/")
        if where == "ours":
            found = self.ours / program
            if not found.is_file():
                raise Failed(f"{found} is missing: run `cargo build --release` or give --bin")
            return str(found)
        if where == "reference":
            if self.reference is None:
                self.skip("reference", "REDWARFS_REFERENCE is not set")
                return None
            found = self.reference / program
            if found.is_file():
                return str(found)
            self.skip("reference", f"its directory has no {program}")
            return None
        found = shutil.which(program)
        if not found:
            self.skip(program, "not installed")
        return found

    def skip(self, what: str, why: str) -> None:
        if what not in self.skipped:
            self.skipped[what] = why
            say(f"SKIPPED: {what}: {why}")


def say(text: str) -> None:
    """Progress, on standard error."""
    os.write(2, (text + "\n").encode(errors="surrogateescape"))


# --- images ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How to make an image: the program and its arguments, with `{tree}` and `{image}`."""

    name: str
    #: Names the settings in tables.
    title: str
    program: str
    arguments: tuple
    #: Further programs, each fed by the one before.
    then: tuple = ()
    #: Ending of the image's name that the program insists on.
    suffix: str = ""
    #: Seconds that making it may take, if that is less than the limit of the run.
    limit: float | None = None
    #: Bytes of memory that it takes whatever the data.
    memory: int = 0

    def commands(self, programs: Programs, tree, image):
        """The command lines; none if a program is missing."""
        lines = []
        for program, arguments in ((self.program, self.arguments), *self.then):
            found = programs.path(program)
            if not found:
                return None
            words = (word.replace("{tree}", str(tree)) for word in arguments)
            lines.append([found, *(word.replace("{image}", str(image)) for word in words)])
        return lines


def dwarfs_recipe(who: str, level: int, *more: str) -> Recipe:
    """`mkdwarfs` of `ours` or of the `reference` at a level, with further options."""
    name = "RedwarFS" if who == "ours" else "reference"
    return Recipe(
        "".join((f"{who}-l{level}", *more)).replace("=", "-"),
        " ".join((f"{name} -l{level}", *more)),
        f"{who}/mkdwarfs",
        ("-i", "{tree}", "-o", "{image}", f"-l{level}", "--with-devices", "--with-specials",
         "--no-progress", "--log-level=error", *more),
    )


def _squashfs(name: str, title: str, *settings: str) -> Recipe:
    fixed = ("-no-progress", "-quiet", "-noappend", "-no-xattrs")
    return Recipe(name, title, "mksquashfs", ("{tree}", "{image}", *fixed, *settings))


def _erofs(name: str, title: str, *settings: str) -> Recipe:
    return Recipe(name, title, "mkfs.erofs", ("-x-1", "--quiet", *settings, "{image}", "{tree}"))


def erofs_recipe(name: str, *settings: str) -> Recipe:
    """`mkfs.erofs` with settings that have no name of their own."""
    return _erofs(name, name, *settings)


def squashfs_recipe(name: str, *settings: str) -> Recipe:
    """`mksquashfs` with settings that have no name of their own."""
    return _squashfs(name, name, *settings)


def _tar(name: str, title: str, *then, **more) -> Recipe:
    arguments = ("--numeric-owner", "--sort=name", "-C", "{tree}", "-cf", "-", ".")
    return Recipe(name, title, "tar", arguments, then, **more)


def _tar_zstd(name: str, title: str, *settings: str) -> Recipe:
    return _tar(name, title, ("zstd", ("-q", "-f", *settings, "-o", "{image}")))


def _zpaq(method: int, program: str = "zpaq", *settings: str) -> Recipe:
    return Recipe(f"{program}-m{method}", f"{program} -m{method}", program,
                  ("add", "{image}", "{tree}", f"-m{method}", *settings), suffix=".zpaq",
                  limit=ZPAQ_LIMIT)


def _seven_zip(name: str, title: str, *settings: str, **more) -> Recipe:
    return Recipe(name, title, "7z", ("a", "-bd", "-bso0", "-snl", "-t7z", "-mx=9", *settings,
                                      "{image}", "{tree}"), suffix=".7z", **more)


def _xz(*settings: str) -> tuple:
    # Into a file of its own: xz names its output after its input only.
    return ("sh", ("-c", f'xz {" ".join(settings)} -c > "$1"', "sh", "{image}"))


def _wim(name: str, title: str, *settings: str) -> Recipe:
    return Recipe(name, title, "wimlib-imagex",
                  ("capture", "{tree}", "{image}", "--unix-data", *settings))


#: By itself, lrzip lets all other work go first.
LRZIP = ("-q", "-f", "-N", "0")
#: A zpaq method that takes longer is of no use for an image.
ZPAQ_LIMIT = 600.0

RECIPES = {
    recipe.name: recipe
    for recipe in (
        *(dwarfs_recipe("ours", level) for level in range(10)),
        *(dwarfs_recipe("reference", level) for level in range(10)),
        _squashfs("squashfs-lz4", "squashfs lz4, 1 MiB", "-comp", "lz4", "-b", "1M"),
        _squashfs("squashfs-lz4hc", "squashfs lz4hc, 1 MiB", "-comp", "lz4", "-Xhc", "-b", "1M"),
        _squashfs("squashfs-zstd19", "squashfs zstd 19, 1 MiB",
                  "-comp", "zstd", "-Xcompression-level", "19", "-b", "1M"),
        _squashfs("squashfs-zstd22", "squashfs zstd 22, 1 MiB",
                  "-comp", "zstd", "-Xcompression-level", "22", "-b", "1M"),
        _squashfs("squashfs-xz", "squashfs xz, 1 MiB", "-comp", "xz", "-b", "1M"),
        _squashfs("squashfs-zstd15-128k", "squashfs zstd 15, 128 KiB (its defaults)",
                  "-comp", "zstd"),
        _erofs("erofs-lz4", "erofs lz4, 64 KiB", "-zlz4", "-C65536"),
        _erofs("erofs-lz4hc", "erofs lz4hc 12, 1 MiB", "-zlz4hc,12", "-C1048576"),
        _erofs("erofs-lzma", "erofs lzma 9, 1 MiB", "-zlzma,9", "-C1048576"),
        _erofs("erofs-zstd19", "erofs zstd 19, 1 MiB", "-zzstd,19", "-C1048576"),
        _erofs("erofs-zstd22", "erofs zstd 22, 1 MiB, deduplicated", "-zzstd,22", "-C1048576",
               "-Eall-fragments,dedupe"),
        _tar_zstd("tar-zstd1", "tar, zstd 1", "-1"),
        _tar_zstd("tar-zstd19", "tar, zstd 19", "-19"),
        _tar_zstd("tar-zstd19-long", "tar, zstd 19, long distance", "-19", "--long=27", "-T0"),
        _tar_zstd("tar-zstd22", "tar, zstd 22", "--ultra", "-22"),
        _tar_zstd("tar-zstd22-long", "tar, zstd --ultra -22 --long=31", "--ultra", "-22",
                  "--long=31"),
        _tar("tar-gz", "tar, gzip 9", ("sh", ("-c", 'gzip -9 > "$1"', "sh", "{image}"))),
        _tar("tar-xz", "tar, xz 9", _xz("-9", "-T0")),
        _tar("tar-xz-1536m", "tar, xz 9, dictionary of 1.5 GiB",
             _xz("-T1", "--lzma2=preset=9,dict=1536MiB"), memory=17 << 30),
        _tar("lrzip", "tar, lrzip", ("lrzip", (*LRZIP, "-o", "{image}", "-")), suffix=".lrz"),
        _tar("lrzip-zpaq", "tar, lrzip -z", ("lrzip", (*LRZIP, "-z", "-o", "{image}", "-")),
             suffix=".lrz"),
        *(_zpaq(method) for method in range(1, 6)),
        *(_zpaq(method, "zpaqfranz", "-noeta", "-nocolor") for method in (1, 3)),
        _seven_zip("7z", "7z -mx9"),
        _seven_zip("7z-1g", "7z -mx9, dictionary of 1 GiB", "-md=1g", memory=13 << 30),
        _wim("wim-lzx", "wim LZX"),
        _wim("wim-solid", "wim LZMS, solid", "--solid"),
    )
}


def erofs_compressors(programs: Programs) -> set:
    """What this mkfs.erofs was built with."""
    program = programs.path("mkfs.erofs")
    if not program:
        return set()
    result = subprocess.run([program, "--help"], capture_output=True, text=True)
    return listed_compressors(result.stdout + result.stderr)


def listed_compressors(text: str) -> set:
    """The compressors that the help of some version of `mkfs.erofs` lists."""
    short = re.search(r"Available compressors are:(.*)", text)
    if short:
        return set(re.findall(r"\w+", short[1]))
    _, _, listed = text.partition("compressors and their option ranges are:")
    found = set()
    for line in listed.splitlines()[1:]:
        word = line.strip()
        if word.startswith("-"):
            break
        # Options of a compressor follow it, in brackets or as sentences.
        if re.fullmatch(r"[a-z]\w*", word):
            found.add(word)
    return found


# --- mounts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Driver:
    """How to mount: command line with `{image}` and `{mnt}`."""

    name: str
    program: str
    arguments: tuple
    fuse: bool
    #: Whether the image keeps and the driver shows every attribute.
    exact: bool = True


DRIVERS = {
    driver.name: driver
    for driver in (
        Driver("RedwarFS", "ours/dwarfs", ("{image}", "{mnt}"), True),
        Driver("reference", "reference/dwarfs", ("{image}", "{mnt}"), True),
        Driver("squashfuse_ll", "squashfuse_ll", ("{image}", "{mnt}"), True),
        Driver("squashfuse", "squashfuse", ("{image}", "{mnt}"), True),
        Driver("erofsfuse", "erofsfuse", ("{image}", "{mnt}"), True),
        # Shows symbolic links without their sizes.
        Driver("wimlib", "wimlib-imagex", ("mount", "{image}", "1", "{mnt}", "--unix-data"), True,
               exact=False),
        Driver("ratarmount", "ratarmount", ("{image}", "{mnt}"), True, exact=False),
        Driver("kernel squashfs", "mount",
               ("-t", "squashfs", "-o", "loop,ro", "{image}", "{mnt}"), False),
        Driver("kernel erofs", "mount",
               ("-t", "erofs", "-o", "loop,ro", "{image}", "{mnt}"), False),
    )
}


def mounted_title(driver: str, recipe: str) -> str:
    """A driver and its image for people: `kernel erofs, lz4 64 KiB`."""
    known = RECIPES[recipe].title if recipe in RECIPES else recipe
    for name in ("RedwarFS ", "reference ", "erofs ", "squashfs ", "wim "):
        known = known.removeprefix(name)
    return f"{driver} {known}" if known.startswith("-l") else f"{driver}, {known}"


def kernel_knows(file_system: str) -> bool:
    """Whether the kernel can mount it."""
    def listed():
        return any(line.split()[-1] == file_system for line in open("/proc/filesystems"))

    if not listed() and shutil.which("modprobe"):
        subprocess.run(["modprobe", "-q", file_system], stderr=subprocess.DEVNULL)
    return listed()


def usable(programs: Programs, driver: Driver):
    """The driver's program if it can be used here."""
    if not driver.fuse:
        kind = driver.arguments[1]
        if os.geteuid() != 0:
            programs.skip(driver.name, "only root can mount in the kernel")
            return None
        if not kernel_knows(kind):
            programs.skip(driver.name, "not in this kernel")
            return None
    elif not os.access("/dev/fuse", os.R_OK | os.W_OK):
        programs.skip(driver.name, "no /dev/fuse")
        return None
    return programs.path(driver.program)


class Mount:
    """A mounted image, and the processes behind it if there are any."""

    alive = []

    def __init__(self, programs: Programs, driver: Driver, image, mountpoint, options=(), pattern=None):
        """`pattern` is what the driver's command line has in place of a word that is the mount point."""
        program = programs.path(driver.program)
        self.path = Path(mountpoint)
        self.path.mkdir(parents=True, exist_ok=True)
        if os.path.ismount(self.path):
            raise Failed(f"{self.path} is already mounted")
        words = [w.format(image=image, mnt=self.path) for w in driver.arguments]
        start = time.perf_counter()
        # Not a pipe: some drivers keep it open in the background, and it would never end.
        with open(os.memfd_create("stderr"), "w+b") as errors:
            process = subprocess.Popen(
                [program, *words, *options], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                start_new_session=True,
            )
            try:
                measure.wait(process, measure.time_limit)
            except measure.TooLong:
                measure.kill_all([process.pid])
                process.wait()
                subprocess.run(["umount", "-l", str(self.path)], stderr=subprocess.DEVNULL)
                raise
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip()
        Mount.alive.append(self)
        if process.returncode != 0 or not os.path.ismount(self.path):
            raise Failed(f"{driver.name}: cannot mount {image}: {text}")
        os.listdir(self.path)
        #: From the start of the command until the root could be listed, seconds.
        self.seconds = time.perf_counter() - start
        #: The driver's processes; none for a mount in the kernel.
        self.pids = _servers(self.path, program, pattern) if driver.fuse else []
        if driver.fuse and not self.pids:
            raise Failed(f"{driver.name}: found no process that serves {self.path}")

    def unmount(self) -> None:
        """Unmounts and waits until the driver has ended."""
        for attempt in range(50):
            if not os.path.ismount(self.path):
                break
            root = os.geteuid() == 0
            command = ["umount"] if root else ["fusermount3", "-u"]
            result = subprocess.run([*command, str(self.path)], capture_output=True)
            if result.returncode != 0:
                time.sleep(0.02 * (attempt + 1))
        else:
            raise Failed(f"cannot unmount {self.path}")
        end = time.monotonic() + 20
        while any(map(_command_line, self.pids)) and time.monotonic() < end:
            time.sleep(0.002)
        for pid in self.pids:
            # Some go on with what nobody waits for.
            if _command_line(pid):
                os.kill(pid, signal.SIGKILL)
        if self in Mount.alive:
            Mount.alive.remove(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.unmount()


@atexit.register
def _clean_up():
    for mount in list(Mount.alive):
        command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
        subprocess.run([*command, str(mount.path)], stderr=subprocess.DEVNULL)


def _command_line(pid) -> list:
    try:
        # Empty when the process has ended and nobody has asked for its exit code yet.
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []


def _servers(mountpoint: Path, program: str, pattern=None) -> list:
    """The processes that were started with this mount point, or with words of which one begins with the pattern, and
    went to the background."""
    wanted = os.fsencode(mountpoint)
    name = os.path.basename(os.fsencode(program))
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        words = _command_line(pid)
        # The second word is the program if the first is an interpreter.
        ours = any(word.startswith(os.fsencode(pattern)) for word in words) if pattern else wanted in words
        if ours and name in map(os.path.basename, words[:2]):
            found.append(int(pid))
    return found


# --- this machine ---------------------------------------------------------------------------------


def _first_line(command) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError:
        return "?"
    return version_line(result.stdout + result.stderr, os.path.basename(os.fspath(command[0])))


def version_line(text: str, program: str) -> str:
    """The line of a program's own words that has its version, not that of a library."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\d\.\d", line)]
    own = (line for line in lines if line.startswith(program))
    return next(own, lines[0] if lines else "?")


def environment(programs: Programs) -> dict:
    """Machine and versions, for the reader of a table."""
    # The version of the kernel; what distributions add to it says little.
    kernel = os.uname().release.partition("-")[0]
    found = {"kernel": kernel, "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    try:
        with open("/proc/cpuinfo") as file:
            names = (line.partition(":") for line in file if line.startswith("model name"))
            found["cpu"] = next((name.strip() for _, _, name in names), "?")
        found["memory"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    found["RedwarFS"] = _first_line([programs.path("ours/dwarfs"), "--version"])
    reference = programs.path("reference/mkdwarfs")
    if reference:
        found["reference"] = _first_line([reference, "--help"])
    for name, option in (
        ("mksquashfs", "-version"), ("squashfuse_ll", "--version"), ("mkfs.erofs", "-V"),
        ("wimlib-imagex", "--version"), ("lrzip", "--version"), ("zpaq", "--help"),
        ("ratarmount", "--version"), ("fuse-archive", "--version"), ("archivemount", "--version"),
        ("zpaqfranz", "h"), ("7z", "--help"), ("gzip", "--version"),
        ("flac", "--version"), ("fpack", "-V"), ("mkfs.btrfs", "--version"),
        ("tar", "--version"), ("zstd", "--version"), ("xz", "--version"), ("fio", "--version"),
    ):
        if shutil.which(name):
            found[name] = _first_line([name, option])
    return found
