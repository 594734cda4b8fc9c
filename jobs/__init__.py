"""Pipelines that run as they are: `python -m jobs.flights_publish --help`, or all three with `make demo`."""
