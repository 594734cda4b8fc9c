"""The entry of a ledger: its place and its id, in the key-value configuration of every name server.

A ledger must be known while its broker is unavailable: otherwise a second one would be created elsewhere and would
decide the same micro-batches again. Name servers answer then, and keep their configuration on disk. The namespace is
``ROCKET_SINK``, the key is the ledger topic, the value is JSON:

===========  ===========================================================================================================
member       what
===========  ===========================================================================================================
``broker``   the name of the broker that has the ledger
``ledger``   the ledger's id: 32 hexadecimal digits, from the ledger's first record. Missing while it is being created
===========  ===========================================================================================================

Anybody may change an entry: accounts do not protect it. So it is compared with the other name servers, with the route
of the topic and with the ids in the ledger's records, and is never a reason to create a ledger that could exist.

After a crash some name servers have the entry; the next sink completes it. Corresponds to ``mqadmin updateKvConfig``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from spark_rocket.client.admin import Admin, Failures
from spark_rocket.datasource.conditions import error as condition
from spark_rocket.errors import DataSourceError, RocketError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.json import dumps, loads

NAMESPACE = "ROCKET_SINK"

log = logging.getLogger("spark_rocket.datasource")


@dataclass(frozen=True, slots=True, order=True)
class LedgerEntry:
    """A ledger's place. ``ledger`` is empty while it is being created."""

    broker: str
    ledger: str = ""

    def encode(self) -> str:
        members = {"broker": self.broker} | ({"ledger": self.ledger} if self.ledger else {})
        return dumps(members).decode()

    @classmethod
    def decode(cls, text: str) -> LedgerEntry:
        """Raises ValueError for anything but the value of an entry."""
        found = loads(text.encode())
        broker, ledger = (found.get(key, "") for key in ("broker", "ledger")) if isinstance(found, dict) else ("", "")
        if not (isinstance(broker, str) and broker and isinstance(ledger, str)):
            raise ValueError("it has no broker")
        return cls(broker, ledger)


class LedgerEntries:
    """The entries of one ledger topic, of all name servers."""

    def __init__(self, admin: Admin, topic: str, name_server: str) -> None:
        self._admin = admin
        self._topic = topic
        self._name_server = name_server
        self._found: dict[str, LedgerEntry] = {}
        self.silent: Failures = {}
        """Name servers that do not respond, with their errors."""

    def read(self) -> LedgerEntry | None:
        """The entry that the responding name servers have.

        One that is complete counts, then the first in order: two drivers that create a ledger choose the same. Raises
        EXACTLY_ONCE.LEDGER_ENTRY if two complete ones differ.
        """
        self.silent = {}
        texts = self._admin.kv_config_of_each(NAMESPACE, self._topic, failed=self.silent)
        unsupported = [
            error for error in self.silent.values() if error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        ]
        if unsupported:
            raise condition(
                "EXACTLY_ONCE.NO_ENTRIES", entry=f"{NAMESPACE}/{self._topic}", name_server=self._name_server,
                problem=unsupported[0].message,
            )  # fmt: skip
        self._found = {}
        for server, text in texts.items():
            try:
                self._found[server] = LedgerEntry.decode(text)
            except ValueError as problem:
                raise self.wrong(f"{server} has {text[:200]!r} ({problem}).", None) from None
        complete = sorted({entry for entry in self._found.values() if entry.ledger})
        if len(complete) > 1:
            which = "; ".join(f"{server} has {entry.encode()}" for server, entry in sorted(self._found.items()))
            raise self.wrong(f"name servers differ: {which}.", None)
        return min(complete or self._found.values(), default=None)

    def write(self, entry: LedgerEntry) -> None:
        """Set the entry on the responding name servers that have another one, or none.

        Raises EXACTLY_ONCE.LEDGER_ENTRY_REFUSED if no name server has it then.
        """
        lacking = [server for server in self._servers() if self._found.get(server) != entry]
        failed: Failures = {}
        for server in lacking:
            try:
                self._admin.put_kv_config(NAMESPACE, self._topic, entry.encode(), name_server=server)
            except RocketError as problem:
                failed[server] = problem
            else:
                self._found[server] = entry
                log.info("set the entry %s/%s of name server %s to %s", NAMESPACE, self._topic, server, entry.encode())
        if failed and entry not in self._found.values():
            raise self._refused(entry, failed.values())
        for server, error in failed.items():
            log.warning("name server %s does not store the place of the ledger %s: %s", server, self._topic, error)

    def write_to_all(self, entry: LedgerEntry) -> None:
        """Set the entry on every name server, and read it back. Raises a retriable error if another driver does so."""
        self.write(entry)
        if self.read() != entry or self._found != dict.fromkeys(self._admin.name_servers, entry):
            raise DataSourceError(
                f"the entry {NAMESPACE}/{self._topic} is being changed by another driver, or a name server lost it.",
                retriable=True,
            )

    def _servers(self) -> list[str]:
        return [server for server in self._admin.name_servers if server not in self.silent]

    def _refused(self, entry: LedgerEntry | None, errors: Collection[RocketError]) -> RocketError:
        problem = "; ".join(error.message for error in errors)
        refused = condition(
            "EXACTLY_ONCE.LEDGER_ENTRY_REFUSED", entry=f"{NAMESPACE}/{self._topic}", problem=problem,
            commands=self._commands(entry),
        )  # fmt: skip
        refused.retriable = all(error.retriable for error in errors)
        return refused

    def wrong(self, problem: str, correct: LedgerEntry | None) -> DataSourceError:
        """EXACTLY_ONCE.LEDGER_ENTRY. ``correct``: the entry as it should be, if that is known."""
        return condition(
            "EXACTLY_ONCE.LEDGER_ENTRY", entry=f"{NAMESPACE}/{self._topic}", problem=problem, topic=self._topic,
            name_server=self._name_server, commands=self._commands(correct),
        )  # fmt: skip

    def _commands(self, entry: LedgerEntry | None) -> str:
        value = entry.encode() if entry else '{"broker":"NAME","ledger":"ID"}'
        return (
            f"mqadmin updateKvConfig -n {self._name_server!r} -s {NAMESPACE} -k {self._topic} -v '{value}', or "
            f"rocket namesrv kv set {NAMESPACE} {self._topic} '{value}' -n {self._name_server!r}"
        )
