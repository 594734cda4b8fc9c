"""Where the store is in the directory that ``storePath`` names, and the name of the broker that it is of.

Reads names and small files. Thread-safety: functions only. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from spark_rocket.errors import StoreError

DEFAULT_BROKER_NAME = "broker-a"
_PERM_INHERIT = 1
_BROKER_NAME = re.compile(r"^[ \t]*brokerName[ \t]*[=:][ \t]*(\S+)", re.MULTILINE)


def locate(path: Path) -> Path:
    """The store in a directory: itself, or its ``store``, as ``rocket up`` has it."""
    if not path.is_dir():
        raise StoreError(
            f"{path} is not a directory on the driver's machine.",
            remedy="storePath is a directory that driver and executors see under the same path.",
        )
    for candidate in (path, path / "store"):
        if any(candidate.glob("dledger-*/*")):
            raise StoreError(
                f"{candidate} has the log of a DLedger group, which cannot be read here.",
                remedy="Start its broker, and read its topics from it.",
            )
        if any((candidate / part).exists() for part in ("commitlog", "checkpoint", "lock")):
            return candidate
    hint = f"Give {path.parent}." if path.name == "commitlog" else "Give the broker's storePathRootDir."
    raise StoreError(f"{path} has no commitlog: it is not a store directory.", remedy=hint)


def broker_name_of(path: Path, given: Path) -> str:
    for file in (path / "config" / "broker.properties", given / "broker.conf", path.parent / "broker.conf"):
        try:
            found = _BROKER_NAME.findall(file.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if found:
            return str(found[-1])
    return _own_topic(path) or DEFAULT_BROKER_NAME


def _own_topic(path: Path) -> str:
    """A broker has a topic of its own name, with one queue, whose rights others inherit; nothing, if two look so."""
    for file in ("topics.json", "topics.json.bak"):
        try:
            table = json.loads((path / "config" / file).read_bytes())["topicConfigTable"].values()
            own = [
                str(one["topicName"])
                for one in table
                if (one["perm"] & _PERM_INHERIT, one["readQueueNums"], one["writeQueueNums"]) == (_PERM_INHERIT, 1, 1)
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        return own[0] if len(own) == 1 else ""
    return ""
