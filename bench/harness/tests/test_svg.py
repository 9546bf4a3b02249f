"""Plots: valid XML, points where they belong, and axes with round numbers."""

import unittest
from xml.etree import ElementTree

from .. import svg

SPACE = "{http://www.w3.org/2000/svg}"


def parse(text):
    return ElementTree.fromstring(text)


class Ticks(unittest.TestCase):
    def test_linear_ticks_enclose_the_values(self):
        ticks = svg.linear_ticks(0.63, 1.21)
        self.assertLessEqual(ticks[0], 0.63)
        self.assertGreaterEqual(ticks[-1], 1.21)
        self.assertAlmostEqual(ticks[1] - ticks[0], 0.1)

    def test_one_value_has_an_axis_too(self):
        self.assertGreater(len(svg.linear_ticks(3.0, 3.0)), 1)
        self.assertGreater(len(svg.log_ticks(3.0, 3.0)), 1)

    def test_log_ticks_enclose_the_values(self):
        self.assertEqual(svg.log_ticks(10_000, 1_000_000), [
            10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
        ])
        self.assertEqual(svg.log_ticks(0.02, 900), [0.01, 0.1, 1, 10, 100, 1000])

    def test_long_names_are_cut(self):
        self.assertEqual(svg.short("kernel erofs, lz4hc 12, 1 MiB"), "kernel erofs, lz4hc 12, 1 MiB")
        self.assertEqual(svg.short("kernel squashfs, zstd 15, 128 KiB"), "kernel squashfs, zstd 15, 12…")

    def test_numbers_are_short(self):
        self.assertEqual([svg.number(n) for n in (0, 0.05, 12, 20_000, 3e6, 2.5e9)],
                         ["0", "0.05", "12", "20k", "3M", "2.5G"])


class Lines(unittest.TestCase):
    def plot(self, **more):
        return parse(svg.lines("a < b", "x", "y", [
            svg.Series("one & two", [(1, 1.0), (10, 2.0), (100, 4.0)]),
            svg.Series("points", [(10, 3.0)], ["label"], joined=False),
        ], log_x=True, **more))

    def test_text_is_escaped_and_told(self):
        texts = [text.text for text in self.plot().iter(SPACE + "text")]
        for wanted in ("a < b", "one & two", "points", "label", "x", "y"):
            self.assertIn(wanted, texts)

    def test_equal_factors_are_equal_distances_on_a_log_axis(self):
        (line,) = self.plot().iter(SPACE + "polyline")
        places = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
        self.assertAlmostEqual(places[1][0] - places[0][0], places[2][0] - places[1][0], delta=0.2)
        self.assertGreater(places[0][1], places[2][1])

    def test_what_cannot_be_shown_is_left_out(self):
        plot = parse(svg.lines("t", "x", "y", [
            svg.Series("s", [(1, None), (2, 0.0), (3, 5.0), (4, 6.0)])], log_y=True))
        (line,) = plot.iter(SPACE + "polyline")
        self.assertEqual(len(line.get("points").split()), 2)

    def test_a_plot_of_nothing_is_valid(self):
        parse(svg.lines("t", "x", "y", []))
        parse(svg.bars("t", "y", [], {}))

    def test_given_ticks_are_used(self):
        plot = parse(svg.lines("t", "x", "y", [svg.Series("s", [(1, 5.0), (7, 6.0)])],
                               ticks=[1, 7]))
        texts = [text.text for text in plot.iter(SPACE + "text")]
        self.assertIn("7", texts)
        self.assertNotIn("2", texts)

    def test_the_marked_level_is_inside(self):
        plot = parse(svg.lines("t", "x", "y", [svg.Series("s", [(1, 5.0)])], mark=1.0))
        (mark,) = [line for line in plot.iter(SPACE + "line") if line.get("stroke-dasharray")]
        self.assertTrue(svg.TOP <= float(mark.get("y1")) <= svg.HEIGHT - svg.BOTTOM)


class Bars(unittest.TestCase):
    def test_heights_are_in_proportion(self):
        plot = parse(svg.bars("t", "y", ["g"], {"a": [1.0], "b": [2.0], "c": [None]}))
        heights = [float(bar.get("height")) for bar in plot.iter(SPACE + "rect")
                   if bar.find(SPACE + "title") is not None]
        self.assertEqual(len(heights), 2)
        self.assertAlmostEqual(heights[1], 2 * heights[0], delta=0.2)


if __name__ == "__main__":
    unittest.main()
