"""Commands with a time limit."""

import unittest

from .. import measure


class Limit(unittest.TestCase):
    def tearDown(self):
        measure.time_limit = None

    def test_a_command_that_would_never_end_is_ended_with_its_children(self):
        measure.time_limit = 0.2
        # The child holds the pipe: unless it is ended as well, reading never stops.
        with self.assertRaises(measure.TooLong):
            measure.run(["sh", "-c", "sleep 1000000 & wait"], capture=True)

    def test_within_the_limit_nothing_changes(self):
        measure.time_limit = 1000.0
        self.assertEqual(measure.run(["printf", "x"], ["cat"], capture=True).output, b"x")

    def test_a_command_that_fails_says_so(self):
        with self.assertRaisesRegex(measure.Failed, "exit code 3: why"):
            measure.run(["sh", "-c", "echo why >&2; exit 3"])


if __name__ == "__main__":
    unittest.main()
