"""Read files with a bound; replace a file so that a kill or a power failure leaves the old or the new content.

Thread-safety: no shared state; use one thread at a time per file.
Corresponds to org.apache.rocketmq.common.MixAll.string2File.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

MAX_READ_BYTES = 64 * 1024 * 1024


def read_file(path: Path) -> bytes:
    """Return the content of a file that a user names. OSError above 64 MiB: /dev/zero would fill the memory."""
    with path.open("rb") as file:
        content = file.read(MAX_READ_BYTES + 1)
    if len(content) > MAX_READ_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_READ_BYTES >> 20} MiB", str(path))
    return content


def replace_file(path: Path, content: bytes, like: os.stat_result | None = None) -> None:
    """Replace the content of a file atomically, and fsync it.

    Mode and owner are taken from ``like``; without it, from a new file.
    """
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    mode = 0o666 if like is None else 0o600  # a file with the mode of another may hold secrets
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        if like is not None:
            with contextlib.suppress(PermissionError):  # only root can change the owner
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, like.st_mode & 0o777)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Fsync the entries of a directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
