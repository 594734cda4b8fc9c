"""The operating systems that this package runs on: Linux and macOS.

Windows lacks what connections and files rest on: ``poll``, ``flock``, time limits of blocking sends, ``fork``.
Pure, but for the name of the system. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import sys

from spark_rocket.errors import StateError


def check_system() -> None:
    """StateError on Windows. Called where connections begin, before anything fails for want of a module."""
    if sys.platform == "win32":
        raise StateError(
            "spark_rocket runs on Linux and macOS, not on Windows.",
            remedy="Use it in WSL 2 (wsl --install), with Spark and Python in there too.",
        )
