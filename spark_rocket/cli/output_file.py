"""The files that verbs write: complete under their names, or not at all.

Thread-safety: no shared state. After a crash: the file of before, and perhaps a temporary one beside it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click


def is_stream(path: Path) -> bool:
    """Whether a path is a device or a pipe, such as /dev/stdout."""
    return path.exists() and not path.is_file()


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to be written, and give it its name at the end. After an error there is no new file.

    Streams are written directly: a rename would replace the device. A link to a file stays. UsageError if the path
    cannot be written.
    """
    if is_stream(path):
        with _opened(path, path, "wb") as out:
            yield out
        return
    target = Path(os.path.realpath(path))  # resolve() raises RuntimeError for a link to itself
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    out = _opened(path, temporary, "xb")  # in a directory that others write too, a name may be a link to another file
    try:
        with out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _opened(path: Path, place: Path, mode: str) -> IO[bytes]:
    try:
        return place.open(mode)
    except OSError as problem:
        raise click.UsageError(f"{path} cannot be written: {problem.strerror or problem}.") from None
