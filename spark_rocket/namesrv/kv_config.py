"""The name server's key-value configuration by namespace, its only data on disk.

The file is JSON, ``{"configTable":{namespace:{key:value}}}``. The old file is copied to ``.bak`` and then replaced
atomically: after a crash the file is the old or the new one, never a part.

Thread-safety: none; used on the name server's loop only. Writes block the loop, but are rare.
Corresponds to org.apache.rocketmq.namesrv.kvconfig.{KVConfigManager, KVConfigSerializeWrapper}.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from spark_rocket.errors import ConfigError
from spark_rocket.files import replace_file

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KVConfigManager:
    """Values by namespace and key. Without a path they are in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file, if there is one. For an invalid file, ConfigError names file and line."""
        if self._path is None or not self._path.exists():
            return
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise self._broken(f"line {error.lineno}: {error.msg}") from error
        except (OSError, ValueError, RecursionError) as error:  # not UTF-8, a number of thousands of digits
            raise self._broken(str(error)) from error
        table = content.get("configTable", {}) if isinstance(content, dict) else None
        if not isinstance(table, dict) or not all(isinstance(entries, dict) for entries in table.values()):
            raise self._broken('line 1: expected {"configTable":{namespace:{key:value}}}')
        self._table = {
            namespace: {key: str(value) for key, value in entries.items()} for namespace, entries in table.items()
        }
        try:
            json.dumps(self._table, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # the table could not be saved
            raise self._broken(f"invalid Unicode in a string: {error.reason}") from error

    def _broken(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._path} cannot be read: {what}.",
            remedy="Repair it, replace it with its .bak, or remove it to start without values.",
        )

    def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value
        self._persist()

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self._persist()

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All entries of a namespace; None if it does not exist."""
        entries = self._table.get(namespace)
        return None if entries is None else dict(entries)

    def _persist(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            shutil.copyfile(self._path, self._path.with_name(self._path.name + ".bak"))
        replace_file(self._path, json.dumps({"configTable": self._table}, ensure_ascii=False, indent=1).encode())
