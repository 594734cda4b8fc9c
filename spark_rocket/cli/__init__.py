"""``rocket``: the command line."""

from spark_rocket.cli.main import main

__all__ = ["main"]
