"""Replication over the HA port, with slow, silent and invalid peers."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import cast

import pytest

from spark_rocket.broker.replication import master as master_module
from spark_rocket.broker.replication import slave as slave_module
from spark_rocket.protocol.wire.ha import HEADER_SIZE
from tests.broker.replicas import FILE, Replicas, caught_up, fill, following, problem, talk, within
from tests.kit.waiting import until_async as until
from tests.store.test_replica import assert_alike

pytestmark = [pytest.mark.usefixtures("short_pauses"), pytest.mark.live]


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 8, struct.pack(">q", 1 << 40)])
async def test_garbage_is_refused(replicas: Replicas, caplog: pytest.LogCaptureFixture, garbage: bytes) -> None:
    master = await replicas.master()
    fill(master, 10)
    reader, writer = await talk(master)
    writer.write(garbage)
    answer = await within(reader.read())
    assert answer in (b"", struct.pack(">qi", master.parts.store.max_physical_offset, 0))
    own = writer.get_extra_info("sockname")[1]
    assert f"127.0.0.1:{own}" in caplog.text
    assert "broker-a[0]" in caplog.text
    writer.close()
    assert master.parts.replication.slaves == []
    await replicas.close()


@pytest.mark.parametrize("raw", [struct.pack(">q", 1 << 40), b"GET / HTTP/1.1\r\n\r\n"[:9]], ids=["offset", "partial"])
async def test_connections_of_a_peer_do_not_fill_the_log(
    replicas: Replicas, caplog: pytest.LogCaptureFixture, raw: bytes
) -> None:
    """Neither invalid reports nor incomplete ones; the next line counts the suppressed ones (see ``test_logs``)."""
    master = await replicas.master()
    fill(master, 10)
    for _ in range(30):
        reader, writer = await talk(master)
        writer.write(raw)
        if len(raw) == 8:
            await within(reader.read())
        writer.close()
        await within(writer.wait_closed())
    await until(lambda: not master.parts.replication._connections)
    await replicas.close(master)
    assert 1 <= len([line for line in caplog.messages if "127.0.0.1:" in line and "broker-a[0]" in line]) <= 2


async def test_an_incomplete_report_is_not_a_slave(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(master_module, "_TICK_SECONDS", 0.05)
    master = await replicas.master(haHousekeepingInterval=200)
    for patient in (True, False):
        caplog.clear()
        reader, writer = await talk(master)
        peer = f"127.0.0.1:{writer.get_extra_info('sockname')[1]}"
        writer.write(b"\0\0\0\0")
        if patient:
            assert await within(reader.read()) == b""
        writer.close()
        await until(lambda: any(peer in line and "broker-a[0]" in line for line in caplog.messages))  # noqa: B023
    await replicas.close()


async def test_silent_peers_do_not_block_a_slave(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(master_module, "_MAX_CONNECTIONS", 3)
    master = await replicas.master()
    fill(master, 10)
    silent = [await talk(master) for _ in range(3)]
    slaves = [await replicas.slave(master, f"s{number}") for number in range(3)]
    await following(*slaves)
    for reader, writer in silent:
        assert await within(reader.read()) == b""
        writer.close()
    assert "no report from it, and 3 connections are open" in caplog.text
    late, writer = await talk(master)  # slaves are not closed for it
    assert await within(late.read()) == b""
    writer.close()
    assert "refused the HA connection" in caplog.text
    await replicas.close_alike(master, *slaves)


async def test_a_peer_that_does_not_read_uses_little_memory(tmp_path: Path, replicas: Replicas) -> None:
    master = await replicas.master(mappedFileSizeCommitLog=16 << 20)
    _, idle = await talk(master)
    cast(asyncio.Transport, idle.transport).pause_reading()
    idle.write(bytes(8))
    await until(lambda: master.parts.replication.slaves)
    slave = await replicas.slave(master, mappedFileSizeCommitLog=16 << 20)
    for _ in range(12):
        fill(master, 20, 50_000)
        await caught_up(master, slave)
    (stuck,) = (one for one in master.parts.replication.slaves if one.acked == 0)
    assert cast(asyncio.Transport, stuck._transport).get_write_buffer_size() <= 2 << 20
    idle.transport.abort()
    await replicas.close(master, slave)
    assert_alike(tmp_path / "m", tmp_path / "s")


@pytest.mark.parametrize(
    "junk",
    [b"x" * 100, struct.pack(">qi", 0, -1), struct.pack(">qi", 0, 40) + bytes(40), struct.pack(">qi", 0, 40), b""],
)
async def test_a_slave_refuses_an_invalid_master(
    replicas: Replicas, caplog: pytest.LogCaptureFixture, junk: bytes
) -> None:
    """It retries less and less often, and logs the problem once."""
    asked: list[bytes] = []

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readexactly(8))
        writer.write(junk)
        if len(junk) > HEADER_SIZE:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    slave = await replicas.slave(f"127.0.0.1:{port}")
    assert slave.parts.slave is not None
    await until(
        lambda: (
            slave.parts.slave and slave.parts.slave._retry_delay == slave_module._MAX_RETRY_DELAY_S and len(asked) > 5
        )
    )
    said = [line for line in caplog.messages if "does not follow its master" in line]
    assert len(said) == 1
    assert slave.parts.slave.name in said[0]
    assert f"at 127.0.0.1:{port}:" in said[0]
    assert f"copies the log of 127.0.0.1:{port}, but not its topics, groups and offsets" in caplog.text
    assert asked[0] == bytes(8)
    assert slave.parts.store.max_physical_offset == 0
    await replicas.close(slave)
    server.close()


async def test_a_silent_master_is_disconnected(replicas: Replicas, caplog: pytest.LogCaptureFixture) -> None:
    connected: list[bytes] = []

    class Silent(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            connected.append(data)

    server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    slave = await replicas.slave(address, haHousekeepingInterval=100)
    await until(lambda: len(connected) > 1)
    assert "no data from the master" in caplog.text
    await replicas.close(slave)
    server.close()


class AsApache:
    """A master as Apache's: it sends from the requested offset, if that exists, and sends late heartbeats."""

    def __init__(self, log: bytes, file_size: int) -> None:
        self.log = log
        self.file_size = file_size
        self.reports: list[int] = []
        self.server: asyncio.Server | None = None

    async def start(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (at,) = struct.unpack(">q", await reader.readexactly(8))
            self.reports.append(at)
            if at == 0:
                at = len(self.log) - len(self.log) % self.file_size
            while at < len(self.log):
                piece = self.log[at : min(at + 1000, at - at % self.file_size + self.file_size)]
                for half in (struct.pack(">qi", at, len(piece)), piece):
                    writer.write(half[:5])
                    await asyncio.sleep(0)
                    writer.write(half[5:])
                at += len(piece)
            await asyncio.sleep(0.05)
            writer.write(struct.pack(">qi", at, 0))
            while True:
                self.reports.append(struct.unpack(">q", await reader.readexactly(8))[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def close(self) -> None:
        assert self.server is not None
        self.server.close()


async def test_an_apache_master(replicas: Replicas) -> None:
    """Followed from its last file on. A slave ahead of it removes its tail, and does not follow an empty master."""
    source = await replicas.master()
    fill(source, 300)
    store = source.parts.store
    parts = [store.log_bytes(at, FILE) for at in range(0, store.max_physical_offset, FILE)]
    log = b"".join(parts)
    ends = [int(entry[0]) for entry in store.get_entries("T", 0, 0, 1000)]
    await replicas.close(source)
    master = AsApache(log, FILE)
    slave = await replicas.slave(await master.start())
    assert slave.parts.slave is not None
    await within(slave.parts.slave.reached(len(log)))
    await until(lambda: master.reports[-1] == len(log))
    await replicas.close(slave)
    master.close()
    shorter = AsApache(log[: ends[-3]], FILE)
    slave = await replicas.slave(await shorter.start())
    await following(slave)
    assert slave.parts.store.max_physical_offset == ends[-3]
    await replicas.close(slave)
    shorter.close()
    empty = AsApache(b"", FILE)
    slave = await replicas.slave(await empty.start())
    await until(lambda: "no data in common" in problem(slave))
    assert slave.parts.store.max_physical_offset == ends[-3]
    await replicas.close(slave)
    empty.close()


async def test_an_apache_slave(replicas: Replicas) -> None:
    """An Apache slave needs transfers at the end of its log, each within one file, and its reports count."""
    master = await replicas.master()
    fill(master, 400)
    reader, writer = await talk(master)
    writer.write(bytes(8))
    end = master.parts.store.max_physical_offset
    at = end - end % FILE
    start, log = at, b""
    while at < end:
        offset, size = struct.unpack(">qi", await within(reader.readexactly(HEADER_SIZE)))
        assert offset == at
        assert 0 < size <= 32 << 10
        assert offset // FILE == (offset + size - 1) // FILE
        log += await within(reader.readexactly(size))
        at += size
        writer.write(struct.pack(">q", at))
    assert struct.unpack(">qi", await within(reader.readexactly(HEADER_SIZE))) == (end, 0)
    assert log == master.parts.store.log_bytes(start, FILE)
    await until(lambda: [one.acked for one in master.parts.replication.slaves] == [end])
    writer.close()
    await replicas.close()
