"""Runs the tests and closes with a line in the words of `cargo test`, which `scripts/test` adds up."""

import sys
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2]


def main() -> int:
    sys.path.insert(0, str(BENCH))
    suite = unittest.defaultTestLoader.discover(BENCH, top_level_dir=BENCH)
    result = unittest.TextTestRunner(stream=sys.stdout).run(suite)
    failed = len(result.failures) + len(result.errors)
    passed = result.testsRun - failed - len(result.skipped)
    word = "ok" if result.wasSuccessful() else "FAILED"
    print(f"test result: {word}. {passed} passed; {failed} failed; "
          f"{len(result.skipped)} ignored")
    return 0 if result.wasSuccessful() else 1


sys.exit(main())
