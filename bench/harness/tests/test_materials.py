"""Generated videos are what they say, and the reader of random places tells its times."""

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from .. import materials, measure

SEGMENT, CLUSTER, BLOCK = b"\x18\x53\x80\x67", b"\x1f\x43\xb6\x75", b"\xa3"


def elements(data: bytes, width) -> list:
    """Names and contents of elements; `width` tells the length of a name by its first byte."""
    found, at = [], 0
    while at < len(data):
        end = at + width(data[at])
        size = int.from_bytes(data[end:end + 8], "big") & ~(1 << 56)
        found.append((data[at:end], data[end + 8:end + 8 + size]))
        at = end + 8 + size
    if at != len(data):
        raise ValueError("an element ends behind its parent")
    return found


def width(first: int) -> int:
    """Length of the name of an element: leading zeros and one."""
    return 9 - first.bit_length()


class Videos(unittest.TestCase):
    def test_films_share_the_pictures_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(materials, "FILM", 1 << 19):
            materials._videos(Path(folder))
            pictures, sounds = [], []
            for path in sorted(Path(folder).iterdir()):
                (_, body), = [one for one in elements(path.read_bytes(), width) if one[0] == SEGMENT]
                clusters = [data for name, data in elements(body, width) if name == CLUSTER]
                blocks = [data for cluster in clusters
                          for name, data in elements(cluster, width) if name == BLOCK]
                for track, where in ((0x81, pictures), (0x82, sounds)):
                    where.append(b"".join(data[4:] for data in blocks if data[0] == track))
        self.assertEqual(len(pictures), 4)
        self.assertEqual(len(set(pictures)), 1)
        self.assertGreaterEqual(len(pictures[0]), 1 << 19)
        self.assertEqual(len(set(sounds)), 4)


class Reader(unittest.TestCase):
    def test_times_of_single_reads_are_told(self):
        program = Path(measure.__file__).with_name("preader.py")
        with tempfile.NamedTemporaryFile() as file:
            file.write(os.urandom(1 << 16))
            file.flush()
            usage = measure.run([sys.executable, program, file.name, "4096", "2", "50"],
                                capture=True)
        found = json.loads(usage.output)
        self.assertLessEqual(found["p50"], found["p99"])
        self.assertGreater(found["p50"], 0.0)
        self.assertLessEqual(found["p99"], found["wall"])


if __name__ == "__main__":
    unittest.main()
