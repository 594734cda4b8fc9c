"""A master and its slaves over loopback, in one loop: the slave's log is its master's, whatever comes between."""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

import pytest

from spark_rocket.broker import addresses
from spark_rocket.broker.replication import master as master_module
from spark_rocket.broker.replication import slave as slave_module
from spark_rocket.broker.replication.master import bind_ha_port
from spark_rocket.broker.server import Broker
from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.wire.ha import HEADER_SIZE
from spark_rocket.store import PutStatus
from spark_rocket.store.tools.check import check_store
from tests.kit.waiting import until_async as until
from tests.store.helpers import log_of
from tests.store.test_replica import assert_alike

FILE = 64 << 10
T = TypeVar("T")


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_module, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(slave_module, "_LONGEST_PAUSE", 0.2)
    monkeypatch.setattr(slave_module, "_REFUSED_PAUSE", 0.2)


def settings(path: Path, **more: object) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "storePathRootDir": path,
            "listenPort": 0,
            "mappedFileSizeCommitLog": FILE,
            "mappedFileSizeConsumeQueue": 4000,
            "maxHashSlotNum": 100,
            "maxIndexNum": 400,
            **more,
        }
    )


async def within(work: Awaitable[T]) -> T:
    return await asyncio.wait_for(work, 30)


def ha_address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.service.replication.port}"


async def started(config: BrokerConfig) -> Broker:
    broker = Broker(config)
    await broker.start()
    return broker


async def slave_of(master: Broker | str, path: Path, **more: object) -> Broker:
    address = master if isinstance(master, str) else ha_address(master)
    own = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": address, **more}
    return await started(settings(path, **own))


async def following(*slaves: Broker) -> None:
    for slave in slaves:
        await until(lambda: slave.slave and slave.slave.is_following)  # noqa: B023


def fill(broker: Broker, count: int, size: int = 300, topic: str = "T") -> None:
    store = broker.service.store
    for number in range(count):
        body = b"%d" % number * (size // len(b"%d" % number))
        result = store.put_message(
            topic, number % 4, body, b"KEYS\1k%d" % number, born_timestamp=1, born_host=("127.0.0.1", 5)
        )
        assert result.status is PutStatus.PUT_OK


async def caught_up(master: Broker, *slaves: Broker) -> None:
    for slave in slaves:
        assert slave.slave is not None
        await within(slave.slave.reached(master.service.store.max_physical_offset))


async def filled_pair(directory: Path, count: int) -> tuple[Broker, Broker]:
    """A master with so many messages, and its slave, which has them too."""
    master = await started(settings(directory / "m"))
    slave = await slave_of(master, directory / "s")
    await following(slave)
    fill(master, count)
    await caught_up(master, slave)
    return master, slave


async def close_alike(master: Broker, *slaves: Broker) -> None:
    """Stop all, master first; the logs are the same, byte for byte, and the stores are right."""
    await caught_up(master, *slaves)
    for broker in (master, *slaves):
        await broker.close()
        assert check_store(broker.config.store_path, broker.config.store_config()) == []
    for slave in slaves:
        assert_alike(master.config.store_path, slave.config.store_path)


# --- following --------------------------------------------------------------------------------------------------------


async def test_slaves_follow_through_many_files(tmp_path: Path) -> None:
    master = await started(settings(tmp_path / "m"))
    slaves = [await slave_of(master, tmp_path / f"s{number}") for number in range(2)]
    await following(*slaves)
    for _ in range(5):
        fill(master, 200, 400)
        await caught_up(master, *slaves)
    assert master.service.store.max_physical_offset > 4 * FILE
    for slave in slaves:
        assert slave.slave is not None
        assert slave.slave.is_following
        assert slave.service.store.get_max_offset("T", 1) == master.service.store.get_max_offset("T", 1)
    await close_alike(master, *slaves)


async def test_a_slave_that_joins_late_begins_with_the_masters_last_file(tmp_path: Path) -> None:
    master = await started(settings(tmp_path / "m"))
    fill(master, 500, 400)
    slave = await slave_of(master, tmp_path / "s")
    await following(slave)
    fill(master, 500, 400)
    await caught_up(master, slave)
    begin = slave.service.store.min_physical_offset
    assert begin > 0
    assert begin % FILE == 0
    await slave.close()
    fill(master, 50)
    slave = await slave_of(master, tmp_path / "s")  # and goes on after a restart
    await caught_up(master, slave)
    await slave.close()
    await master.close()
    assert check_store(tmp_path / "s", slave.config.store_config()) == []
    for file in (tmp_path / "s" / "commitlog").iterdir():
        assert file.read_bytes() == (tmp_path / "m" / "commitlog" / file.name).read_bytes()


async def test_a_slave_goes_on_where_it_was_after_each_restart(tmp_path: Path) -> None:
    port = 0
    master = await started(settings(tmp_path / "m"))
    port = int(ha_address(master).split(":")[1])
    slave = await slave_of(master, tmp_path / "s")
    await following(slave)
    fill(master, 100)
    await caught_up(master, slave)
    await slave.close()
    fill(master, 600)  # falls behind
    slave = await slave_of(master, tmp_path / "s")
    await caught_up(master, slave)
    await master.close()
    assert slave.slave is not None
    await until(lambda: slave.slave and slave.slave.problem)
    master = await started(settings(tmp_path / "m", haListenPort=port))
    fill(master, 100)
    await close_alike(master, slave)


async def test_the_last_messages_reach_the_slave_before_a_clean_stop(tmp_path: Path) -> None:
    master, slave = await filled_pair(tmp_path, 10)
    fill(master, 300)
    end = master.service.store.max_physical_offset
    await master.close()
    assert slave.service.store.max_physical_offset == end
    await slave.close()
    assert_alike(tmp_path / "m", tmp_path / "s")


# --- a tail that the master does not have -----------------------------------------------------------------------------


async def image_of(slave: Broker, to: Path) -> None:
    """A copy of a stopped slave's store, to be a master's."""
    await slave.close()
    shutil.copytree(slave.config.store_path, to)


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_slave_ahead_of_its_master_gives_its_tail_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_idle: bool
) -> None:
    """The master lost its last messages; perhaps it has taken others since."""
    master, slave = await filled_pair(tmp_path, 300)
    fork = master.service.store.max_physical_offset
    await image_of(slave, tmp_path / "m2")
    fill(master, 600)
    slave = await slave_of(master, tmp_path / "s")
    await caught_up(master, slave)
    await master.close()
    await slave.close()
    again = await started(settings(tmp_path / "m2"))
    if not is_idle:
        fill(again, 800, 280)
    slave = await slave_of(again, tmp_path / "s")
    await following(slave)
    (kept,) = (tmp_path / "s" / "quarantine").iterdir()
    assert kept.name == f"{fork:020d}"
    assert f"from offset {fork}" in caplog.text
    assert "broker-a[1]" in caplog.text
    assert ha_address(again) in caplog.text
    fill(again, 30)
    await close_alike(again, slave)


async def test_a_former_master_follows_the_slave_that_took_its_place(tmp_path: Path) -> None:
    master, slave = await filled_pair(tmp_path, 200)
    await slave.close()
    fill(master, 20)  # nobody else has them
    await master.close()
    promoted = await started(settings(tmp_path / "s"))
    fill(promoted, 500, 310)
    former = await slave_of(promoted, tmp_path / "m")
    await caught_up(promoted, former)
    assert len(list((tmp_path / "m" / "quarantine").iterdir())) == 1
    await close_alike(promoted, former)


async def test_a_slave_of_a_slave(tmp_path: Path) -> None:
    """It follows as well, and gives the tail back that the one between gave back."""
    master = await started(settings(tmp_path / "m"))
    between = await slave_of(master, tmp_path / "s")
    await following(between)
    last = await slave_of(between, tmp_path / "t", brokerId=2)
    await following(last)
    fill(master, 100)
    await caught_up(master, between, last)
    await master.close()
    shutil.copytree(tmp_path / "m", tmp_path / "m2")
    port = int(between.config.ha_master_address.split(":")[1])
    master = await started(settings(tmp_path / "m", haListenPort=port))
    fill(master, 60)
    await caught_up(master, between, last)
    await master.close()
    other = await started(settings(tmp_path / "m2", haListenPort=port))
    fill(other, 200, 310)
    await caught_up(other, between, last)
    await following(between, last)
    assert len(list((tmp_path / "t" / "quarantine").iterdir())) == 1
    await close_alike(other, between, last)


async def test_logs_that_parted_files_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison goes back until it finds what both have."""
    monkeypatch.setattr("spark_rocket.store.recovery.replica._BACK", (4 << 10, 16 << 10))
    master, slave = await filled_pair(tmp_path, 300)
    fork = master.service.store.max_physical_offset
    await image_of(slave, tmp_path / "m2")
    fill(master, 1500)
    slave = await slave_of(master, tmp_path / "s")
    await caught_up(master, slave)
    await master.close()
    assert slave.service.store.max_physical_offset > fork + 5 * FILE
    await slave.close()
    again = await started(settings(tmp_path / "m2"))
    fill(again, 2000, 333)
    slave = await slave_of(again, tmp_path / "s")
    await caught_up(again, slave)
    (kept,) = (tmp_path / "s" / "quarantine").iterdir()
    assert kept.name == f"{fork:020d}"
    await close_alike(again, slave)


async def test_another_clusters_log_is_refused_and_not_touched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = await started(settings(tmp_path / "one"))
    fill(one, 400)
    await one.close()
    other = await started(settings(tmp_path / "other", brokerName="else"))
    fill(other, 700, 200, "Other")
    before = {file: file.read_bytes() for file in (tmp_path / "one" / "commitlog").iterdir()}
    slave = await slave_of(other, tmp_path / "one")
    await until(lambda: slave.slave and "nothing in common" in slave.slave.problem)
    assert slave.slave is not None
    for text in ("broker-a[1]", ha_address(other), "of topic T,", "of topic Other,", "move its store"):
        assert text in slave.slave.problem
    await slave.close()
    await other.close()
    assert {file: file.read_bytes() for file in (tmp_path / "one" / "commitlog").iterdir()} == before
    assert not (tmp_path / "one" / "quarantine").exists()


async def test_a_master_that_lost_its_store_takes_nothing_from_its_slave(tmp_path: Path) -> None:
    master, slave = await filled_pair(tmp_path, 500)
    end = master.service.store.max_physical_offset
    await master.close()
    await slave.close()
    empty = await started(settings(tmp_path / "empty"))
    slave = await slave_of(empty, tmp_path / "s")
    await until(lambda: slave.slave and "nothing in common" in slave.slave.problem)
    assert slave.service.store.max_physical_offset == end
    await slave.close()
    await empty.close()


async def test_a_slave_so_far_behind_that_the_log_between_is_deleted(tmp_path: Path) -> None:
    master, slave = await filled_pair(tmp_path, 50)
    await slave.close()
    fill(master, 1000)
    for file in log_of(master.service.store).queue.remove_before(3 * FILE):
        file.destroy()
    slave = await slave_of(master, tmp_path / "s")
    await until(lambda: slave.slave and "what lies between is deleted" in slave.slave.problem)
    await slave.close()
    await master.close()


# --- what comes over the HA port --------------------------------------------------------------------------------------


async def talk(broker: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = ha_address(broker).split(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 8, struct.pack(">q", 1 << 40)])
async def test_garbage_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture, garbage: bytes) -> None:
    master = await started(settings(tmp_path / "m"))
    fill(master, 10)
    reader, writer = await talk(master)
    writer.write(garbage)
    answer = await within(reader.read())
    assert answer in (b"", struct.pack(">qi", master.service.store.max_physical_offset, 0))
    own = writer.get_extra_info("sockname")[1]
    assert f"127.0.0.1:{own}" in caplog.text
    assert "broker-a[0]" in caplog.text
    writer.close()
    assert master.service.replication.slaves == []
    await master.close()


async def test_half_a_report_is_no_slave_and_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(master_module, "_TICK_SECONDS", 0.05)
    master = await started(settings(tmp_path / "m", haHousekeepingInterval=200))
    for patient in (True, False):
        caplog.clear()
        reader, writer = await talk(master)
        peer = f"127.0.0.1:{writer.get_extra_info('sockname')[1]}"
        writer.write(b"\0\0\0\0")
        if patient:
            assert await within(reader.read()) == b""
        writer.close()
        await until(lambda: any(peer in line and "broker-a[0]" in line for line in caplog.messages))  # noqa: B023
    await master.close()


async def test_those_who_report_nothing_keep_no_slave_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(master_module, "_MOST_CONNECTIONS", 3)
    master = await started(settings(tmp_path / "m"))
    fill(master, 10)
    silent = [await talk(master) for _ in range(3)]
    slaves = [await slave_of(master, tmp_path / f"s{number}") for number in range(3)]
    await following(*slaves)
    for reader, writer in silent:
        assert await within(reader.read()) == b""
        writer.close()
    assert "3 are open, and it has reported nothing" in caplog.text
    late, writer = await talk(master)  # slaves are not closed for it
    assert await within(late.read()) == b""
    writer.close()
    assert "refused the HA connection" in caplog.text
    await close_alike(master, *slaves)


async def test_a_peer_that_does_not_read_costs_little_and_others_are_served(tmp_path: Path) -> None:
    master = await started(settings(tmp_path / "m", mappedFileSizeCommitLog=16 << 20))
    _, idle = await talk(master)
    cast(asyncio.Transport, idle.transport).pause_reading()
    idle.write(bytes(8))
    await until(lambda: master.service.replication.slaves)
    slave = await slave_of(master, tmp_path / "s", mappedFileSizeCommitLog=16 << 20)
    for _ in range(12):
        fill(master, 20, 50_000)
        await caught_up(master, slave)
    (stuck,) = (one for one in master.service.replication.slaves if one.acked == 0)
    assert stuck._transport is not None
    assert stuck._transport.get_write_buffer_size() <= 2 << 20
    idle.transport.abort()
    await master.close()
    await slave.close()
    assert_alike(tmp_path / "m", tmp_path / "s")


@pytest.mark.parametrize(
    "junk",
    [b"x" * 100, struct.pack(">qi", 0, -1), struct.pack(">qi", 0, 40) + bytes(40), struct.pack(">qi", 0, 40), b""],
)
async def test_a_slave_is_not_led_astray_by_what_is_no_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, junk: bytes
) -> None:
    """It asks less and less often, and says once what it met."""
    asked: list[bytes] = []

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readexactly(8))
        writer.write(junk)
        if len(junk) > HEADER_SIZE:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    slave = await slave_of(f"127.0.0.1:{port}", tmp_path / "s")
    assert slave.slave is not None
    await until(lambda: slave.slave and slave.slave._pause == slave_module._LONGEST_PAUSE and len(asked) > 5)
    said = [line for line in caplog.messages if "does not follow its master" in line]
    assert len(said) == 1
    assert slave.slave.name in said[0]
    assert f"at 127.0.0.1:{port}:" in said[0]
    assert f"copies the log of 127.0.0.1:{port}, but has no name server" in caplog.text
    assert asked[0] == bytes(8)
    assert slave.service.store.max_physical_offset == 0
    await slave.close()
    server.close()


async def test_a_master_that_says_nothing_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    connected: list[bytes] = []

    class Silent(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            connected.append(data)

    server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    slave = await slave_of(address, tmp_path / "s", haHousekeepingInterval=100)
    await until(lambda: len(connected) > 1)
    assert "nothing came from the master" in caplog.text
    await slave.close()
    server.close()


class AsApache:
    """A master as Apache's: it sends from wherever it is told to, if that is there, and beats late."""

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


async def test_an_apache_master(tmp_path: Path) -> None:
    """Followed from its last file on; ahead of it, the slave gives its tail back; from nothing at all it stays away."""
    source = await started(settings(tmp_path / "m"))
    fill(source, 300)
    store = source.service.store
    parts = [store.log_bytes(at, FILE) for at in range(0, store.max_physical_offset, FILE)]
    log = b"".join(parts)
    ends = [int(entry[0]) for entry in store.get_entries("T", 0, 0, 1000)]
    await source.close()
    master = AsApache(log, FILE)
    slave = await slave_of(await master.start(), tmp_path / "s")
    assert slave.slave is not None
    await within(slave.slave.reached(len(log)))
    await until(lambda: master.reports[-1] == len(log))
    await slave.close()
    master.close()
    shorter = AsApache(log[: ends[-3]], FILE)
    slave = await slave_of(await shorter.start(), tmp_path / "s")
    await following(slave)
    assert slave.service.store.max_physical_offset == ends[-3]
    await slave.close()
    shorter.close()
    empty = AsApache(b"", FILE)
    slave = await slave_of(await empty.start(), tmp_path / "s")
    await until(lambda: slave.slave and "nothing in common" in slave.slave.problem)
    assert slave.service.store.max_physical_offset == ends[-3]
    await slave.close()
    empty.close()


async def test_an_apache_slave(tmp_path: Path) -> None:
    """What a slave of Apache's needs: each transfer where its log ends, within one file, and reports that count."""
    master = await started(settings(tmp_path / "m"))
    fill(master, 400)
    reader, writer = await talk(master)
    writer.write(bytes(8))
    end = master.service.store.max_physical_offset
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
    assert log == master.service.store.log_bytes(start, FILE)
    await until(lambda: [one.acked for one in master.service.replication.slaves] == [end])
    writer.close()
    await master.close()


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{"brokerRole": "SLAVE"}, {"brokerId": 1}])
async def test_role_and_id_belong_together(tmp_path: Path, more: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="brokerId"):
        await started(settings(tmp_path / "m", **more))


async def test_the_ha_port_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error for who asked for it or needs it; else the broker does without."""
    first = await started(settings(tmp_path / "a"))
    taken = first.service.replication.port
    with pytest.raises(ConfigError, match=f"127.0.0.1:{taken}: the port is in use. Set haListenPort"):
        await started(settings(tmp_path / "b", haListenPort=taken))
    monkeypatch.setattr(addresses, "bind_ha_port", lambda host, _: bind_ha_port(host, taken))
    for role in ({"brokerRole": "SYNC_MASTER"}, {"brokerRole": "SLAVE", "brokerId": 1}):
        with pytest.raises(ConfigError, match="haListenPort"):
            await started(settings(tmp_path / "b", **role))
    second = await started(settings(tmp_path / "b"))
    assert "no slave can follow" in caplog.text
    assert second.service.replication.port == 0
    await second.close()
    await first.close()


async def test_a_connection_that_breaks_anywhere(tmp_path: Path) -> None:
    """In the middle of a header, of a record, of a report: what the slave has is always the beginning of the log."""
    rng = random.Random(5)
    master = await started(settings(tmp_path / "m"))
    target = ha_address(master).split(":")
    breaks = 0

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int) -> None:
        with suppress(ConnectionError):
            while left > 0 and (data := await reader.read(min(left, 50_000))):
                left -= len(data)
                writer.write(data)
                await writer.drain()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal breaks
        there, back = await asyncio.open_connection(target[0], int(target[1]))
        left = rng.choice((5, 12, 13, 60, 3_000, 40_000, 150_000)) if breaks else 20_000
        left = left if breaks < 30 else 1 << 40
        ways = [asyncio.create_task(carry(there, writer, left)), asyncio.create_task(carry(reader, back, left))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        breaks += 1
        for end in (writer, back):
            end.transport.abort()
        await asyncio.wait(ways)

    proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
    slave = await slave_of(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}", tmp_path / "s")
    fill(master, 1)  # an empty slave would begin with the last file
    await caught_up(master, slave)
    while breaks < 30:
        fill(master, 25, rng.choice((100, 2_000)))
        await asyncio.sleep(0.02)
    await caught_up(master, slave)
    await close_alike(master, slave)
    assert not (tmp_path / "s" / "quarantine").exists()
    proxy.close()
