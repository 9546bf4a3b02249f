"""Tests of what needs no programs: `python3 -m unittest discover -s bench -t bench`."""
