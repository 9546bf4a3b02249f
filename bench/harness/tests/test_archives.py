"""What archives are good for: each has its words, and gives back what went in."""

import shutil
import tempfile
import unittest
from pathlib import Path

from .. import archives, measure, trees
from ..measure import Failed
from ..parts import after, peers
from ..programs import RECIPES, Programs, listed_compressors, version_line


class Words(unittest.TestCase):
    def test_every_recipe_has_uses_of_its_own_kind(self):
        for name, recipe in RECIPES.items():
            self.assertTrue(archives.uses_of(recipe).unpack, name)
        self.assertEqual(archives.uses_of(RECIPES["zpaqfranz-m1"]).unpack[0][0], "zpaqfranz")
        self.assertEqual(archives.uses_of(RECIPES["zpaq-m1"]).unpack[0][0], "zpaq")

    def test_every_use_is_of_a_recipe_that_is_made(self):
        self.assertLessEqual(after.KEPT, set(RECIPES))
        others = {name for name in after.KEPT if not name.startswith(("ours-", "reference-"))}
        self.assertLessEqual(others, set(peers.PEERS))
        plotted = [name for names in peers.PLOTTED.values() for name in names]
        self.assertLessEqual(set(plotted), set(peers.PEERS))
        self.assertEqual(len(plotted), len(set(plotted)))
        for name in after.GROWING:
            self.assertTrue(archives.uses_of(RECIPES[name]).add, name)

    def test_all_interpreters_run_and_say_who_they_are(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("two", "one"):
                program = Path(folder, name, "bin/node")
                program.parent.mkdir(parents=True)
                program.write_text(f'#!/bin/sh\necho "$* {name}"\n')
                program.chmod(0o755)
            usage = measure.run(["sh", "-c", after.RUN, "sh", "2"], cwd=folder, capture=True)
        self.assertEqual(usage.output, b"-p process.version one\n-p process.version two\n")

    def test_one_more_release_leaves_the_others_as_they_are(self):
        with tempfile.TemporaryDirectory() as folder:
            class Releases:
                work = Path(folder)
                folders = {"interpreters": work / "interpreters", "added": work / "added"}

            for name, path in Releases.folders.items():
                (path / f"of-{name}").mkdir(parents=True)
                (path / f"of-{name}" / "file").write_text(name)
            before = trees.describe(Releases.folders["interpreters"])
            grown = after.grown(Releases)
            self.assertEqual(sorted(path.name for path in grown.iterdir()),
                             ["of-added", "of-interpreters"])
            self.assertEqual(trees.describe(Releases.folders["interpreters"]), before)

    def test_a_use_without_an_answer_is_an_error(self):
        class Tree:
            folders = {"x": "/"}

        nothing = lambda tree: measure.run(["true"], cwd=tree, capture=True)
        self.assertRaises(Failed, after._answer, Tree, "x", "run", nothing)
        self.assertEqual(len(after._answer(Tree, "x", "mount", nothing)), 64)

    def test_a_missing_program_makes_no_pipe(self):
        programs = Programs("/nonexistent")
        self.assertIsNone(archives.filled((("no-such-program-at-all", "x"),), programs))
        self.assertIsNone(archives.filled((), programs))
        self.assertIn("no-such-program-at-all", programs.skipped)


class Compressors(unittest.TestCase):
    def test_older_versions_list_them_in_a_line(self):
        text = " -zX[,Y] X=compressor\nAvailable compressors are: lz4hc, lz4\n"
        self.assertEqual(listed_compressors(text), {"lz4", "lz4hc"})

    def test_newer_versions_list_them_with_their_options(self):
        text = """ -zX[,level=Y]         X=compressor (Y=compression level)
    [:...]             supported compressors and their option ranges are:
                         lz4
                         lz4hc
                           [,level=<0-12>]\t\t(default=9)
                         lzma
                           LZMA advanced options (do not specify if unsure):
                           [,lc=<n>]  n = number of literal context bits
                         zstd
                           [,level=<0-22>]\t\t(default=3)
 -C#                    specify the size of compress physical cluster in bytes
 deflate
"""
        self.assertEqual(listed_compressors(text), {"lz4", "lz4hc", "lzma", "zstd"})

    def test_other_words_list_nothing(self):
        self.assertEqual(listed_compressors("mkfs.erofs: no such option\n"), set())


class Versions(unittest.TestCase):
    def test_the_version_is_that_of_the_program(self):
        text = "FUSE library version: 2.9.9\narchivemount version 0.8.7\n"
        self.assertEqual(version_line(text, "archivemount"), "archivemount version 0.8.7")
        text = "\n7-Zip [64] 26.02 : Copyright\np7zip Version 16.02\n"
        self.assertEqual(version_line(text, "7z"), "7-Zip [64] 26.02 : Copyright")
        self.assertEqual(version_line("no number\n", "x"), "?")


class Archives(unittest.TestCase):
    """`tar` with gzip, which is everywhere, from the recipe to one file."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = Path(self.folder.name)
        self.tree, self.dest, self.image = root / "tree", root / "dest", root / "image"
        trees.generate(self.tree, 40, 0)
        recipe = RECIPES["tar-gz"]
        if not shutil.which("gzip"):
            self.skipTest("gzip is not installed")
        self.programs = Programs("/nonexistent")
        measure.run(*recipe.commands(self.programs, self.tree, self.image))
        self.uses = archives.uses_of(recipe)

    def lines(self, pipe, **more):
        return archives.filled(pipe, self.programs, image=self.image, dest=self.dest, **more)

    def test_everything_comes_back(self):
        entries = trees.describe(self.tree)
        archives.unpack(self.lines(self.uses.unpack), self.dest, entries)
        archives.unpack(self.lines(self.uses.unpack), self.dest, root=self.tree)
        self.assertFalse(self.dest.exists())
        (self.tree / "more").write_bytes(b"x")
        for wanted in ({"entries": trees.describe(self.tree)}, {"root": self.tree}):
            with self.assertRaises(Failed):
                archives.unpack(self.lines(self.uses.unpack), self.dest, **wanted)

    def test_one_file_comes_back(self):
        path = next(p for p in sorted(self.tree.rglob("*")) if p.is_file() and p.stat().st_size)
        lines = self.lines(self.uses.pick, path=path.relative_to(self.tree))
        archives.pick(lines, self.dest, path.read_bytes())
        with self.assertRaisesRegex(Failed, "bytes for a file of"):
            archives.pick(lines, self.dest, b"something else")


if __name__ == "__main__":
    unittest.main()
