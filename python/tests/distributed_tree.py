"""A tree for the tests of `redwarfs.distributed`, and what must be equal in two images of it."""

import hashlib
import os
import random
import stat

PROJECTS = 6
VERSIONS = 3


def make(root):
    """Versions of a few projects, each version in a directory of its own far from the others."""
    chance = random.Random(1)
    vocabulary = [f"{chance.randrange(1 << 60):x}" for _ in range(4000)]
    for project in range(PROJECTS):
        texts = {
            f"src/part{n}.c": [chance.choice(vocabulary) for _ in range(900)] for n in range(8)
        }
        for version in range(VERSIONS):
            top = root / f"v{version}/project{project}-{version}"
            for name, words in texts.items():
                words[chance.randrange(len(words))] = f"changed{version}"
                path = top / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(" ".join(words))
            (top / "README").write_text(f"project {project}\n")
            (top / "image.raw").write_bytes(chance.randbytes(3000))
    (root / "empty/inside").mkdir(parents=True)
    (root / "link").symlink_to("v0")
    os.link(root / "v0/project0-0/README", root / "v2/again")
    (root / "odd-\udcff").write_bytes(b"odd")
    (root / "v1/project1-1/README").chmod(0o600)
    for at, (directory, _, names) in enumerate(os.walk(root, topdown=False)):
        for name in [*names, "."]:
            path = os.path.join(directory, name)
            os.utime(path, (1_500_000_000 + at, 1_500_000_000 + at), follow_symlinks=False)
    os.chmod(root, 0o751)


def listing(image):
    """Everything that an image says about its entries."""
    found = {}
    for directory, directories, files in image.walk(""):
        prefix = f"{directory}/" if directory else ""
        for path in [directory, *(prefix + name for name in files + directories)]:
            entry = image.lstat(path)
            content = ""
            if stat.S_ISREG(entry.st_mode):
                content = hashlib.sha256(image.read(path)).hexdigest()
            elif stat.S_ISLNK(entry.st_mode):
                content = image.readlink(path)
            links = 0 if stat.S_ISDIR(entry.st_mode) else entry.st_nlink
            owner = (entry.st_mode, entry.st_uid, entry.st_gid)
            found[path] = (*owner, links, entry.st_size, entry.st_mtime_ns, content)
    return found
