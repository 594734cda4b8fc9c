"""A broker is killed and restarted during sends: acknowledged messages are kept, and no call hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

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


class Traffic:
    """One producer's messages: acknowledged, failed, and the longest duration of a call."""

    def __init__(self, cluster: LocalCluster, topic: str, how: str) -> None:
        self.name = how
        self.acknowledged: set[bytes] = set()
        self.failed = 0
        self.longest = 0.0
        self.enough = threading.Event()
        self._topic = topic
        self._how = how
        self._producer = Producer(
            f"GID_{how}",
            name_server=cluster.name_server,
            send_timeout=TIMEOUT,
            auto_batch=how == "accumulated",
            instance_name=how,
            max_in_flight=500,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        pending: list[tuple[bytes, Future[SendResult]]] = []
        number = 0
        while not self._stop.is_set():
            body = f"{self._how} {number}".encode()
            number += 1
            begun = time.monotonic()
            try:
                if self._how == "sync":
                    self._producer.send(Message(self._topic, body))
                    self._note(body, None)
                else:
                    pending.append((body, self._producer.send_async(Message(self._topic, body))))
            except RocketError as error:
                self._note(body, error)
                self._stop.wait(0.02)
            self.longest = max(self.longest, time.monotonic() - begun)
            if len(pending) >= AT_ONCE:
                self._settle(pending)
                self._stop.wait(PAUSE)
        self._settle(pending)

    def _settle(self, pending: list[tuple[bytes, Future[SendResult]]]) -> None:
        for body, future in pending:
            self._note(body, future.exception(TIMEOUT + GRACE))
        pending.clear()

    def _note(self, body: bytes, error: BaseException | None) -> None:
        if error is None:
            self.acknowledged.add(body)
            if len(self.acknowledged) % ENOUGH == 0:
                self.enough.set()
        else:
            assert isinstance(error, RocketError), error
            self.failed += 1

    def await_more(self) -> None:
        self.enough.clear()
        assert self.enough.wait(60)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT + 2 * GRACE)
        assert not self._thread.is_alive()
        self._producer.close()


@pytest.mark.parametrize("stop", ["kill_broker", "restart_broker"])
def test_acknowledged_messages_are_kept(tmp_path: Path, stop: str) -> None:
    with LocalCluster(data_dir=tmp_path / "data") as cluster:
        topic = cluster.create_topic("chaos", 4)
        every = [Traffic(cluster, topic, how) for how in ("sync", "async", "accumulated")]
        try:
            for traffic in every:
                traffic.await_more()
            restart: Callable[[], Any] = cluster.restart_broker
            if stop == "kill_broker":
                cluster.kill_broker()
            restart()
            for traffic in every:
                traffic.await_more()
        finally:
            for traffic in every:
                traffic.stop()
        found: set[bytes] = set()
        with Reader(cluster.name_server) as reader:
            for queue in reader.queues(topic):
                offset, end = reader.min_offset(queue), reader.max_offset(queue)
                while offset < end:
                    messages = reader.messages(queue, offset)
                    found.update(message.body for message in messages)
                    offset = messages[-1].queue_offset + 1
        for traffic in every:
            assert not traffic.acknowledged - found, traffic.name
            assert traffic.longest < TIMEOUT + GRACE
