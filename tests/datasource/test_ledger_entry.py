"""The entry of the exactly-once ledger at name servers that refuse it, or that have different ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from spark_rocket.datasource.exactly_once.entry import LedgerEntries, LedgerEntry
from spark_rocket.errors import BrokerError, ExactlyOnceError, RemotingConnectError, RocketError
from spark_rocket.protocol.wire.codes import ResponseCode


@dataclass
class Servers:
    """``Admin`` for name servers in memory. ``refuses``: the error of an address."""

    entries: dict[str, str] = field(default_factory=dict)
    refuses: dict[str, RocketError] = field(default_factory=dict)
    name_servers: tuple[str, ...] = ("a:1", "b:1")

    def kv_config_of_each(self, namespace: str, key: str, *, failed: dict[str, RocketError]) -> dict[str, str]:
        silent = {address: error for address, error in self.refuses.items() if "put" not in error.message}
        failed |= silent
        return {address: text for address, text in self.entries.items() if address not in silent}

    def put_kv_config(self, namespace: str, key: str, value: str, *, name_server: str) -> None:
        if name_server in self.refuses:
            raise self.refuses[name_server]
        self.entries[name_server] = value


def entries(servers: Servers) -> LedgerEntries:
    return LedgerEntries(servers, "ledger", "a:1;b:1")  # type: ignore[arg-type]


ENTRY = LedgerEntry("broker-a", "1" * 32)
REFUSED = BrokerError("a:1 rejected the put with 16", response_code=ResponseCode.NO_PERMISSION)


def test_an_entry_is_read_back() -> None:
    for entry in (ENTRY, LedgerEntry("broker-a")):
        assert LedgerEntry.decode(entry.encode()) == entry
    for text in ("", "{}", "[]", "broker-a", '{"broker": 3}', '{"broker": "a", "ledger": 1}', '{"broker": ""}'):
        with pytest.raises(ValueError):
            LedgerEntry.decode(text)


def test_name_servers_that_store_no_entries() -> None:
    """A proxy, for example."""
    unknown = BrokerError("a:1 rejected it with 3", response_code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    with pytest.raises(ExactlyOnceError, match=r"NO_ENTRIES.*a:1;b:1 stores no entry.*ledgerBroker") as refused:
        entries(Servers(refuses={"a:1": unknown, "b:1": unknown})).read()
    assert "updateKvConfig" not in str(refused.value), "that command is refused, too"


def test_one_name_server_that_stores_the_entry_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers(refuses={"a:1": REFUSED})
    both = entries(servers)
    assert both.read() is None
    both.write(ENTRY)
    assert servers.entries == {"b:1": ENTRY.encode()}
    assert "name server a:1 does not store the place of the ledger" in caplog.text
    servers.refuses["b:1"] = REFUSED
    servers.entries.clear()
    other = entries(servers)
    assert other.read() is None
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_ENTRY_REFUSED.*rejected the put.*rocket namesrv kv set"):
        other.write(ENTRY)


def test_a_name_server_that_missed_the_last_change() -> None:
    """A complete entry counts, and replaces one that was written when the ledger was begun."""
    servers = Servers({"a:1": LedgerEntry("broker-b").encode(), "b:1": ENTRY.encode()})
    both = entries(servers)
    assert both.read() == ENTRY
    both.write(ENTRY)
    assert {*servers.entries.values()} == {ENTRY.encode()}


def test_drivers_that_begin_at_different_brokers_choose_the_same() -> None:
    servers = Servers({"a:1": LedgerEntry("broker-b").encode(), "b:1": LedgerEntry("broker-a").encode()})
    both = entries(servers)
    assert both.read() == LedgerEntry("broker-a")
    both.write_to_all(LedgerEntry("broker-a"))
    assert {*servers.entries.values()} == {LedgerEntry("broker-a").encode()}


def test_an_entry_that_is_to_be_on_all_name_servers() -> None:
    servers = Servers(refuses={"b:1": RemotingConnectError("b:1 does not run")})
    both = entries(servers)
    assert both.read() is None
    with pytest.raises(RocketError, match="is being changed by another driver") as caught:
        both.write_to_all(ENTRY)
    assert caught.value.retriable
