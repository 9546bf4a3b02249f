#!/usr/bin/env python3
"""Makes the test vectors from the golden images of tests/fixtures. README.md says what they hold."""

import gzip
import json
import os
import pathlib
import re
import stat

HERE = pathlib.Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"

# What each image adds to the others.
IMAGES = {
    "compat/compat-v0.2.0": "format 2.0",
    "compat/compat-v0.4.1": "format 2.2",
    "compat/compat-v0.5.6": "format 2.3",
    "compat/compat-v0.9.10": "format 2.5, small",
    "images/empty": "nothing but the root",
    "images/basic-default": "every type of entry, holes, zstd",
    "images/basic-all-times-ns": "all times, in nanoseconds",
    "images/basic-header": "bytes before the image",
    "images/basic-brotli": "brotli",
    "images/basic-lz4": "lz4",
    "images/basic-lzma": "lzma",
    "images/names-auto": "names that are not UTF-8, packed names",
    "images/many-fragmented": "many files in small blocks",
    "images/audio-categorize": "flac",
    "images/fits-categorize": "ricepp",
}

# Formats up to 2.2. Names of one inode have times of their own there, and a mount shows one of them.
OLD = {"compat/compat-v0.2.0", "compat/compat-v0.4.1"}

LETTERS = {
    stat.S_IFDIR: "d",
    stat.S_IFREG: "f",
    stat.S_IFLNK: "l",
    stat.S_IFCHR: "c",
    stat.S_IFBLK: "b",
    stat.S_IFIFO: "p",
    stat.S_IFSOCK: "s",
}


def encoded(text):
    """The bytes of a name, those that are not printable ASCII as %XX.

    The listings of the golden images spell a byte that is not UTF-8 as six characters, \\udcXX.
    """
    text = re.sub(r"\\udc([0-9a-f]{2})", lambda found: chr(0xDC00 + int(found[1], 16)), text)
    return "".join(
        chr(byte) if 0x21 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}"
        for byte in os.fsencode(text)
    )


def line(entry, old):
    mode = int(entry["mode"], 8)
    letter = LETTERS[stat.S_IFMT(mode)]
    value = "-"
    if letter == "f":
        value = f"sha256:{entry['sha256']}" if "sha256" in entry else f"last4096:{entry['sha256_last4096']}"
    elif letter == "l":
        value = "target:" + encoded(entry["target"])
    elif letter in "cb":
        value = "device:{},{}".format(*entry["rdev"])
    fields = [
        encoded(entry["path"]), letter, f"{stat.S_IMODE(mode):o}", entry["uid"], entry["gid"],
        entry["size"], entry["nlink"], entry["ino"] - 1,
        "-" if old and entry["nlink"] > 1 else entry["mtime_ns"], value,
    ]
    return "\t".join(str(field) for field in fields) + "\n"


def listing(name):
    with gzip.open(FIXTURES / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        entries = json.load(file)
    return [line(entry, name in OLD) for entry in entries]


def main():
    index = []
    for name, why in IMAGES.items():
        lines = listing(name)
        plain = name.split("/")[1]
        (HERE / f"{plain}.tsv").write_text("".join(lines), encoding="ascii")
        index.append(f"{plain}\t../fixtures/{name}.dwarfs\tok\t{why}\n")

    whole = (FIXTURES / "compat/compat-v0.9.10.dwarfs").read_bytes()
    damaged = bytearray(whole)
    # The last byte of the payload of the first block.
    damaged[64 + int.from_bytes(whole[56:64], "little") - 1] ^= 1
    truncated = whole[: len(whole) // 2]
    for plain, data, expect, why in [
        ("damaged-block", bytes(damaged), "damaged", "a wrong byte in the first block"),
        ("truncated", truncated, "corrupt", "half of an image"),
        ("not-an-image", b"This is text, and no image.\n" * 40, "not-an-image", "text"),
    ]:
        (HERE / f"{plain}.bin").write_bytes(data)
        index.append(f"{plain}\t{plain}.bin\t{expect}\t{why}\n")
    (HERE / "images.tsv").write_text("".join(index), encoding="ascii")


if __name__ == "__main__":
    main()
