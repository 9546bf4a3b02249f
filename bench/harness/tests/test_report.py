"""Statistics, the choice of releases, stored results, and the report of a small made-up run."""

import json
import re
import tempfile
import unittest
from pathlib import Path

from .. import assembly, datasets, measure, report
from .. import logs as generator
from ..measure import Failed
from ..parts import logs, read
from ..store import Results, Store
from ..programs import RECIPES
from ..suite import Job, Suite


class Statistics(unittest.TestCase):
    def test_ratios_are_paired_by_round(self):
        # The second round was made on a machine that was ten times slower.
        self.assertEqual(report.paired_ratio([1.0, 20.0, 1.5], [2.0, 10.0, 1.0]), 1.5)

    def test_rounds_without_a_partner_do_not_count(self):
        self.assertEqual(report.paired_ratio([1.0, None, 9.0], [2.0, 1.0]), 0.5)
        self.assertIsNone(report.paired_ratio([], [1.0]))

    def test_median_leaves_out_what_is_missing(self):
        self.assertEqual(report.median([3, None, 1]), 2)
        self.assertIsNone(report.median([None]))

    def test_turns_let_everybody_come_first_once(self):
        rows = ["a", "b", "c"]
        orders = [measure.turns(rows, number) for number in range(3)]
        self.assertEqual(orders, [["a", "b", "c"], ["a", "c", "b"], ["c", "a", "b"]])
        for order in orders:
            self.assertEqual(sorted(order), rows)

    def test_numbers_have_units_of_their_own(self):
        self.assertEqual(report.megabytes(1_234_567), "1.235")
        self.assertEqual(report.mebibytes(1_048_576), "1.0")
        self.assertEqual(report.speed(5_000_000, 0.5), "10")
        self.assertEqual(report.speed(5, None), "–")


class Rounds(unittest.TestCase):
    def test_only_those_that_are_compared_get_every_round(self):
        measured = []

        class Suite:
            peer_rounds = 1

            def alternate(self, jobs, number):
                measured.append((number, [job.key.rpartition("/")[2] for job in jobs]))

        names = ("RedwarFS", "kernel erofs", "reference")
        jobs = [Job(f"read/web/fast/tar/{name}", None) for name in names]
        for number in range(2):
            read._in_turn(Suite(), jobs, number)
        self.assertEqual(measured, [(0, list(names)), (1, ["RedwarFS", "reference"])])


class DataSets(unittest.TestCase):
    LISTED = "Thing (9.0)\nAvailable versions: 9.0, 2.10.1, 2.9, 2.10, 3.0b1, 2.2\nINSTALLED: 1\n"

    def test_releases_are_the_newest_final_ones_up_to_a_bound(self):
        found = datasets.choose(self.LISTED, datasets.Releases("thing", "2.10.1", 3))
        self.assertEqual(found, ["2.10.1", "2.10", "2.9", "2.2"])

    def test_interpreters_are_the_last_of_each_major_version(self):
        known = ["8.9.0", "8.17.0", "8.16.2", "8.17.1", "10.0.0-rc.1", "10.0.0", "18.0.0"]
        found = datasets.choose_interpreters(known, (("8.17.0", 2), ("10.0.0", 1)))
        self.assertEqual(found, ["8.16.2", "8.17.0", "10.0.0"])
        for wanted in ((("8.17.0", 4),), (("8.17.2", 1),), (("9.0.0", 1),)):
            with self.assertRaises(datasets.Unavailable):
                datasets.choose_interpreters(known, wanted)

    def test_nothing_is_chosen_from_an_error_message(self):
        self.assertEqual(datasets.choose("ERROR", datasets.Releases("thing", "2", 1)), [])

    def test_days_do_not_exceed_what_is_there(self):
        self.assertEqual(logs.counts(32), [1, 4, 16, 32])
        self.assertEqual(logs.counts(8), [1, 4, 8])
        self.assertEqual(logs.counts(100), [1, 4, 16, 32])

    def test_the_day_in_the_middle_is_in_all_images(self):
        days = list(range(32))
        for count in logs.counts(32):
            chosen = logs.around(days, count)
            self.assertEqual(len(chosen), count)
            self.assertIn(16, chosen)

    def test_logs_are_the_same_each_time_and_differ_by_day(self):
        with tempfile.TemporaryDirectory() as folder:
            trees = []
            for copy in "ab":
                root = Path(folder) / copy
                generator.write(root, 2, 0.01)
                trees.append({
                    str(path.relative_to(root)): path.read_bytes()
                    for path in sorted(root.rglob("*")) if path.is_file()
                })
        self.assertEqual(trees[0], trees[1])
        days = {name.split("/")[0] for name in trees[0]}
        self.assertEqual(days, {"2023-01-02", "2023-01-03"})


class Stored(unittest.TestCase):
    def test_a_run_goes_on_where_it_stopped(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "raw.json"
            store = Store(path, {"ours": "1"})
            store.add("build/x/1/ours", {"cpu": 2.0})
            self.assertEqual(store.fact("data/x", lambda: 5), 5)
            again = Store(path, {"ours": "1"})
            self.assertEqual(again.rounds("build/x/1/ours"), [{"cpu": 2.0}])
            self.assertEqual(again.fact("data/x", lambda: self.fail("asked again")), 5)
            self.assertEqual(again.rounds("build/x/1/reference"), [])

    def test_results_of_other_programs_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "raw.json"
            Store(path, {"ours": "1"}).add("a", {})
            with self.assertRaises(Failed):
                Store(path, {"ours": "2"})

    def test_some_results_of_other_programs_can_be_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "raw.json"
            before = Store(path, {"ours": "1"})
            for level in (1, 7):
                before.add(f"build/x/{level}/ours", {})
                before.fact(f"image/x/ours-l{level}", lambda: {"size": 5})
            before.fact("data/x", lambda: 5)
            after = Store(path, {"ours": "2"}, re.compile("build/.*/7/"))
            after.add("build/x/1/ours", {"cpu": 1.0})
            again = Store(path, {"ours": "2"})
            self.assertEqual(again.rounds("build/x/1/ours"), [{"cpu": 1.0}])
            self.assertEqual(again.data["earlier"], ["build/x/7/ours"])
            self.assertTrue(again.is_earlier("build/x/7/ours"))
            self.assertFalse(again.is_earlier("build/x/1/ours"))
            self.assertEqual(list(again.data["facts"]), ["image/x/ours-l7", "data/x"])

    def test_further_rounds_are_of_the_same_work(self):
        with tempfile.TemporaryDirectory() as folder:
            path, keys = Path(folder) / "raw.json", ["build/x/1/ours", "build/x/7/ours"]
            before = Store(path, {"ours": "1"})
            for key in keys:
                before.add(key, {"cpu": 1.0, "size": 100_000})
            after = Store(path, {"ours": "2"}, re.compile(keys[0]), re.compile("build/x/7"))
            self.assertEqual([after.goes_on(key) for key in [*keys, "new"]], [False, True, True])
            with self.assertRaises(Failed):
                after.add(keys[1], {"cpu": 2.0, "size": 101_000})
            after.add(keys[1], {"cpu": 2.0, "size": 100_010})
            self.assertEqual(Results(after.data).series(keys[1], "cpu"), [1.0, 2.0])
            self.assertEqual((after.data["earlier"], after.data["mixed"]), (keys[:1], keys[1:]))
            again = Store(path, {"ours": "3"}, re.compile("build"))
            self.assertEqual([again.goes_on(key) for key in keys], [False, False])
            self.assertEqual((again.data["earlier"], again.data["mixed"]), (keys[:1], keys[1:]))

    def test_what_took_too_long_is_tried_again_with_more_time_only(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "raw.json"
            store = Store(path, {"ours": "1"})
            store.skip("a", "took longer than 5 s", 5.0)
            store.skip("b", "no such option")
            again = Store(path, {"ours": "1"})
            self.assertTrue(again.left_out("a", 5.0))
            self.assertTrue(again.left_out("a", 4.0))
            self.assertTrue(again.left_out("b", 1e9))
            self.assertFalse(again.left_out("new", 5.0))
            self.assertFalse(again.left_out("a", 6.0))
            self.assertNotIn("a", again.skipped)
            self.assertFalse(Store(path, {"ours": "1"}).left_out("a", None))

    def test_what_an_older_build_could_not_do_is_tried_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "raw.json"
            before = Store(path, {"ours": "1", "reference": "1"})
            self.assertEqual(before.replaced, ["ours", "reference"])
            before.skip("peers/x/zpaq", "took longer than 5 s", 5.0)
            before.skip("read/x/fast/tar/reference", "it broke")
            after = Store(path, {"ours": "2", "reference": "1"}, re.compile("peers/"))
            self.assertEqual(after.replaced, ["ours"])
            self.assertEqual(list(after.skipped), ["peers/x/zpaq"])
            self.assertTrue(after.left_out("peers/x/zpaq", 5.0))

    def test_images_of_an_older_build_are_made_again(self):
        with tempfile.TemporaryDirectory() as folder:
            suite = Suite(None, None, Path(folder), "small", {})
            images = [suite.image("web", RECIPES[name]) for name in ("ours-l7", "tar-xz", "7z")]
            self.assertEqual(images[2].name, "7z.7z")
            images[0].parent.mkdir(parents=True)
            for image in images:
                image.write_bytes(b"")
            suite.forget("ours")
            self.assertEqual([image.exists() for image in images], [False, True, True])

    def test_a_round_that_is_stopped_says_why_and_the_load_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "raw.json", {})
            suite = Suite(None, store, Path(folder), "small", {})
            slow = Job("peers/x/slow", lambda: measure.run(["sleep", "1000"]), limit=0.1)
            quick = Job("peers/x/quick", lambda: {"wall": 1.0})
            suite.alternate([slow, quick], 0)
            self.assertEqual(store.skipped, {"peers/x/slow": "took longer than 0.1 s"})
            self.assertEqual(store.data["limits"], {"peers/x/slow": 0.1})
            self.assertIn("load", store.rounds("peers/x/quick")[0])

    def test_harder_settings_are_not_tried_when_an_easier_one_took_too_long(self):
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "raw.json", {})
            suite = Suite(None, store, Path(folder), "small", {})
            jobs = [Job(f"peers/x/zpaq-m{n}", lambda: measure.run(["sleep", "1000"]), limit=0.1,
                        easier=f"peers/x/zpaq-m{n - 1}") for n in (1, 2, 3)]
            suite.alternate(jobs, 0)
            why = "took longer than 0.1 s"
            self.assertEqual(store.skipped, {
                "peers/x/zpaq-m1": why, "peers/x/zpaq-m2": f"not tried: zpaq-m1 {why}",
                "peers/x/zpaq-m3": f"not tried: zpaq-m1 {why}"})
            quick = [Job(f"peers/x/zpaq-m{n}", lambda: {"wall": 1.0}, limit=1.0,
                         easier=f"peers/x/zpaq-m{n - 1}") for n in (1, 2, 3)]
            suite.alternate(quick, 0)
            self.assertEqual((len(store.data["results"]), store.skipped), (3, {}))

    def test_only_wanted_keys_are_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "raw.json", {})
            suite = Suite(None, store, Path(folder), "small", {})
            suite.keys = re.compile("x/(tar|zpaq)$")
            jobs = [Job(f"peers/{name}", lambda: {"wall": 1.0})
                    for name in ("x/tar", "x/tar-xz", "y/tar", "x/zpaq")]
            suite.alternate(jobs, 0)
            self.assertEqual(list(store.data["results"]), ["peers/x/tar", "peers/x/zpaq"])

    def test_the_report_says_what_is_older(self):
        keys = ["build/x/1/ours", "build/x/1/reference", "build/x/7/ours", "peers/x/tar"]
        shown = assembly.earlier(keys)
        self.assertIn("earlier build of RedwarFS: build/x 1, 7; peers x.", shown)

    def test_names_keep_their_order(self):
        results = Results({"facts": {}, "results": {"b/y/2": [1], "b/x/1": [1], "b/y/3": [1]}})
        self.assertEqual(results.names("b/", 1), ["y", "x"])
        self.assertEqual(results.names("b/y/", 2), ["2", "3"])


def cost(cpu, size=None):
    found = {"wall": cpu / 2, "cpu": cpu, "peak": 10 << 20}
    return found if size is None else {**found, "size": size}


def raw() -> dict:
    """Results of a run with two levels, two data sets and one skipped program."""
    mounted = {"wall": 0.1, "cpu": 0.2, "server": 0.1, "peak": 5 << 20, "mount": 0.01}
    results = {}
    for level in (1, 7):
        for who, cpu, size in (("ours", 1.0, 900), ("reference", 2.0, 1000)):
            results[f"build/web/{level}/{who}"] = [cost(cpu, size * 10**4)] * 2
            results[f"decode/web/{level}/{who}"] = [cost(cpu)]
            for days in (1, 4):
                results[f"logs/build/{days}/{level}/24/{who}"] = [cost(cpu, size)]
                results[f"logs/mount/{days}/{level}/24/{who}"] = [dict(mounted)]
                results[f"logs/pick/{days}/{level}/24/{who}"] = [cost(cpu)]
    for days in (1, 4):
        results[f"logs/other-build/{days}/tar-xz"] = [cost(3.0, 2_000_000)]
        results[f"logs/other-read/{days}/tar-xz"] = [cost(0.7)]
    results["logs/order/7/path/ours"] = [cost(1.0, 800)]
    for count in (100, 1000):
        for who in ("ours-l7", "reference-l7"):
            results[f"files/build/{count}/{who}"] = [cost(0.1, count)]
        results[f"files/mount/{count}/RedwarFS"] = [dict(mounted)]
    for who in ("RedwarFS", "squashfuse"):
        results[f"read/mixed/fast/tar/{who}"] = [dict(mounted)]
        results[f"extract/mixed/fast/{who}"] = [cost(0.5)]
    results["peers/web/squashfs-xz"] = [cost(4.0, 8_000_000)]
    results["peers/web/an-older-one"] = [cost(4.0, 7_000_000)]
    for use in ("mount", "file"):
        results[f"after/interpreters/{use}/RedwarFS ours-l7"] = [dict(mounted)]
    for use in ("pick", "unpack"):
        results[f"after/interpreters/{use}/tar-xz"] = [cost(0.5)]
    results["after/interpreters/add/wim-lzx"] = [{**cost(0.5, 10_000_000), "before": 9_000_000}]
    for use in ("data", "data-7%"):
        results[f"performance/root/{use}/kernel erofs erofs-lz4"] = [dict(mounted)]
    results["performance/root/size-4/erofs lzma"] = [cost(1.0, 5_000_000)]
    results["performance/assorted/fio-random-5%/RedwarFS ours-l1"] = [dict(mounted)]
    return {
        "environment": {"kernel": "6.1", "cpus": 2, "cpu": "Some <CPU>",
                        "RedwarFS": "dwarfs 0.1.0 (x)"},
        "facts": {
            "data/web": {"title": "packages", "entries": 5, "files": 4, "bytes": 10**7},
            "image/web/ours-l1": {"size": 9 * 10**6, "metadata": 90_000, "spread": 1.5},
        },
        "results": results, "skipped": {"peers/web/zpaq": "took longer than 5 s"},
        "missing": {"fio": "not installed"},
    }


class Report(unittest.TestCase):
    def setUp(self):
        self.text, self.plots = assembly.assemble(json.loads(json.dumps(raw())))

    def test_every_part_is_there(self):
        for module in assembly.PARTS.values():
            self.assertIn(f"## {module.TITLE}\n", self.text)

    def test_every_plot_is_shown_and_every_shown_plot_exists(self):
        shown = {line.rpartition("(")[2].rstrip(")")
                 for line in self.text.splitlines() if line.startswith("![")}
        self.assertEqual(shown, set(self.plots))

    def test_ratios_are_ours_to_the_reference(self):
        self.assertIn("| 1 | size / CPU | 0.900 / 0.50 |", self.text)

    def test_metadata_and_spread_of_an_image_are_told(self):
        self.assertIn("| 90 (1.0 %) | 1.50 |", self.text)

    def test_what_was_left_out_is_told(self):
        self.assertIn("SKIPPED: peers/web/zpaq: took longer than 5 s", self.text)
        self.assertIn("SKIPPED: fio: not installed", self.text)

    def test_machine_and_versions_are_told(self):
        self.assertIn("2 CPUs (Some <CPU>), Linux 6.1.\n", self.text)
        self.assertIn("\n| RedwarFS | 0.1.0 |\n", self.text)

    def test_tables_have_as_many_cells_in_each_row(self):
        width = None
        for line in self.text.splitlines():
            # A bar within a cell has a backslash before it.
            bars = line.count("|") - line.count("\\|") if line.startswith("|") else None
            if bars is not None and width is not None:
                self.assertEqual(bars, width, line)
            width = bars

    def test_without_a_measurement_there_is_no_report(self):
        for results in ({}, {"build/web/1/ours": []}):
            with self.assertRaisesRegex(Failed, "nothing was measured"):
                assembly.assemble({**raw(), "results": results})

    def test_a_program_that_is_not_known_any_more_keeps_its_name(self):
        self.assertIn("| an-older-one |  | 7.000 |", self.text)

    def test_uses_tell_wall_and_cpu_time(self):
        self.assertIn("| RedwarFS -l7 |  | 0.010 | 0.100 / 0.200 |", self.text)
        self.assertIn("| wim LZX, 1 MiB |  | 9.000 | 1.000 |".replace(", 1 MiB", ""), self.text)

    def test_logs_of_other_programs_are_beside_ours(self):
        self.assertIn("| 4 | tar, xz 9 | 2.000 | 3.00 | 0.350 / 0.700 |", self.text)
        self.assertIn(">tar, xz 9</text>", self.plots["logs-size-7.svg"])

    def test_shares_of_data_have_names(self):
        for label in ("all data", "all data, 7%", "4 KiB, random, 5%"):
            self.assertIn(f"| {label} |", self.text)
        self.assertIn("| erofs lzma |  | 5.000 |", self.text)

    def test_without_the_reference_there_are_no_ratios(self):
        alone = raw()
        alone["results"] = {key: value for key, value in alone["results"].items()
                            if not key.endswith("reference") and "reference-l7" not in key}
        text, _ = assembly.assemble(alone)
        self.assertIn("| 1 | size / CPU | – / – |", text)


if __name__ == "__main__":
    unittest.main()
