"""The name server's key-value configuration, by namespace; the only thing that it keeps on disk.

The file is JSON, ``{"configTable":{namespace:{key:value}}}``. The old file is copied to ``.bak`` and then replaced as a
whole: after a crash the file is the old or the new one, never a part.

Thread-safety: none, it belongs to the name server's loop; a write blocks that for the moment it takes, and writes are
rare. Corresponds to org.apache.rocketmq.namesrv.kvconfig.{KVConfigManager, KVConfigSerializeWrapper}.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from spark_rocket.errors import ConfigError
from spark_rocket.files import replace_file

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KVConfigManager:
    """Values by namespace and key. Without a path they live in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file, if there is one. ConfigError names file and line when it cannot be understood."""
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
            raise self._broken('line 1: {"configTable":{namespace:{key:value}}} was expected')
        self._table = {
            namespace: {key: str(value) for key, value in entries.items()} for namespace, entries in table.items()
        }
        try:
            json.dumps(self._table, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # it could never be written again
            raise self._broken(f"a text in it is not Unicode: {error.reason}") from error

    def _broken(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._path} cannot be read: {what}.",
            remedy="Repair it, or put the copy that ends in .bak in its place, or remove it to start with none.",
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
        """All of a namespace; None if nothing was ever put into it."""
        entries = self._table.get(namespace)
        return None if entries is None else dict(entries)

    def _persist(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            shutil.copyfile(self._path, self._path.with_name(self._path.name + ".bak"))
        replace_file(self._path, json.dumps({"configTable": self._table}, ensure_ascii=False, indent=1).encode())
