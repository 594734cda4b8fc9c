"""Benchmarks, each with its own ceiling measured in the same run: `python -m benchmarks --help`."""
