"""Replacing a file so that a kill or a power failure at any moment leaves the old content or the new one.

Thread-safety: functions of their arguments; one thread at a time for a file.
Corresponds to org.apache.rocketmq.common.MixAll.string2File.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, content: bytes, like: os.stat_result) -> None:
    """Put content in a file's place, whole or not at all, with the mode and owner of ``like``; on disk on return."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # it may hold secrets
    with os.fdopen(descriptor, "wb") as file:
        with contextlib.suppress(PermissionError):  # only root can give files away
            os.fchown(descriptor, like.st_uid, like.st_gid)
        os.fchmod(descriptor, like.st_mode & 0o777)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
