"""Ports: a free one, and those that a process listens on, as Linux tells."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path


def free_port() -> int:
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def listening(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(str(descriptor.readlink()))
    lines = [line for table in Path("/proc/net").glob("tcp*") for line in table.read_text().splitlines()]
    listeners = [fields for fields in map(str.split, lines) if fields[3] == "0A"]
    return {int(fields[1].rpartition(":")[2], 16) for fields in listeners if f"socket:[{fields[9]}]" in sockets}
