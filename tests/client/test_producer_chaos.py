"""A broker is killed and restarted during sends: acknowledged messages are kept, and no call hangs.

With retries a message is stored twice only if its send was in flight while the broker was killed; without them never.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, SendResult
from spark_rocket.testing import LocalCluster

pytestmark = pytest.mark.live

TIMEOUT = 3.0
GRACE = 20.0  # for a busy machine: a hanging call would never end
ENOUGH = 100  # messages acknowledged
AT_ONCE = 100  # asynchronous sends, and the seconds left for synchronous sends after them
PAUSE = 0.05
BATCH = 10


class Traffic:
    """One producer's messages: acknowledged, failed, when each send ended, and the longest duration of a call."""

    def __init__(self, cluster: LocalCluster, topic: str, how: str, retries: int) -> None:
        self.name = f"{how} with {retries} retries"
        self.acknowledged: set[bytes] = set()
        self.begun: dict[bytes, float] = {}
        self.ended: dict[bytes, float] = {}
        self.failed = 0
        self.longest = 0.0
        self.retries = retries
        self.enough = threading.Event()
        self._topic = topic
        self._how = how
        self._producer = Producer(
            f"GID_{how}_{retries}",
            name_server=cluster.name_server,
            send_timeout=TIMEOUT,
            auto_batch=how == "accumulated",
            instance_name=self.name,
            max_in_flight=500,
            retry_times_when_send_failed=retries,
            retry_times_when_send_async_failed=retries,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        pending: list[tuple[bytes, Future[SendResult]]] = []
        number = 0
        while not self._stop.is_set():
            size = BATCH if self._how == "batch" else 1
            bodies = [f"{self.name} {number + at}".encode() for at in range(size)]
            messages = [Message(self._topic, body) for body in bodies]
            number += size
            begun = time.monotonic()
            self.begun.update(dict.fromkeys(bodies, begun))
            try:
                if self._how in ("sync", "batch"):
                    self._producer.send(messages if size > 1 else messages[0])
                    self._note(bodies, None)
                else:
                    future = self._producer.send_async(messages[0])
                    future.add_done_callback(partial(self._end, bodies))
                    pending.append((bodies[0], future))
            except RocketError as error:
                self._note(bodies, error)
                self._stop.wait(0.02)
            if self._how in ("sync", "batch"):
                self._end(bodies)
            self.longest = max(self.longest, time.monotonic() - begun)
            if len(pending) >= AT_ONCE:
                self._settle(pending)
                self._stop.wait(PAUSE)
        self._settle(pending)

    def _settle(self, pending: list[tuple[bytes, Future[SendResult]]]) -> None:
        for body, future in pending:
            self._note([body], future.exception(TIMEOUT + GRACE))
        pending.clear()

    def _end(self, bodies: list[bytes], _: object = None) -> None:
        self.ended.update(dict.fromkeys(bodies, time.monotonic()))

    def _note(self, bodies: list[bytes], error: BaseException | None) -> None:
        if error is None:
            before = len(self.acknowledged) // ENOUGH
            self.acknowledged.update(bodies)
            if len(self.acknowledged) // ENOUGH > before:
                self.enough.set()
        else:
            assert isinstance(error, RocketError), error
            self.failed += 1

    def repeated(self, stored: Counter[bytes], kills: list[tuple[float, float]]) -> list[bytes]:
        """Return the messages that were stored more often than their sends permit."""
        return [
            body
            for body, count in stored.items()
            if body in self.begun
            and count > 1
            and not (
                self.retries
                and any(self.begun[body] < end and self.ended.get(body, end) > start for start, end in kills)
            )
        ]

    def await_more(self) -> None:
        self.enough.clear()
        assert self.enough.wait(60)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT + 2 * GRACE)
        assert not self._thread.is_alive()
        self._producer.close()


@pytest.mark.parametrize(
    ("stop", "rounds"),
    [("kill_broker", 1), ("restart_broker", 1), pytest.param("kill_broker", 30, marks=pytest.mark.long)],
)
def test_acknowledged_messages_are_kept(tmp_path: Path, stop: str, rounds: int) -> None:
    kills: list[tuple[float, float]] = []
    with LocalCluster(data_dir=tmp_path / "data") as cluster:
        topic = cluster.create_topic("chaos", 4)
        every = [
            Traffic(cluster, topic, how, retries)
            for how in ("sync", "async", "accumulated", "batch")
            for retries in ((0, 2) if rounds > 1 else (2,))
        ]
        try:
            for _ in range(rounds):
                for traffic in every:
                    traffic.await_more()
                start = time.monotonic()
                if stop == "kill_broker":
                    cluster.kill_broker()
                cluster.restart_broker()
                kills.append((start, time.monotonic()))
            for traffic in every:
                traffic.await_more()
        finally:
            for traffic in every:
                traffic.stop()
        stored: Counter[bytes] = Counter()
        with Reader(cluster.name_server) as reader:
            for queue in reader.queues(topic):
                offset, end = reader.min_offset(queue), reader.max_offset(queue)
                while offset < end:
                    messages = reader.messages(queue, offset)
                    stored.update(message.body for message in messages)
                    offset = messages[-1].queue_offset + 1
        for traffic in every:
            assert not traffic.acknowledged - stored.keys(), traffic.name
            assert not traffic.repeated(stored, kills), traffic.name
            assert traffic.longest < TIMEOUT + GRACE
    print({one.name: (len(one.acknowledged), one.failed) for one in every}, f"{len(kills)} kills,", end=" ")
    print(f"{sum(stored.values())} stored, {sum(count - 1 for count in stored.values())} twice")
