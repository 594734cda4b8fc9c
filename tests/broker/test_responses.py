"""Responses that wait, without a broker: the test decides when the store, the slaves and the files are ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest

from spark_rocket.broker.broker_environment import BackgroundTasks
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand

SYNC_FLUSH = {"flushDiskType": "SYNC_FLUSH"}
SYNC_MASTER = {"brokerRole": "SYNC_MASTER"}
OK, DISK, SLAVE = ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT


class Peer:
    """A connection that only remembers what is written to it."""

    remote_addr = "127.0.0.1:1"
    is_active = True

    def __init__(self) -> None:
        self.written: list[int] = []
        self.remarks: list[str | None] = []

    def write(self, response: RemotingCommand) -> None:
        self.written.append(response.code)
        self.remarks.append(response.remark)


class Rig:
    """Responses with what they wait for. ``problem``: the reason why files cannot be written."""

    def __init__(self, **settings: str) -> None:
        config = BrokerConfig.from_properties(settings)
        self.peer: Any = Peer()
        self.tasks = BackgroundTasks()
        self.flushes: list[Callable[[bool], None]] = []
        self.copies: list[Callable[[ResponseCode], None]] = []
        self.table: dict[str, asyncio.Future[str]] = {}
        self.problem = ""
        rig: Any = self
        self.responses = Responses(config, asyncio.get_running_loop(), self.tasks, rig, rig, rig, rig)

    def when_flushed(self, end_offset: int, flushed: Callable[[bool], None]) -> None:
        self.flushes.append(flushed)

    def when_replicated(self, end_offset: int, replicated: Callable[[ResponseCode], None]) -> None:
        self.copies.append(replicated)

    async def saved(self, *files: str) -> str:
        return self.problem

    def settle(self, topics: Collection[str]) -> list[asyncio.Future[str]]:
        return [self.table[topic] for topic in topics if topic in self.table]

    async def done(self) -> list[int]:
        """Let the loop run until nothing is left but what the test holds back; return the codes written."""
        for _ in range(10):
            await asyncio.sleep(0)
        return self.peer.written


def request(body: bytes | memoryview = b"", *, oneway: bool = False) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {}, body, oneway=oneway)


async def test_a_response_without_a_condition_is_returned() -> None:
    rig = Rig()
    settled, stored = rig.responses.when_settled(rig.peer, request()), rig.responses.when_stored(rig.peer, request(), 1)
    assert [each and each.code for each in (settled, stored)] == [OK, OK]
    assert await rig.done() == []


@pytest.mark.parametrize(
    ("settings", "flushed", "copied", "code"),
    [
        (SYNC_FLUSH, True, None, OK),
        (SYNC_FLUSH, False, None, DISK),
        (SYNC_MASTER, None, OK, OK),
        (SYNC_MASTER, None, SLAVE, SLAVE),
        (SYNC_FLUSH | SYNC_MASTER, True, OK, OK),
        (SYNC_FLUSH | SYNC_MASTER, False, OK, DISK),
        (SYNC_FLUSH | SYNC_MASTER, False, SLAVE, SLAVE),
    ],
)
async def test_a_stored_message_waits_for_the_disk_and_a_slave(
    settings: dict[str, str], flushed: bool | None, copied: ResponseCode | None, code: ResponseCode
) -> None:
    rig = Rig(**settings)
    assert rig.responses.when_stored(rig.peer, request(), 1) is None
    if flushed is not None:
        assert (await rig.done(), rig.responses.waiting, rig.copies) == ([], 1, [])
        rig.flushes.pop()(flushed)
    if copied is not None:
        assert (await rig.done(), rig.responses.waiting) == ([], 1)
        rig.copies.pop()(copied)
    assert (await rig.done(), rig.responses.waiting) == ([code], 0)


async def test_a_stored_message_then_waits_for_its_topic() -> None:
    rig = Rig(**SYNC_FLUSH)
    settled = rig.table["T"] = asyncio.get_running_loop().create_future()
    rig.responses.when_stored(rig.peer, request(), 1, ("T",))
    rig.flushes.pop()(True)
    assert await rig.done() == []
    settled.set_result("disk full")
    assert await rig.done() == [ResponseCode.SYSTEM_ERROR]
    assert str(rig.peer.remarks[0]).startswith("disk full.")


async def test_the_first_problem_is_reported_unless_the_change_may_be_lost() -> None:
    rig = Rig()
    rig.problem = "no space"
    rig.responses.when_settled(rig.peer, request(), files=["groups"])
    rig.responses.when_settled(rig.peer, request(), files=["groups"], must_be_saved=False)
    assert await rig.done() == [ResponseCode.SYSTEM_ERROR, OK]


async def test_a_waiting_response_does_not_keep_its_request() -> None:
    """The body is a view of the receive buffer, which cannot be reused before it is released."""
    rig = Rig(**SYNC_FLUSH)
    buffer = bytearray(b"body")
    rig.table["T"] = asyncio.get_running_loop().create_future()
    rig.responses.when_stored(rig.peer, request(memoryview(buffer)), 1)
    rig.responses.when_settled(rig.peer, request(memoryview(buffer)), ("T",))
    buffer.clear()  # BufferError if a view is left
    rig.flushes.pop()(True)
    rig.table["T"].set_result("")
    assert await rig.done() == [OK, OK]


async def test_a_one_way_request_gets_no_response() -> None:
    rig = Rig(**SYNC_FLUSH)
    rig.table["T"] = asyncio.get_running_loop().create_future()
    rig.table["T"].set_result("")
    oneway = request(oneway=True)

    async def work() -> RemotingCommand:
        return RemotingCommand.response(oneway)

    assert rig.responses.when_stored(rig.peer, oneway, 1, ("T",)) is None
    assert rig.responses.when_settled(rig.peer, oneway, ("T",), files=["groups"]) is None
    rig.responses.after(rig.peer, oneway, work())
    rig.responses.relay(rig.peer, oneway, work(), 1)
    rig.responses.in_steps(rig.peer, oneway, work(), None)
    assert (await rig.done(), rig.flushes, rig.responses.waiting) == ([], [], 0)


async def test_bounded_work_is_released_and_refused_work_never_begins() -> None:
    rig = Rig()
    begun: list[str] = []

    async def work(name: str) -> RemotingCommand:
        begun.append(name)
        return RemotingCommand.response(request())

    with pytest.raises(RefusedError, match="too many"):
        rig.responses.relay(rig.peer, request(), work("refused"), 1 << 40)
    for number in range(3):
        rig.responses.in_steps(rig.peer, request(), work(f"steps {number}"), "offsets")
    assert rig.responses.large.total == 3
    rig.problem = "no space"
    assert await rig.done() == [ResponseCode.SYSTEM_ERROR] * 3
    assert (begun, rig.responses.large.total) == (["steps 0", "steps 1", "steps 2"], 0)
