"""What a target is, the table of them, and what several need."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spark_rocket.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Target:
    """``run`` takes any bytes and raises nothing but ``errors``."""

    name: str
    run: Callable[[bytes], None]
    errors: tuple[type[BaseException], ...]
    seeds: Callable[[], list[bytes]]
    longest: int = 4096


TARGETS: dict[str, Target] = {}


def target(
    *seeds: bytes | Callable[[], list[bytes]],
    errors: tuple[type[BaseException], ...] = (ProtocolError,),
    longest: int = 4096,
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Put a function into the table under its name."""

    def put(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def every() -> list[bytes]:
            found = [each for seed in seeds for each in ([seed] if isinstance(seed, bytes) else seed())]
            return [each for each in found if len(each) <= longest]

        TARGETS[run.__name__] = Target(run.__name__, run, errors, every, longest)
        return run

    return put


def text_of(raw: bytes) -> str:
    """Any text at all, lone surrogates among it."""
    return raw.decode("utf-8", "surrogateescape")


@cache
def directory() -> Path:
    """A directory of this process; in memory where there is such a file system."""
    memory = Path("/dev/shm")
    found = tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None, prefix="fuzz-")
    _kept.append(found)
    return Path(found.name)


_kept: list[Any] = []


def file_of(name: str, raw: bytes) -> Path:
    path = directory() / name
    path.write_bytes(raw)
    return path
