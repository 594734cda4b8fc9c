"""The name server's key-value configuration by namespace, its only data on disk.

The file is JSON, ``{"configTable":{namespace:{key:value}}}``. The old file is copied to ``.bak`` and then replaced
atomically: after a crash the file is the old or the new one, never a part.

Every registration of a broker gets a complete namespace (ORDER_TOPIC_CONFIG), and every save writes the
complete file. So the sizes of a value, a namespace and all namespaces are bounded, in bytes of their JSON. The name
server saves once for all changes of one iteration of its event loop, and responds to them after that.

A save blocks the loop. Corresponds to org.apache.rocketmq.namesrv.kvconfig.{KVConfigManager, KVConfigSerializeWrapper}.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from spark_rocket.common.files import replace_file
from spark_rocket.errors import ConfigError, RefusedError
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import KV_ENTRIES
from spark_rocket.protocol.wire.codes import ResponseCode

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
MAX_NAME_CHARACTERS = 255  # of a namespace or a key
MAX_VALUE_BYTES = 64 * 1024
MAX_NAMESPACE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 2 << 20
MAX_ENTRIES = STATE_LIMITS[KV_ENTRIES].total


class KVConfigManager:
    """Values by namespace and key. Without a path they are in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._is_saved = True
        self._table: dict[str, dict[str, str]] = {}
        self._bytes: dict[str, int] = {}  # of the entries of each namespace, as JSON
        self._total = 0
        self._entries = 0

    def load(self) -> None:
        """Read the file, if there is one. For an invalid file, ConfigError names file and line."""
        if self._path is None or not self._path.exists():
            return
        try:
            content = json.loads(self._path.read_text(encoding="utf-8-sig"))
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
        self._check_sizes()

    def _broken(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._path} cannot be read: {what}.",
            remedy="Repair it, replace it with its .bak, or remove it to start without values.",
        )

    def _check_sizes(self) -> None:
        """Raise ConfigError if something in the loaded file is too large."""
        self._bytes, self._total, self._entries = {}, 0, 0
        for namespace, entries in self._table.items():
            for key, value in entries.items():
                problem = self._problem(namespace, key, value)
                if problem is not None:
                    raise self._broken(problem)
                self._count(namespace, _size(key, value), 1)

    def _count(self, namespace: str, change: int, entries: int) -> None:
        self._bytes[namespace] = self._bytes.get(namespace, 0) + change
        self._total += change
        self._entries += entries

    def _problem(self, namespace: str, key: str, value: str, replaced: int = 0) -> str | None:
        """Describe the bound that one more entry would exceed; ``replaced``: bytes of the entry that it replaces."""
        size, in_value = _size(key, value), len(json.dumps(value))
        of_namespace = self._bytes.get(namespace, 0) + size - replaced
        total = self._total + size - replaced
        entries = self._entries + (not replaced)
        for what, number, most in (
            (f"namespace {namespace[:80]!r} has a name of {len(namespace):,} characters", len(namespace), None),
            (f"key {key[:80]!r} has {len(key):,} characters", len(key), None),
            (
                f"the value of {key!r} in namespace {namespace!r} has {in_value:,} bytes",
                in_value,
                MAX_VALUE_BYTES,
            ),
            (f"namespace {namespace!r} has {of_namespace:,} bytes", of_namespace, MAX_NAMESPACE_BYTES),
            (f"all namespaces have {total:,} bytes with {key!r} of {namespace!r}", total, MAX_TOTAL_BYTES),
            (f"all namespaces have {entries:,} entries with {key!r} of {namespace!r}", entries, MAX_ENTRIES),
        ):
            if number > (most or MAX_NAME_CHARACTERS):
                return f"{what}, at most {most or MAX_NAME_CHARACTERS:,} are allowed"
        return None

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value in memory. RefusedError, with nothing changed, if it exceeds a bound."""
        before = self._table.get(namespace, {}).get(key)
        replaced = 0 if before is None else _size(key, before)
        problem = self._problem(namespace, key, value, replaced)
        if problem is not None:
            raise RefusedError(
                f"The key-value configuration is not changed: {problem}.",
                response_code=ResponseCode.SYSTEM_ERROR,
                remedy="Delete entries that are not needed, or use a shorter value.",
            )
        self._count(namespace, _size(key, value) - replaced, int(not replaced))
        self._table.setdefault(namespace, {})[key] = value
        self._is_saved = False

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        entries = self._table.get(namespace, {})
        before = entries.pop(key, None)
        if before is not None:
            self._count(namespace, -_size(key, before), -1)
            if not entries:  # unlike Apache's name server: empty namespaces would accumulate
                del self._table[namespace], self._bytes[namespace]
            self._is_saved = False

    def namespace(self, namespace: str) -> dict[str, str] | None:
        entries = self._table.get(namespace)
        return None if entries is None else dict(entries)

    @property
    def is_saved(self) -> bool:
        return self._is_saved or self._path is None

    def save(self) -> None:
        """Write all changes to the file; durable on return. After an OSError they are still in memory, and unsaved."""
        if self._path is None or self._is_saved:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            shutil.copyfile(self._path, self._path.with_name(self._path.name + ".bak"))
        # One entry per line; with ``indent`` json would not use its fast encoder.
        text = json.dumps({"configTable": self._table}, ensure_ascii=False, separators=(",\n ", ": "))
        replace_file(self._path, text.encode())
        self._is_saved = True


def _size(key: str, value: str) -> int:
    """Bytes of an entry as JSON, with the colon and the comma."""
    return len(json.dumps(key)) + len(json.dumps(value)) + 2
