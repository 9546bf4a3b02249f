"""Making one image, and what it cost."""

import shutil
from pathlib import Path

from . import measure
from .programs import Programs, Recipe

#: Beside which level another program's settings are comparable.
PEERS = {
    1: ("squashfs-lz4", "erofs-lz4", "tar-zstd1"),
    3: ("squashfs-lz4hc", "erofs-lz4hc"),
    5: ("squashfs-zstd19", "tar-zstd19"),
    7: ("squashfs-zstd22", "erofs-zstd19", "tar-zstd22"),
}


def build(programs: Programs, recipe: Recipe, tree: Path, image: Path, keep=None):
    """Cost and size of an image, which is then removed, or moved to `keep`."""
    image = image.with_name(image.name + recipe.suffix)
    image.unlink(missing_ok=True)
    image.parent.mkdir(parents=True, exist_ok=True)
    try:
        usage = measure.run(*recipe.commands(programs, tree, image), want_peak=True)
        size = image.stat().st_size
        if keep and not keep.exists():
            keep.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(image, keep)
        return usage, size
    finally:
        image.unlink(missing_ok=True)
