"""Handling of responses to pulls."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.puller import Puller, PullSettings, pause_after
from spark_rocket.client.consume.subscriptions import Filter
from spark_rocket.errors import BrokerError, RemotingTimeoutError
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.codes import ResponseCode
from tests.client.consuming import ManualTimer, found, nothing, queue_at
from tests.kit.scripted import undecodable

SETTINGS = PullSettings(32, None, 32, must_lock=False)


class World:
    """The source, the reader and the receiver of a puller."""

    suspended = False

    def __init__(self) -> None:
        self.call_later = ManualTimer()
        self.pull_settings = SETTINGS
        self.filter: Filter | None = Filter("a")
        self.asked: list[tuple[int, str]] = []
        self.committed: list[int | None] = []
        self.pending: list[Future[PullResult]] = []
        self.received: list[int] = []
        self.full = False

    def pull_async(self, _: Any, offset: int, *, tags: str, commit: int | None = None, **__: Any) -> Future[PullResult]:
        self.asked.append((offset, tags))
        self.committed.append(commit)
        self.pending.append(Future())
        return self.pending[-1]

    def receive(self, process_queue: ProcessQueue, result: PullResult) -> None:
        self.received.append(result.next_offset)
        process_queue.put((), result.next_offset)

    def is_full(self, _: ProcessQueue) -> bool:
        return self.full

    def filter_of(self, _: str) -> Filter | None:
        return self.filter

    def correct(self, puller: Puller, offset: int) -> None: ...

    def start(self) -> None:
        self.reader: Any = self
        self.receiver: Any = self
        source: Any = self
        self.puller = Puller(source, queue_at(0), 0)
        self.puller.pull()


def test_a_response_to_an_outdated_pull_is_ignored() -> None:
    """The messages that it skipped may match the new filter."""
    world = World()
    world.start()
    world.filter = Filter("a || b")
    world.pending[0].set_result(found([5]))
    world.pending[1].set_result(nothing(6))
    assert world.asked == [(0, "a"), (0, "a || b"), (6, "a || b")]
    assert world.received == [6]


def test_an_equal_filter_keeps_pulls_and_none_ends_them() -> None:
    world = World()
    world.start()
    world.filter = Filter("a")
    world.pending[0].set_result(found([5]))
    world.filter = None
    world.pending[1].set_result(found([6]))
    assert world.asked == [(0, "a"), (6, "a")]
    assert world.received == [6]


def test_a_restart_discards_the_held_pull() -> None:
    world = World()
    world.start()
    world.filter = Filter("a || b")
    world.puller.pull()
    assert world.asked == [(0, "a"), (0, "a || b")]
    world.pending[0].set_result(found([5]))
    assert (world.received, len(world.asked)) == ([], 2)
    world.pending[1].set_result(found([3]))
    assert (world.received, world.asked[2:]) == ([4], [(4, "a || b")])


def test_a_restart_discards_pending_waits() -> None:
    """There is never more than one pull in flight."""
    world = World()
    world.full = True
    world.start()
    world.full = False
    world.puller.pull()
    assert len(world.asked) == 1
    world.puller.has_room()
    assert world.call_later.run() == 0.05
    assert len(world.asked) == 1
    world.pending[0].set_exception(RemotingTimeoutError("no response"))
    world.puller.pull()
    assert world.call_later.run() == 3.0
    assert len(world.asked) == 2


def test_room_is_reported_once() -> None:
    world = World()
    world.full = True
    world.start()
    world.puller.has_room()
    assert not world.asked
    world.full = False
    world.puller.has_room()
    world.puller.has_room()
    world.call_later.run()
    assert len(world.asked) == 1


def test_an_interval_between_pulls_with_messages() -> None:
    world = World()
    world.pull_settings = replace(SETTINGS, interval=0.5)
    world.start()
    world.pending[0].set_result(found([5]))
    assert (world.received, len(world.asked)) == ([6], 1)
    assert world.call_later.run() == 0.5
    world.pending[1].set_result(nothing(7))
    assert world.asked == [(0, "a"), (6, "a"), (7, "a")]


def test_a_pull_commits_nothing() -> None:
    """A late commit would reset the offset that was committed before the queue moved to another member."""
    world = World()
    world.start()
    world.pending[0].set_result(found([5]))
    assert world.asked == [(0, "a"), (6, "a")]
    assert world.committed == [None, None]


def test_a_message_that_cannot_be_decoded_is_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is pulled again until somebody resets the group."""

    def refuse(*_: object) -> None:
        decode_messages(undecodable(5))

    world = World()
    monkeypatch.setattr(world, "receive", refuse)
    world.start()
    world.pending[0].set_result(found([5]))
    (line,) = caplog.text.splitlines()
    assert "The message at offset 5: Invalid zlib body" in line
    assert line.endswith("The group waits there: reset its offset behind the message.")


@pytest.mark.parametrize(("end", "reason"), [(9, "was reset"), (5, "was reset"), (4, "has no message")])
def test_the_reason_of_another_offset_is_logged(end: int, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """A reset by an administrator is not a loss of messages."""
    world = World()
    world.start()
    world.puller.next_offset = 5
    world.pending[0].set_result(PullResult(PullStatus.OFFSET_ILLEGAL, 2, 0, end, memoryview(b"")))
    assert f"the offset 5 {reason} (offsets 0 to {end}): the group continues at 2" in caplog.text


@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (BrokerError("busy", response_code=ResponseCode.SYSTEM_BUSY), 3.0),
        (BrokerError("flow", response_code=ResponseCode.FLOW_CONTROL), 0.02),
        (RemotingTimeoutError("late"), 3.0),
        (ValueError("odd"), 3.0),
    ],
)
def test_pauses_after_errors(error: Exception, pause: float) -> None:
    assert pause_after(error) == pause
