"""Shared parts of the benchmarks. Python standard library only."""
