"""Replacing a file so that a kill or a power failure at any moment leaves the old content or the new one.

Thread-safety: functions of their arguments; one thread at a time for a file.
Corresponds to org.apache.rocketmq.common.MixAll.string2File.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, content: bytes, like: os.stat_result | None = None) -> None:
    """Replace a file's content, whole or not at all, and fsync it.

    Its mode and owner are those of ``like``; without it, those of a new file.
    """
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    mode = 0o666 if like is None else 0o600  # a file that is like another may hold secrets
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        if like is not None:
            with contextlib.suppress(PermissionError):  # only root can give files away
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, like.st_mode & 0o777)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Fsync the names in a directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
