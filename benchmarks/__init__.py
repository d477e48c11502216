"""Benchmarks, run from a checkout by `paramstream bench`."""
