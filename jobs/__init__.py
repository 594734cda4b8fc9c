"""Ready-to-run pipelines: `python -m jobs.flights_publish --help`, or all three with `make demo`."""
