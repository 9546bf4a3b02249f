"""Commands with a time limit."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from .. import measure, trees, workloads
from ..programs import Driver, Mount, Programs


def ended(pid: int) -> bool:
    """Whether a process has ended, within a second."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


class Limit(unittest.TestCase):
    def tearDown(self):
        measure.time_limit = None

    def test_children_in_sessions_of_their_own_are_ended_too(self):
        with tempfile.TemporaryDirectory() as folder:
            note = Path(folder) / "pid"
            measure.time_limit = 3.0
            with self.assertRaises(measure.TooLong) as caught:
                measure.run(["sh", "-c", f"setsid sh -c 'echo $$ > {note}; sleep 1000000' & wait"])
            self.assertEqual(caught.exception.limit, 3.0)
            self.assertTrue(ended(int(note.read_text())))

    def test_a_lower_limit_holds_for_a_while(self):
        measure.time_limit = 100.0
        with measure.limited(0.1):
            with self.assertRaisesRegex(measure.TooLong, "longer than 0.1 s"):
                measure.run(["sleep", "1000"])
        with measure.limited(500.0):
            self.assertEqual(measure.time_limit, 100.0)
        with measure.limited(None):
            self.assertEqual(measure.time_limit, 100.0)
        self.assertEqual(measure.time_limit, 100.0)

    def test_waiting_with_a_limit_does_not_poll(self):
        process = subprocess.Popen(["sleep", "0.1"])
        with mock.patch("time.sleep", side_effect=AssertionError("polled")):
            measure.wait(process, 60.0)
        self.assertEqual(process.returncode, 0)
        process = subprocess.Popen(["sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE)
        with self.assertRaisesRegex(measure.TooLong, "longer than 0.05 s"):
            measure.wait(process, 0.05)
        process.stdin.close()
        measure.wait(process)
        self.assertEqual(process.returncode, 3)

    def test_a_driver_that_does_not_mount_in_time_is_ended(self):
        driver = Driver("slow", "sleep", ("1000000",), True)
        with tempfile.TemporaryDirectory() as folder, measure.limited(0.1):
            before = measure.descendants([os.getpid()])
            with self.assertRaises(measure.TooLong):
                Mount(Programs(folder), driver, "image", Path(folder) / "mnt")
            self.assertEqual(set(measure.descendants([os.getpid()])) - set(before), set())

    def test_a_command_that_would_never_end_is_ended_with_its_children(self):
        measure.time_limit = 0.2
        # The child holds the pipe: unless it is ended as well, reading never stops.
        with self.assertRaises(measure.TooLong):
            measure.run(["sh", "-c", "sleep 1000000 & wait"], capture=True)

    def test_within_the_limit_nothing_changes(self):
        measure.time_limit = 1000.0
        self.assertEqual(measure.run(["printf", "x"], ["cat"], capture=True).output, b"x")

    def test_a_writer_may_be_left_before_its_end(self):
        self.assertEqual(measure.run(["yes"], ["head", "-c", "2"], capture=True).output, b"y\n")

    def test_a_command_that_fails_says_so(self):
        with self.assertRaisesRegex(measure.Failed, "exit code 3: why"):
            measure.run(["sh", "-c", "echo why >&2; exit 3"])


class OtherWork(unittest.TestCase):
    def test_what_others_do_meanwhile_is_told(self):
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            usage = measure.run(["sleep", "1"])
        finally:
            busy.kill()
            busy.wait()
        # Others may work on this machine, too, or keep this one from it.
        self.assertGreater(usage.others(), 0.2)
        self.assertEqual(usage.others(drivers=1000.0), 0.0)

    def test_own_work_does_not_count(self):
        usage = measure.Usage(whole=(2.0, 3.0, 3.5))
        self.assertEqual(usage.others(), 0.25)
        self.assertEqual(usage.others(drivers=0.3), 0.1)

    def test_short_times_say_nothing(self):
        self.assertIsNone(measure.Usage(whole=(0.1, 0.1, 0.2)).others())


class Fio(unittest.TestCase):
    JOB = (b'{"error": 0, "usr_cpu": 10.0, "sys_cpu": 40.0, "job_runtime": 2000, '
           b'"read": {"total_ios": 5, "runtime": 1500}}')

    def test_its_own_times_count(self):
        output = b'note: x\n{"jobs": [' + self.JOB + b", " + self.JOB + b"]}"
        self.assertEqual(workloads.fio_times(output, 10), (1.5, 2.0))

    def test_missing_reads_and_other_words_are_failures(self):
        for output, wanted in ((b'{"jobs": [' + self.JOB + b"]}", 6), (b"fio: no", 1),
                               (b'{"jobs": [{}]}', 1), (b"", 1)):
            with self.assertRaises(measure.Failed):
                workloads.fio_times(output, wanted)


class Stat(unittest.TestCase):
    def test_every_entry_is_asked_for_and_a_missing_one_is_no_result(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "tree"
            (root / "sub").mkdir(parents=True)
            (root / "sub" / "two\nlines, and a space").write_text("x")
            (root / "link").symlink_to("nowhere")
            entries = trees.describe(root)
            setup = workloads.prepare(entries, 1, 2, 1, 1)
            self.assertEqual(setup.paths, [b"link", b"sub", b"sub/two\nlines, and a space"])
            workloads.stat(root, setup)
            (root / "link").unlink()
            with self.assertRaisesRegex(measure.Failed, "link"):
                workloads.stat(root, setup)


if __name__ == "__main__":
    unittest.main()
