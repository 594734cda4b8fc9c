"""Test support for pipelines: a complete name server and broker as a context manager, and pytest fixtures.

``LocalCluster`` is imported on first use: pytest loads this package in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_rocket.testing.cluster import LocalCluster

__all__ = ["LocalCluster"]


def __getattr__(name: str) -> object:
    if name == "LocalCluster":
        from spark_rocket.common.extras import requires

        with requires("LocalCluster"):
            from spark_rocket.testing.cluster import LocalCluster

        return LocalCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
