"""A versioned table of settings by name, for topics and consumer groups.

Values are replaced, never changed in place, so that a copy of the table is a consistent snapshot for any thread. Every
change makes a new version, by which slaves and name servers recognize changes.

Thread-safety: used on the event loop only. After a crash: acknowledged changes are in the table's file, because the
response is sent after the write. Corresponds to org.apache.rocketmq.common.ConfigManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from spark_rocket.protocol.wire.bodies import DataVersion, dumps_fastjson


class _Settings(Protocol):
    def to_value(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ...


T = TypeVar("T", bound=_Settings)
V = TypeVar("V")


class CachedTexts(dict[str, str]):
    """Cached JSON of a table's entries: large files are written often, and most entries have not changed."""

    def joined(self, table: Mapping[str, V], value_of: Callable[[V], object]) -> str:
        """The members of the table's JSON object, indented as fastjson does."""
        for key, entry in table.items():
            if key not in self:
                nested = dumps_fastjson({"": {key: value_of(entry)}}, pretty=True).decode()
                self[key] = nested[nested.index("{", 1) + 1 : -len("\n\t}\n}")]
        return ",".join([self[key] for key in table])


class VersionedTable(Generic[T]):
    """The table. ``on_change`` is called with a name after every change of its settings."""

    def __init__(
        self, clock: Callable[[], int], *, member: str, of_value: Callable[[dict[str, Any]], T], name_field: str
    ) -> None:
        """``member``: the table's member in the stored JSON object; ``name_field``: the field with a value's name."""
        self._clock = clock
        self._member = member
        self._of_value = of_value
        self._name_field = name_field
        self.table: dict[str, T] = {}
        self.data_version = DataVersion(timestamp=clock())
        self.on_change: Callable[[str], None] = lambda name: None

    def get(self, name: str) -> T | None:
        """Return the settings, or None; never creates them."""
        return self.table.get(name)

    def delete(self, name: str) -> bool:
        if self.table.pop(name, None) is None:
            return False
        self._changed(name)
        return True

    def _put(self, name: str, settings: T) -> None:
        self.table[name] = settings
        self._changed(name)

    def next_version(self) -> None:
        """Make a new version: name servers ignore a registration whose version they have."""
        self.data_version = self.data_version.next(self._clock())

    def _changed(self, name: str) -> None:
        self.next_version()
        self.on_change(name)

    def snapshot(self) -> dict[str, Any]:
        """Version and table as plain values; safe from any thread.

        The version is read first: if the table is newer than its version, the next registration sends it again.
        """
        version = self.data_version.to_value()
        table = self.table.copy()  # atomic in the interpreter
        return {"dataVersion": version, self._member: {name: one.to_value() for name, one in table.items()}}

    def load(self, stored: dict[str, Any]) -> None:
        """Load the content of a file; ValueError, TypeError, KeyError or AttributeError if it is invalid."""
        self.table.update(self._decoded(stored.get(self._member, {})))
        version = stored.get("dataVersion")
        if version:
            self.data_version = DataVersion.from_value(version)

    def replace(self, stored: dict[str, Any]) -> bool:
        """Replace a slave's table with its master's; False if the version is the same.

        ProtocolError, TypeError or KeyError if it is invalid; then nothing is changed.
        """
        version = DataVersion.from_value(stored["dataVersion"])
        if version == self.data_version:
            return False
        self.table, self.data_version = self._decoded(stored[self._member]), version
        return True

    def _decoded(self, stored: dict[str, Any]) -> dict[str, T]:
        return {name: self._of_value({self._name_field: name, **entry}) for name, entry in stored.items()}
