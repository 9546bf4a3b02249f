"""What images and archives are good for without a mount: unpacking, one file, one more directory."""

from dataclasses import dataclass
from pathlib import Path

from . import extraction, measure
from .measure import Failed
from .programs import LRZIP, Recipe


@dataclass(frozen=True)
class Uses:
    """Pipes with `{image}`, and what else is needed; empty if the program has no such thing."""

    #: Unpacks everything into the existing directory `{dest}`.
    unpack: tuple
    #: Writes the file `{path}` to standard output, or below `{dest}`.
    pick: tuple = ()
    #: Adds the directory `{added}` to the image of the tree, which `{grown}` is afterwards.
    add: tuple = ()
    #: Whether owners, times and links come back.
    exact: bool = True


_UNTAR = ("tar", "-C", "{dest}", "-xpf", "-")
_ONE = ("tar", "-xOf", "-", "--occurrence=1", "./{path}")


def _tar(*unpack: str) -> Uses:
    return Uses((unpack, _UNTAR), (unpack, _ONE))


def _zpaq(program: str) -> Uses:
    return Uses(
        ((program, "extract", "{image}", "{tree}", "-to", "{dest}"),),
        ((program, "extract", "{image}", "{tree}/{path}", "-to", "{dest}/file"),),
        ((program, "add", "{image}", "{added}", "{method}"),), exact=False,
    )


def _dwarfs(who: str, add: tuple = ()) -> Uses:
    program = f"{who}/dwarfsextract"
    return Uses(
        ((program, "-i", "{image}", "-o", "{dest}"),),
        ((program, "-i", "{image}", "-o", "{dest}", "--pattern", "{path}"),), add,
    )


#: By the first words of the names of recipes, the longest ones first.
USES = {
    "ours": _dwarfs("ours", (
        ("ours/mkdwarfs", "-i", "{grown}", "--append", "{image}", "{level}", "--with-devices",
         "--with-specials", "--no-progress", "--log-level=error"),)),
    "reference": _dwarfs("reference"),
    "squashfs": Uses(
        (("unsquashfs", "-q", "-n", "-f", "-d", "{dest}", "{image}"),),
        (("unsquashfs", "-cat", "{image}", "{path}"),),
        (("mksquashfs", "{added}", "{image}", "-no-progress", "-quiet", "-no-xattrs",
          "-keep-as-directory"),)),
    "erofs": Uses((("fsck.erofs", "--extract={dest}", "--preserve", "{image}"),)),
    "wim": Uses(
        (("wimlib-imagex", "apply", "{image}", "1", "{dest}", "--unix-data"),),
        (("wimlib-imagex", "extract", "{image}", "1", "/{path}", "--to-stdout"),),
        # As a snapshot: only what is new is stored.
        (("wimlib-imagex", "append", "{grown}", "{image}", "--unix-data"),)),
    "tar-zstd": _tar("zstd", "-dcq", "--long=31", "{image}"),
    "tar-xz": _tar("xz", "-dc", "-T0", "{image}"),
    "tar-gz": _tar("gzip", "-dc", "{image}"),
    "lrzip": _tar("lrzip", *LRZIP, "-d", "-o", "-", "{image}"),
    "zpaqfranz": _zpaq("zpaqfranz"),
    "zpaq": _zpaq("zpaq"),
    # Times of directories and owners are lost.
    # Since 25.01, it refuses links to directories above their own without `-snld20`.
    "7z": Uses((("7z", "x", "-y", "-bd", "-bso0", "-snl", "-snld20", "-o{dest}", "{image}"),),
               (("7z", "x", "-so", "-bd", "{image}", "{base}/{path}"),),
               (("7z", "u", "-bd", "-bso0", "-snl", "-mx=9", "{image}", "{added}"),), exact=False),
}


def uses_of(recipe: Recipe) -> Uses:
    """What can be done with an image of a recipe."""
    kind = max((name for name in USES if recipe.name.startswith(name)), key=len)
    return USES[kind]


def filled(pipe: tuple, programs, **values):
    """The command lines of a pipe; none if it is empty or a program is missing."""
    if not pipe:
        return None
    lines = []
    for program, *words in pipe:
        found = programs.path(program)
        if not found:
            return None
        lines.append([found, *(word.format(**values) for word in words)])
    return lines


def pick(lines, dest: Path, wanted: bytes) -> measure.Usage:
    """Runs a pipe that gives one file back, which must have the `wanted` content."""
    extraction.clear(dest)
    dest.mkdir(parents=True)
    try:
        usage = measure.run(*lines, want_peak=True, capture=True)
        files = [path for path in dest.rglob("*") if path.is_file()]
        found = usage.output if not files else files[0].read_bytes()
        if found != wanted or len(files) > 1:
            raise Failed(f"gave {len(found):,} bytes for a file of {len(wanted):,}")
        usage.output = b""
        return usage
    finally:
        extraction.clear(dest)


def unpack(lines, dest: Path, entries=None, root: Path | None = None) -> measure.Usage:
    """Unpacks everything; with `entries` the result is compared, or only the number of files and
    bytes with those of `root` if the program loses attributes."""
    if entries is not None and root is None:
        return extraction.extract(lines, dest, entries)
    extraction.clear(dest)
    dest.mkdir(parents=True)
    try:
        usage = measure.run(*lines, want_peak=True)
        if root is not None:
            wanted, found = (_amount(folder) for folder in (root, dest))
            if wanted != found:
                raise Failed(f"unpacked {found} files and bytes of {wanted}")
        return usage
    finally:
        extraction.clear(dest)


def _amount(folder: Path) -> tuple:
    sizes = [path.stat().st_size for path in folder.rglob("*")
             if path.is_file() and not path.is_symlink()]
    return len(sizes), sum(sizes)
