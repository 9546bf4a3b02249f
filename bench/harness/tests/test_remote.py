"""Tables of images in an object store, and sessions that leave nothing behind."""

import json
import os
import tempfile
import unittest
from pathlib import Path

from .. import remote
from ..measure import Failed


def value(seconds, mounted=0.5, **more):
    return {"seconds": seconds, "mounted": mounted, "load": 1.0, "requests": 2, "connections": 1, "to_client": 3_000_000,
            **more}


class Numbers(unittest.TestCase):
    def test_workloads_on_a_mount_count_from_the_start_of_mounting(self):
        self.assertEqual(remote.total(value(2.0), "ls"), 2.5)
        self.assertEqual(remote.total(value(2.0), "first"), 2.0)
        self.assertIsNone(remote.total({"over": 30}, "ls"))

    def test_round_trips_are_the_growth_with_the_delay(self):
        results = {"0/mount/a": [value(0.2), value(0.4), value(0.3)], "100/mount/a": [value(0.6)]}
        self.assertAlmostEqual(remote.round_trips(results, "mount", "a", [0, 20, 100]), 3.0)
        self.assertIsNone(remote.round_trips(results, "mount", "b", [0, 20, 100]))
        self.assertIsNone(remote.round_trips(results, "mount", "a", [0]))

    def test_the_share_of_the_line_includes_mounting(self):
        self.assertAlmostEqual(remote.share([value(1.5)], 25_000_000, 200), 0.5)
        self.assertIsNone(remote.share([{"over": 30}], 1, 100))

    def test_cells_say_what_has_no_time(self):
        self.assertEqual(remote.cell([value(0.25)] * 3, "first", 3), "0.250")
        self.assertEqual(remote.cell([value(0.25)], "first", 3), "0.250 (1)")
        self.assertEqual(remote.cell([{"over": 30.0}], "first", 3), "> 30")
        self.assertEqual(remote.cell([{"failed": "why"}], "first", 3), "failed")
        self.assertEqual(remote.cell([], "first", 3), "–")

    def test_what_was_measured_again_replaces_kept_results(self):
        kept = {"sizes": {"app": 1000, "sqfs": 7}, "rate": 100, "congestion": "bbr",
                "measurements": {"0/ls/a": [value(1.0)], "0/ls/b": [value(2.0)]}, "more": {"x": [1]}}
        new = {"0/ls/a": [value(3.0, methods={"GET": 2})], "20/ls/a": [value(4.0)]}
        found = remote.merged(kept, new, {"app": 1001}, 100.0, "bbr")
        self.assertEqual(found["measurements"], {"0/ls/a": [value(3.0)], "0/ls/b": [value(2.0)], "20/ls/a": [value(4.0)]})
        self.assertEqual((found["sizes"], found["more"]), ({"app": 1001, "sqfs": 7}, {"x": [1]}))
        self.assertEqual(json.loads(remote.kept_text(found)), found)
        for sizes, rate, congestion in (({"app": 1020}, 100, "bbr"), ({}, 50, "bbr"), ({}, 100, "cubic")):
            with self.assertRaises(Failed):
                remote.merged(kept, new, sizes, rate, congestion)

    def test_a_table_has_a_row_for_each_way_that_was_measured(self):
        results = {"0/first/a": [value(0.2)] * 3, "20/first/a": [value(0.3)] * 3, "0/ls/b": [value(1.0)] * 3}
        text = remote.tables(results, [0, 20], ["first", "ls"], {"first": "one", "ls": "two"}, {"app.dwarfs": 1234}, 100)
        zero, _, rest = text.partition("## Seconds, 20 ms")
        self.assertIn("| **a** | 0.200 | – |\n| b | – | 1.50 |\n", zero)
        self.assertIn("| **a** | 0.300 | – |\n", rest)
        self.assertIn("| **a** | 5.0 |\n", rest)
        self.assertIn("| **a** | 2 / 3.000 | – |\n", rest)
        self.assertNotIn("| b |", rest)


class Sessions(unittest.TestCase):
    def session(self, *commands):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        made = remote.Session(remote.Row("row", commands, ()), Path(directory.name))
        self.addCleanup(made.close)
        return made

    def test_commands_without_a_mount_point_run_to_their_end(self):
        made = self.session(("cp", "/dev/null", "{tmp}/{image}-{hot}"))
        made.mount("name", "hot")
        self.assertEqual(os.listdir(made.directory / "tmp"), ["name-hot"])

    def test_a_command_that_fails_is_named(self):
        with self.assertRaisesRegex(Failed, "sh: exit code 3: why"):
            self.session(("sh", "-c", "echo why >&2; exit 3", "{mnt0}")).mount("name")

    def test_what_does_not_mount_is_ended(self):
        made = self.session(("sh", "-c", "sleep 1000000", "{mnt0}"))
        with self.assertRaisesRegex(Failed, "has not mounted"):
            made.mount("name", limit=0.1)
        made.close()
        self.assertTrue(all(process.returncode is not None for process in made._processes))


if __name__ == "__main__":
    unittest.main()
