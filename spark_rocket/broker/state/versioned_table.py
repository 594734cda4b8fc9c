"""A versioned table of settings by name, for topics and consumer groups.

A complete table is sent to slaves and tools in one frame. So administrators cannot make it larger than
``MAX_TABLE_BYTES`` and a number of entries. Clients create entries only up to a limit of the settings. A table that was
loaded is used as it is.

Values are replaced, never changed in place, so that a copy of the table is a consistent snapshot for any thread. Every
change makes a new version, by which slaves and name servers recognize changes.

After a crash: acknowledged changes are in the table's file, because the response is sent after the write. Corresponds
to org.apache.rocketmq.common.ConfigManager.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from spark_rocket.broker.steps import in_steps
from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.bodies.config import DataVersion
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.json import dumps_fastjson

_often = RateLimited(logging.getLogger(__name__), 60.0)

MAX_TABLE_BYTES = 12 << 20  # as JSON; a frame has at most 16 MiB
PAGE_ENTRIES = 5_000


class _Settings(Protocol):
    def to_value(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=_Settings)
V = TypeVar("V")


class CachedTexts(dict[str, str]):
    """Cached JSON of a table's entries: large files are written often, and most entries have not changed."""

    def joined(self, table: Mapping[str, V], value_of: Callable[[V], object]) -> str:
        """The members of the table's JSON object, indented as fastjson does."""
        for key, entry in table.items():
            if key not in self:
                self.add(key, value_of(entry))
        return ",".join([self[key] for key in table])

    def add(self, key: str, value: object) -> None:
        nested = dumps_fastjson({"": {key: value}}, pretty=True).decode()
        self[key] = nested[nested.index("{", 1) + 1 : -len("\n\t}\n}")]


class VersionedTable(Generic[T]):
    """The table. ``on_change`` is called with a name after every change of its settings."""

    def __init__(
        self,
        clock: Callable[[], int],
        *,
        member: str,
        of_value: Callable[[dict[str, Any]], T],
        name_field: str,
        most: int,
    ) -> None:
        """Create an empty table.

        ``member``: the table's member in the stored JSON object; ``name_field``: the field with a value's name;
        ``most``: the number of entries that administrators may create.
        """
        self._clock = clock
        self._member = member
        self._of_value = of_value
        self._name_field = name_field
        self._most = most
        self.table: dict[str, T] = {}
        self._texts = CachedTexts()
        self._sizes: dict[str, int] | None = None  # bytes of entries; None: not measured since the table was loaded
        self._bytes = 0
        self.data_version = DataVersion(timestamp=clock())
        self.on_change: Callable[[str], None] = lambda name: None

    def get(self, name: str) -> T | None:
        """Return the settings, or None; never creates them."""
        return self.table.get(name)

    def delete(self, name: str) -> bool:
        if self.table.pop(name, None) is None:
            return False
        if self._sizes is not None:
            self._bytes -= self._sizes.pop(name, 0)
        self._changed(name)
        return True

    def _put(self, name: str, settings: T) -> None:
        self.table[name] = settings
        if self._sizes is not None:
            size = _size(name, settings)
            self._bytes += size - self._sizes.get(name, 0)
            self._sizes[name] = size
        self._changed(name)

    # --- bounds -------------------------------------------------------------------------------------------------

    def check_fits(self, changes: Mapping[str, T]) -> None:
        """Raise RefusedError if these changes make the table larger than its entries or ``MAX_TABLE_BYTES`` may be."""
        count = len(self.table.keys() | changes.keys())
        if count > max(self._most, len(self.table)):
            raise RefusedError(
                f"The {self._member} of this broker would have {count:,} entries, at most {self._most:,} are allowed.",
                ResponseCode.SYSTEM_ERROR,
                remedy="Delete entries that are not needed, or use another broker.",
            )
        if self._sizes is None:
            self._set_sizes({name: _size(name, settings) for name, settings in self.table.items()})
        sizes = self._sizes or {}
        growth = sum(_size(name, settings) - sizes.get(name, 0) for name, settings in changes.items())
        if growth > 0 and self._bytes + growth > MAX_TABLE_BYTES:
            raise RefusedError(
                f"The {self._member} of this broker would have {self._bytes + growth:,} bytes, at most "
                f"{MAX_TABLE_BYTES:,} are allowed: it is sent in one frame.",
                ResponseCode.SYSTEM_ERROR,
                remedy="Delete entries that are not needed, or use another broker.",
            )

    def _set_sizes(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._bytes = sum(sizes.values())

    async def encode_in_steps(self) -> None:
        """Encode all entries, so that the first change after a start does not.

        ProtocolError if an entry cannot be encoded.
        """
        loaded = self.table.copy()
        sizes = {}
        async for name, settings in in_steps(loaded.items()):
            sizes[name] = _size(name, settings)
            if self.table.get(name) is settings:
                self._texts.add(name, settings.to_value())
        if self._sizes is None:
            same = {name: sizes[name] for name, settings in self.table.items() if loaded.get(name) is settings}
            changed = {name: _size(name, settings) for name, settings in self.table.items() if name not in same}
            self._set_sizes(same | changed)

    def creation_problem(self, setting: str, limit: int) -> str:
        """Why clients cannot create entries, with the setting that limits them; empty if they can."""
        if len(self.table) < limit:
            return ""
        problem = f"the broker has {len(self.table):,} entries in its {self._member} and {setting}={limit}"
        _often.warning(self._member, "clients can create no entries: %s", problem)
        return problem

    # --- snapshots and files ------------------------------------------------------------------------------------

    def next_version(self) -> None:
        """Make a new version: name servers ignore a registration whose version they have."""
        self.data_version = self.data_version.next(self._clock())

    def _changed(self, name: str) -> None:
        self._texts.pop(name, None)
        self.next_version()
        self.on_change(name)

    def page(self, start: int, most: int | None) -> dict[str, Any]:
        """A part of the snapshot. Clients and slaves since 5.3 ask for parts, so tables of any size fit into frames."""
        return self.snapshot(max(start, 0), min(most or PAGE_ENTRIES, PAGE_ENTRIES))

    def snapshot(self, start: int = 0, most: int | None = None) -> dict[str, Any]:
        """Version and table as plain values, from ``start`` at most ``most`` entries; safe from any thread.

        The version is read first: if the table is newer than its version, the next registration sends it again.
        """
        version = self.data_version.to_value()
        table = self.table.copy()  # atomic in the interpreter
        if most is not None:
            table = dict(itertools.islice(table.items(), start, start + max(most, 0)))
        return {"dataVersion": version, self._member: {name: one.to_value() for name, one in table.items()}}

    def text(self) -> bytes:
        """Return the content of the table's file in Apache's format: the snapshot as JSON."""
        version = dumps_fastjson({"dataVersion": self.data_version.to_value()}, pretty=True).decode()
        parts = self._texts.joined(self.table, lambda settings: settings.to_value())
        table = f"{{{parts}\n\t}}" if parts else "{}"
        return f'{version[:-2]},\n\t"{self._member}":{table}\n}}'.encode()

    def load(self, stored: dict[str, Any]) -> None:
        """Load the content of a file; ValueError, TypeError, KeyError or AttributeError if it is invalid."""
        self.table.update(self._decoded(stored.get(self._member, {})))
        self._forget_texts()
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
        self._forget_texts()
        return True

    def _forget_texts(self) -> None:
        self._texts.clear()
        self._sizes = None

    def _decoded(self, stored: dict[str, Any]) -> dict[str, T]:
        return {name: self._of_value({self._name_field: name, **entry}) for name, entry in stored.items()}


def _size(name: str, settings: _Settings) -> int:
    """Bytes of an entry as JSON, with the comma."""
    return len(dumps_fastjson({name: settings.to_value()})) - 1


def int_problem(**numbers: int) -> str | None:
    """Describe the first number that does not fit into a Java int; None if all fit."""
    for name, number in numbers.items():
        if not -(1 << 31) <= number < 1 << 31:
            return f"Invalid {name} {number}: use a 32-bit integer."
    return None
