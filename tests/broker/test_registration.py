from __future__ import annotations

import threading

from spark_rocket.broker.registration import _Worker
from spark_rocket.protocol.wire.bodies import TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode
from tests.broker.wire import Wire


class Owner:
    """Topics change without a pause: each that was told is followed by another."""

    def __init__(self) -> None:
        self.worker: _Worker | None = None
        self.everything = 0
        self.again = threading.Event()

    def send(self, address: str, timeout: float) -> None:
        self.everything += 1
        if self.everything == 3:
            self.again.set()
        self.call_on_loop()

    def send_topic(self, address: str, topic: str, timeout: float) -> bool:
        return True

    def call_on_loop(self, *_: object) -> None:
        assert self.worker is not None
        self.worker.wake({"t"})

    def is_connected(self, address: str) -> bool:
        return True

    def unregister(self, address: str) -> None:
        pass


def test_everything_is_told_every_period_however_often_single_topics_are() -> None:
    owner = Owner()
    worker = owner.worker = _Worker("127.0.0.1:1", owner, 0.02, 1.0)  # type: ignore[arg-type]
    worker.thread.start()
    assert owner.again.wait(60), "a name server that hears of single topics only forgets the broker after 120 s"
    worker.stop()
    worker.thread.join()


def test_a_broker_that_may_not_write_registers_its_topics_so(wire: Wire, namesrv: Wire, topic: str) -> None:
    def perm() -> int:
        route = TopicRouteData.from_json(namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic).body)
        return route.queue_datas[0].perm

    assert perm() == 6
    assert wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4").code == 0
    try:
        wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic=f"{topic}-new", readQueueNums=1, writeQueueNums=1, perm=6)
        assert perm() == 4  # the answer waited for the registrations before it
    finally:
        assert wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=6").code == 0
