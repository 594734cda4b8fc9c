"""The optional dependencies: which extra of pyproject.toml installs a package, and one error for a missing one.

The core needs only what the client, the command line and the name server import. Everything else is imported where it
is used, inside ``requires`` if a user can get there without the package. RocketMQ has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_rocket.errors import MissingExtraError

EXTRAS = {
    "numpy": "broker",
    "pyarrow": "arrow",
    "pandas": "spark",
    "pyspark": "spark",
    "grpc": "proxy",
    "grpc_health": "proxy",
    "grpc_reflection": "proxy",
    "google": "proxy",
    "starlette": "console",
    "uvicorn": "console",
    "prometheus_client": "metrics",
    "fastavro": "avro",
    "opentelemetry": "otel",
}
"""Importable package to the smallest extra that installs it."""


def pip_install(extra: str) -> str:
    """Return the shell command that installs an extra."""
    return f"pip install 'spark-rocket[{extra}]'"


def missing_extra(purpose: str, package: str, extra: str | None = None) -> MissingExtraError:
    """Return the error for a package that ``purpose``, a noun phrase, requires."""
    return MissingExtraError(
        f"{purpose} requires the package {package}, which is not installed.",
        remedy=f"Run {pip_install(extra or EXTRAS[package])}.",
    )


@contextmanager
def requires(purpose: str, extra: str | None = None) -> Iterator[None]:
    """Raise MissingExtraError if an import fails because an optional package is missing; other errors pass.

    ``extra`` names the extra to install if it is not the smallest one with the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise missing_extra(purpose, package, extra) from error
