"""The comparison page: which results it takes, who leads, and the table of the README."""

import unittest
from pathlib import Path

from .. import comparison
from ..comparison import MEASURES, OTHERS, PROGRAMS, SETS, Comparison, quiet, replaced
from ..measure import Failed
from ..parts import after, peers
from ..programs import DRIVERS, RECIPES


def made(size, cpu, **more) -> list:
    return [{"size": size, "cpu": cpu, "wall": cpu / 2, "peak": 10 << 20, "others": 0.0,
             "load": 1.0, **more}]


def used(wall, mount=0.02, **more) -> list:
    return [{"wall": wall, "cpu": wall, "mount": mount, "others": 0.0, "load": 1.0, **more}]


def raw() -> dict:
    results = {
        "build/interpreters/1/ours": made(200_000_000, 10.0),
        "build/interpreters/7/ours": made(100_000_000, 100.0),
        "build/interpreters/7/reference": made(120_000_000, 300.0),
        "peers/interpreters/squashfs-xz": made(300_000_000, 400.0),
        "peers/interpreters/tar-xz": made(90_000_000, 500.0),
        "after/interpreters/pick/tar-xz": used(30.0),
        "after/interpreters/unpack/tar-xz": used(31.0),
    }
    for use in ("mount", "file", "grep-all"):
        for who, mount in (("RedwarFS ours-l7", 0.02), ("kernel squashfs squashfs-xz", 0.01)):
            results[f"after/interpreters/{use}/{who}"] = used(0.5, mount)
    return {
        "environment": {"kernel": "6.1", "cpus": 2, "RedwarFS": "dwarfs 0.1.0 (x)"},
        "facts": {"data/interpreters": {"title": "releases", "entries": 9, "files": 8,
                                        "bytes": 10**9}},
        "results": results,
        "skipped": {"peers/interpreters/zpaq-m3": "took longer than 600 s"}, "missing": {},
    }


class Names(unittest.TestCase):
    def test_every_program_is_measured(self):
        self.assertEqual(len({program.family for program in PROGRAMS}), 10)
        mounted = set(after.MOUNTED)
        for program in PROGRAMS:
            self.assertIn(program.recipe, RECIPES)
            if program.driver:
                self.assertIn((program.driver, program.recipe), mounted)
                self.assertIn(program.driver, DRIVERS)
            else:
                self.assertIn(program.recipe, after.UNPACKED)
            if program.family not in ("RedwarFS", "DwarFS"):
                self.assertIn(program.recipe, peers.PEERS)

    def test_every_lead_has_a_reason(self):
        for program in PROGRAMS + OTHERS:
            for measure in MEASURES:
                if not program.ours and (program.driver or measure not in ("mount", "all")):
                    for name in SETS:
                        self.assertTrue(comparison.reason(program, measure, name),
                                        (program, measure, name))

    def test_every_setting_is_compared(self):
        compared = [program.recipe for program in PROGRAMS + OTHERS
                    if program.family not in ("RedwarFS", "DwarFS")]
        self.assertEqual(sorted(compared), sorted(peers.PEERS))


class Page(unittest.TestCase):
    def test_the_best_of_each_column_is_bold(self):
        text, _ = Comparison(raw()).page()
        row = next(line for line in text.splitlines() if line.startswith("| tar, xz -9 |"))
        self.assertIn("| **90.00** | 500 |", row)
        self.assertIn("31.00", row)
        row = next(line for line in text.splitlines() if "kernel" in line and "xz" in line)
        self.assertIn("| **0.010** |", row)

    def test_leads_are_against_the_best_level(self):
        found = {(measure, program.family): (value, least, level.title)
                 for _, measure, program, value, level, least, _ in Comparison(raw()).leads()}
        self.assertEqual(found, {
            ("size", "tar and xz"): (90e6, 100e6, "RedwarFS -l7 (default)"),
            ("mount", "SquashFS"): (0.01, 0.02, "RedwarFS -l7 (default)"),
            ("file", "SquashFS"): (0.51, 0.52, "RedwarFS -l7 (default)"),
        })
        text, _ = Comparison(raw()).page()
        self.assertIn("| 1.11 times |", text)

    def test_a_setting_without_a_row_can_lead(self):
        more = raw()
        more["results"]["peers/interpreters/lrzip-zpaq"] = made(80_000_000, 900.0)
        more["results"]["peers/interpreters/tar-xz-1536m"] = made(85_000_000, 900.0)
        found = {program.recipe: value for _, measure, program, value, *_ in Comparison(more).leads()
                 if measure == "size"}
        self.assertEqual(found, {"lrzip-zpaq": 80e6, "tar-xz-1536m": 85e6})
        text, _ = Comparison(more).page()
        self.assertIn("| tar, lrzip -z: context mixing", text)
        self.assertNotIn("\n| tar, lrzip -z |", text)

    def test_without_leads_the_page_says_so(self):
        alone = raw()
        alone["results"] = {key: value for key, value in alone["results"].items()
                            if "ours" in key or "reference" in key}
        self.assertIn("No other program leads in any row.", Comparison(alone).page()[0])

    def test_times_beside_other_work_are_left_out_but_sizes_are_not(self):
        busy = raw()
        for rounds in busy["results"].values():
            rounds[0]["others"] = 1.5
        page = Comparison(busy)
        self.assertEqual(page.value(PROGRAMS[0], "interpreters", "size"), 200_000_000)
        self.assertIsNone(page.value(PROGRAMS[0], "interpreters", "cpu"))
        self.assertEqual(Comparison(busy, draft=True).value(PROGRAMS[0], "interpreters", "cpu"),
                         10.0)

    def test_only_the_quiet_rounds_count(self):
        mixed = raw()
        mixed["results"]["build/interpreters/1/ours"] += made(200_000_000, 90.0, others=0.9)
        self.assertEqual(Comparison(mixed).value(PROGRAMS[0], "interpreters", "cpu"), 10.0)

    def test_what_is_too_short_to_tell_goes_by_the_load_before(self):
        self.assertTrue(quiet({"others": None, "load": 2.0}))
        self.assertFalse(quiet({"others": None, "load": 9.0}))
        self.assertFalse(quiet({"others": 0.5, "load": 0.0}))
        self.assertFalse(quiet({}))

    def test_results_of_an_earlier_build_are_refused(self):
        for kind in ("earlier", "mixed"):
            old = {**raw(), kind: ["build/interpreters/7/ours"]}
            with self.assertRaisesRegex(Failed, "earlier build: build/interpreters/7/ours"):
                Comparison(old)
            self.assertIn("Draft", Comparison(old, draft=True).page()[0])
        # What the page does not show may be older.
        Comparison({**raw(), "earlier": ["logs/build/1/7/24/ours"]})

    def test_without_a_measurement_there_is_no_page(self):
        with self.assertRaisesRegex(Failed, "no comparison"):
            Comparison({**raw(), "results": {}})

    def test_what_took_too_long_is_told(self):
        text, _ = Comparison(raw()).page()
        self.assertIn("SKIPPED: zpaq -m3 (peers): took longer than 600 s", text)
        for shown in (text, Comparison(raw()).short()):
            untried = shown.partition("Not measured:\n\n")[2].partition("\n\n")[0].splitlines()
            self.assertIn("* lrzip", untried)
            self.assertIn("* 7z -mx9", untried)
            self.assertNotIn("* zpaq -m3", untried)
            self.assertNotIn("* tar, xz -9", untried)

    def test_tables_have_as_many_cells_in_each_row(self):
        width = None
        for line in Comparison(raw()).page()[0].splitlines():
            bars = line.count("|") if line.startswith("|") else None
            if bars is not None and width is not None:
                self.assertEqual(bars, width, line)
            width = bars

    def test_the_plot_has_a_point_for_each_that_was_read(self):
        text, plots = Comparison(raw()).page()
        self.assertEqual(list(plots), [comparison.PLOT])
        self.assertIn(f"]({comparison.PLOT})", text)
        plot = plots[comparison.PLOT]
        for family in ("RedwarFS", "SquashFS", "tar and xz"):
            self.assertIn(f">{family}</text>", plot)
        self.assertNotIn(">zpaq</text>", plot)
        self.assertIn(">l7</text>", plot)


class Readme(unittest.TestCase):
    def test_only_what_is_between_the_marks_changes(self):
        start, end = comparison.MARKS
        found = replaced(f"a\n{start}\nold\n{end}\nb\n", "| new |\n")
        self.assertEqual(found, f"a\n{start}\n| new |\n{end}\nb\n")
        self.assertEqual(replaced(found, "| new |\n"), found)

    def test_marks_must_be_there_once(self):
        start, end = comparison.MARKS
        for text in ("", start, f"{end}\n{start}", f"{start}{start}{end}"):
            with self.assertRaises(Failed):
                replaced(text, "x")

    def test_the_readme_has_the_marks(self):
        text = (Path(__file__).resolve().parents[3] / "README.md").read_text()
        self.assertIn("| new |", replaced(text, "| new |\n"))


if __name__ == "__main__":
    unittest.main()
