"""SYNC_MASTER: a send is acknowledged when a slave has the message, or with a status that no slave has it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_rocket.broker.broker import Broker
from spark_rocket.model import Message
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from tests.broker.replicas import Replicas, caught_up, fill, following, settings, started, talk
from tests.broker.test_lifecycle import ask
from tests.broker.wire import Wire
from tests.kit.waiting import until_async as until

pytestmark = pytest.mark.live


async def sync_master(path: Path, **more: object) -> Broker:
    return await started(settings(path, **{"brokerRole": "SYNC_MASTER", "slaveTimeout": 30_000, **more}))


def send(properties: dict[str, str] | None = None) -> Callable[[Wire], int]:
    return lambda wire: wire.send("T", b"x", properties or {}).code


@pytest.mark.parametrize("disk", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_acknowledged_messages_are_on_the_slave(tmp_path: Path, replicas: Replicas, disk: str) -> None:
    master = await sync_master(tmp_path / "m", flushDiskType=disk)
    slaves = [await replicas.slave(master, f"s{number}") for number in range(2)]
    await following(*slaves)

    def sends(wire: Wire) -> list[int]:
        answered = []
        for number in range(30):
            answer = wire.send("T", b"%d" % number, queue_id=number % 2)
            assert answer.code == ResponseCode.SUCCESS
            answered.append(
                max(slave.parts.store.get_max_offset("T", number % 2) for slave in slaves)
                - int(answer.ext_fields["queueOffset"])
            )
        batch = wire.send_batch("T", [Message.of("T", b"b")] * 20, queue_id=0)
        assert batch.code == ResponseCode.SUCCESS
        return answered

    assert min(await ask(master, sends)) > 0
    assert max(slave.parts.store.get_max_offset("T", 0) for slave in slaves) == 35
    await replicas.close()


async def test_without_a_slave_it_is_stored_with_a_status(tmp_path: Path, replicas: Replicas) -> None:
    master = await sync_master(tmp_path / "m")
    assert await ask(master, send()) == ResponseCode.SLAVE_NOT_AVAILABLE
    assert await ask(master, send({"WAIT": "false"})) == ResponseCode.SUCCESS
    assert sum(master.parts.store.get_max_offset("T", queue_id) for queue_id in range(4)) == 2
    slave = await replicas.slave(master)
    await following(slave)
    await caught_up(master, slave)
    assert await ask(master, send()) == ResponseCode.SUCCESS
    await replicas.close(slave)
    await until(lambda: not master.parts.replication.slaves)
    assert await ask(master, send()) == ResponseCode.SLAVE_NOT_AVAILABLE
    await replicas.close()


@pytest.mark.parametrize("reports", [b"", struct.pack(">q", 0), struct.pack(">q", 1 << 50)])
async def test_a_slave_that_does_not_confirm(tmp_path: Path, replicas: Replicas, reports: bytes) -> None:
    """Silent, or with false reports: the sender gets the status after slaveTimeout."""
    master = await sync_master(tmp_path / "m", slaveTimeout=150)
    _, writer = await talk(master)
    writer.write(bytes(8) + reports)
    await until(lambda: master.parts.replication.slaves)
    codes = await asyncio.gather(*(ask(master, send()) for _ in range(3)))
    assert codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 3
    end = master.parts.store.max_physical_offset
    assert end > 0
    answer = asyncio.create_task(ask(master, send()))
    await until(lambda: master.parts.store.max_physical_offset > end)
    writer.write(struct.pack(">q", master.parts.store.max_physical_offset))
    assert await answer in (ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT)
    writer.close()
    await replicas.close()


async def test_the_first_report_of_a_slave_confirms_nothing(tmp_path: Path, replicas: Replicas) -> None:
    """It may have another log up to there: a pending send is not acknowledged as replicated."""
    master = await sync_master(tmp_path / "m", slaveTimeout=300)
    first = await talk(master)
    first[1].write(bytes(8))
    await until(lambda: master.parts.replication.slaves)
    answer = asyncio.create_task(ask(master, send()))
    await until(lambda: master.parts.store.max_physical_offset)
    second = await talk(master)
    second[1].write(struct.pack(">q", master.parts.store.max_physical_offset) * 3)
    await until(lambda: len(master.parts.replication.slaves) == 2)
    assert await answer == ResponseCode.FLUSH_SLAVE_TIMEOUT
    for _, writer in (first, second):
        writer.close()
    await replicas.close()


async def test_a_slave_too_far_behind_is_unavailable(tmp_path: Path, replicas: Replicas) -> None:
    master = await sync_master(tmp_path / "m", haMaxGapNotInSync=5000)
    _, writer = await talk(master)
    writer.write(bytes(8))
    await until(lambda: master.parts.replication.slaves)
    fill(master, 30)
    assert await ask(master, send()) == ResponseCode.SLAVE_NOT_AVAILABLE
    writer.close()
    await replicas.close()


async def test_returned_messages_wait_for_the_slave(tmp_path: Path, replicas: Replicas) -> None:
    master = await sync_master(tmp_path / "m")
    slave = await replicas.slave(master)
    await following(slave)

    def back(wire: Wire) -> int:
        sent = wire.send("T", b"x", queue_id=0)
        offset = int(sent.ext_fields["msgId"][-16:], 16)
        wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g"}')
        answer = wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, group="g", offset=offset, delayLevel=1, originTopic="T")
        assert answer.code == ResponseCode.SUCCESS
        return slave.parts.store.max_physical_offset - master.parts.store.max_physical_offset

    assert await ask(master, back) == 0
    await replicas.close()
