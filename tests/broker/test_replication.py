"""Replication: slaves follow, and remove messages that their master does not have."""

from __future__ import annotations

import asyncio
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker import addresses
from spark_rocket.broker.broker import Broker
from spark_rocket.broker.replication.master import bind_ha_port
from spark_rocket.errors import ConfigError
from spark_rocket.store.tools.check import check_store
from tests.broker.replicas import FILE, Replicas, caught_up, fill, following, ha_address, problem
from tests.kit.waiting import until_async as until
from tests.store.helpers import log_of
from tests.store.test_replica import assert_alike

pytestmark = [pytest.mark.usefixtures("short_pauses"), pytest.mark.live]


# --- following -------------------------------------------------------------------------------------------------------


async def test_slaves_follow_through_many_files(replicas: Replicas) -> None:
    master = await replicas.master()
    slaves = [await replicas.slave(master, f"s{number}") for number in range(2)]
    await following(*slaves)
    for _ in range(5):
        fill(master, 200, 400)
        await caught_up(master, *slaves)
    assert master.parts.store.max_physical_offset > 4 * FILE
    for slave in slaves:
        assert slave.parts.slave is not None
        assert slave.parts.slave.is_following
        assert slave.parts.store.get_max_offset("T", 1) == master.parts.store.get_max_offset("T", 1)
    await replicas.close_alike(master, *slaves)


async def test_a_slave_that_joins_late_begins_with_the_masters_last_file(tmp_path: Path, replicas: Replicas) -> None:
    master = await replicas.master()
    fill(master, 500, 400)
    slave = await replicas.slave(master)
    await following(slave)
    fill(master, 500, 400)
    await caught_up(master, slave)
    begin = slave.parts.store.min_physical_offset
    assert begin > 0
    assert begin % FILE == 0
    await replicas.close(slave)
    fill(master, 50)
    slave = await replicas.slave(master)  # and goes on after a restart
    await caught_up(master, slave)
    await replicas.close(slave, master)
    assert check_store(tmp_path / "s", slave.config.store_config()) == []
    for file in (tmp_path / "s" / "commitlog").iterdir():
        assert file.read_bytes() == (tmp_path / "m" / "commitlog" / file.name).read_bytes()


async def test_a_slave_continues_after_each_restart(replicas: Replicas) -> None:
    master, slave = await replicas.pair(100)
    port = int(ha_address(master).split(":")[1])
    await replicas.close(slave)
    fill(master, 600)  # falls behind
    slave = await replicas.slave(master)
    await caught_up(master, slave)
    await replicas.close(master)
    await until(lambda: problem(slave))
    master = await replicas.master(haListenPort=port)
    fill(master, 100)
    await replicas.close_alike(master, slave)


async def test_the_last_messages_reach_the_slave_before_a_clean_stop(tmp_path: Path, replicas: Replicas) -> None:
    master, slave = await replicas.pair(10)
    fill(master, 300)
    end = master.parts.store.max_physical_offset
    await replicas.close(master)
    assert slave.parts.store.max_physical_offset == end
    await replicas.close(slave)
    assert_alike(tmp_path / "m", tmp_path / "s")


# --- a tail that the master does not have ----------------------------------------------------------------------------


async def image_of(replicas: Replicas, slave: Broker, to: str) -> None:
    """A copy of a stopped slave's store, for a master."""
    await replicas.close(slave)
    shutil.copytree(slave.config.store.store_path, replicas.directory / to)


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_slave_ahead_of_its_master_removes_its_tail(
    tmp_path: Path, replicas: Replicas, caplog: pytest.LogCaptureFixture, is_idle: bool
) -> None:
    """The master lost its last messages, and possibly has new ones."""
    master, slave = await replicas.pair(300)
    fork = master.parts.store.max_physical_offset
    await image_of(replicas, slave, "m2")
    fill(master, 600)
    slave = await replicas.slave(master)
    await caught_up(master, slave)
    await replicas.close(master, slave)
    again = await replicas.master("m2")
    if not is_idle:
        fill(again, 800, 280)
    slave = await replicas.slave(again)
    await following(slave)
    (kept,) = (tmp_path / "s" / "quarantine").iterdir()
    assert kept.name == f"{fork:020d}"
    assert f"from offset {fork}" in caplog.text
    assert "broker-a[1]" in caplog.text
    assert ha_address(again) in caplog.text
    fill(again, 30)
    await replicas.close_alike(again, slave)


async def test_a_former_master_follows_the_promoted_slave(tmp_path: Path, replicas: Replicas) -> None:
    master, slave = await replicas.pair(200)
    await replicas.close(slave)
    fill(master, 20)  # no other broker has them
    await replicas.close(master)
    promoted = await replicas.master("s")
    fill(promoted, 500, 310)
    former = await replicas.slave(promoted, "m")
    await caught_up(promoted, former)
    assert len(list((tmp_path / "m" / "quarantine").iterdir())) == 1
    await replicas.close_alike(promoted, former)


async def test_a_slave_of_a_slave(tmp_path: Path, replicas: Replicas) -> None:
    """It follows as well, and removes the same tail as the slave between them."""
    master = await replicas.master()
    between = await replicas.slave(master)
    await following(between)
    last = await replicas.slave(between, "t", brokerId=2)
    await following(last)
    fill(master, 100)
    await caught_up(master, between, last)
    await replicas.close(master)
    shutil.copytree(tmp_path / "m", tmp_path / "m2")
    port = int(between.config.ha_master_address.split(":")[1])
    master = await replicas.master(haListenPort=port)
    fill(master, 60)
    await caught_up(master, between, last)
    await replicas.close(master)
    other = await replicas.master("m2", haListenPort=port)
    fill(other, 200, 310)
    await caught_up(other, between, last)
    await following(between, last)
    assert len(list((tmp_path / "t" / "quarantine").iterdir())) == 1
    await replicas.close_alike(other, between, last)


async def test_logs_that_differ_since_several_files(
    tmp_path: Path, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison continues backwards to the common part."""
    monkeypatch.setattr("spark_rocket.store.recovery.replica._COMPARISON_DISTANCES_BYTES", (4 << 10, 16 << 10))
    master, slave = await replicas.pair(300)
    fork = master.parts.store.max_physical_offset
    await image_of(replicas, slave, "m2")
    fill(master, 1500)
    slave = await replicas.slave(master)
    await caught_up(master, slave)
    await replicas.close(master)
    assert slave.parts.store.max_physical_offset > fork + 5 * FILE
    await replicas.close(slave)
    again = await replicas.master("m2")
    fill(again, 2000, 333)
    slave = await replicas.slave(again)
    await caught_up(again, slave)
    (kept,) = (tmp_path / "s" / "quarantine").iterdir()
    assert kept.name == f"{fork:020d}"
    await replicas.close_alike(again, slave)


async def test_another_clusters_log_is_refused_and_not_touched(
    tmp_path: Path, replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    one = await replicas.master("one")
    fill(one, 400)
    await replicas.close(one)
    other = await replicas.master("other", brokerName="else")
    fill(other, 700, 200, "Other")
    before = {file: file.read_bytes() for file in (tmp_path / "one" / "commitlog").iterdir()}
    slave = await replicas.slave(other, "one")
    await until(lambda: "no data in common" in problem(slave))
    for text in ("broker-a[1]", ha_address(other), "of topic T,", "of topic Other,", "move its store"):
        assert text in problem(slave)
    await replicas.close(slave, other)
    assert {file: file.read_bytes() for file in (tmp_path / "one" / "commitlog").iterdir()} == before
    assert not (tmp_path / "one" / "quarantine").exists()


async def test_a_master_that_lost_its_store_copies_nothing_from_its_slave(replicas: Replicas) -> None:
    master, slave = await replicas.pair(500)
    end = master.parts.store.max_physical_offset
    await replicas.close(master, slave)
    empty = await replicas.master("empty")
    slave = await replicas.slave(empty)
    await until(lambda: "no data in common" in problem(slave))
    assert slave.parts.store.max_physical_offset == end
    await replicas.close()


async def test_a_slave_so_far_behind_that_the_log_between_is_deleted(replicas: Replicas) -> None:
    master, slave = await replicas.pair(50)
    await replicas.close(slave)
    fill(master, 1000)
    for file in log_of(master.parts.store).queue.remove_before(3 * FILE):
        file.destroy()
    slave = await replicas.slave(master)
    await until(lambda: "the data in between is deleted" in problem(slave))
    await replicas.close(slave, master)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{"brokerRole": "SLAVE"}, {"brokerId": 1}])
async def test_role_and_id_belong_together(replicas: Replicas, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="brokerId"):
        await replicas.master(**more)


async def test_the_ha_port_in_use(
    replicas: Replicas, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error if the port is configured or needed; else the broker starts without it."""
    first = await replicas.master("a")
    taken = first.parts.replication.port
    with pytest.raises(ConfigError, match=f"127.0.0.1:{taken}: the port is in use. Set haListenPort"):
        await replicas.master("b", haListenPort=taken)
    monkeypatch.setattr(addresses, "bind_ha_port", lambda host, _: bind_ha_port(host, taken))
    for role in ({"brokerRole": "SYNC_MASTER"}, {"brokerRole": "SLAVE", "brokerId": 1}):
        with pytest.raises(ConfigError, match="haListenPort"):
            await replicas.master("b", **role)
    second = await replicas.master("b")
    assert "slaves cannot replicate this broker" in caplog.text
    assert second.parts.replication.port == 0
    await replicas.close()


async def test_a_connection_that_breaks_anywhere(tmp_path: Path, replicas: Replicas) -> None:
    """In a header, a record or a report: the slave always has a prefix of the log."""
    rng = random.Random(5)
    master = await replicas.master()
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
    slave = await replicas.slave(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    fill(master, 1)  # an empty slave would begin with the last file
    await caught_up(master, slave)
    while breaks < 30:
        fill(master, 25, rng.choice((100, 2_000)))
        await asyncio.sleep(0.02)
    await caught_up(master, slave)
    await replicas.close_alike(master, slave)
    assert not (tmp_path / "s" / "quarantine").exists()
    proxy.close()
