"""POP on a small store, without sockets or a loop, with a manual clock."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from spark_rocket.broker.delivery.filters import ALL, PullFilter
from spark_rocket.broker.pop.check_points import CheckPoint
from spark_rocket.broker.pop.consumer_order_info_manager import ConsumerOrderInfoManager
from spark_rocket.broker.pop.pop_service import PopService
from spark_rocket.broker.pop.requests import PopRequest
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager, new_topic
from spark_rocket.protocol.ids import ExtraInfo
from spark_rocket.protocol.record.record import RecordView, iter_records
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.delay.timer_store import TimerMessageStore
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutResult, PutStatus
from tests.broker.records import broker_environment
from tests.kit.clock import Clock
from tests.store.helpers import BORN, HOST, small

TIMER_FILE = 52 * 400


class NoOrder:
    """No ordered pops."""

    def is_blocked(self, *_: Any) -> bool:
        return False

    def popped(self, *_: Any) -> str:
        return ""

    def ack(self, *_: Any) -> int:
        return -1

    def change_invisible(self, *_: Any) -> None:
        raise AssertionError

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        pass


class World:
    """A store with topic T (2 queues), its timer and POP; ``receipts`` of a pop by body."""

    def __init__(self, directory: Path, seed: int = 0, **settings: object) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.clock = Clock()
        self.settings = BrokerConfig.from_properties({"brokerName": "b", **settings})
        self.offsets = ConsumerOffsetManager()
        self.topics = TopicConfigManager(self.settings, self.clock)
        self.topics.put(new_topic("T", 2))
        self.groups = SubscriptionGroupManager(self.settings, self.clock)
        self.saved: dict[str, Any] = self.offsets.file_snapshot(self.clock())
        self.full = False
        self.images = 0
        self.open()
        self.flush()

    def config(self) -> StoreConfig:
        return small(
            self.directory / "store", mapped_file_size_timer_log=TIMER_FILE, mapped_file_size_commit_log=64 << 10
        )

    def open(self) -> None:
        self.store = MessageStore(self.config(), store_host=HOST, clock=self.clock)
        self.store.start()
        self._put = self.store.put_message
        self.store.put_message = self.put_message
        self.timer = TimerMessageStore(self.store)
        self.timer.start(self.clock())
        self.pops = PopService(
            broker_environment(self.settings, self.clock, HOST),
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            BrokerStats(),
            self.timer,
            cast("ConsumerOrderInfoManager", NoOrder()),
            expect=lambda topic, due: None,
            chance=random.Random(self.random.random()),
        )
        self.settle()

    def put_message(self, *args: Any, **more: Any) -> PutResult:
        if self.full:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full")
        return self._put(*args, **more)

    # --- what happens -------------------------------------------------------------------------------------------

    def send(self, body: bytes, queue_id: int = 0, properties: bytes = b"", topic: str = "T", **more: Any) -> PutResult:
        born = self.clock()
        return self.store.put_message(topic, queue_id, body, properties, born_timestamp=born, born_host=BORN, **more)

    def send_numbers(self, count: int, *queue_ids: int) -> None:
        """The bodies are numbers; the queues take turns."""
        for number in range(count):
            self.send(b"%d" % number, queue_ids[number % len(queue_ids)] if queue_ids else 0)

    def pop(
        self,
        group: str = "g",
        *,
        topic: str = "T",
        queue_id: int = -1,
        most: int = 32,
        invisible: int = 60_000,
        wanted: PullFilter = ALL,
        init_mode: int = 0,
    ) -> list[tuple[RecordView, ExtraInfo]]:
        pop = PopRequest(group, topic, queue_id, most, invisible, 0, self.clock(), init_mode, wanted)
        self.result = result = self.pops.pop(pop)
        records = list(iter_records(b"".join(result.records)))
        starts = dict(entry.rsplit(" ", 1) for entry in result.start_offset_infos)
        infos = []
        for entry in result.msg_offset_infos:
            place, offsets = entry.rsplit(" ", 1)
            flag, queue = place.split(" ")
            for offset in offsets.split(","):
                start, revive = int(starts[place]), result.revive_queue_id
                infos.append(ExtraInfo(start, result.pop_time, invisible, revive, flag, "b", int(queue), int(offset)))
        return list(zip(records, infos, strict=True))

    def pass_time(self, ms: int) -> None:
        self.clock.now += ms
        self.settle()

    def settle(self) -> None:
        """Run the due work of timer and reviver, like their drivers."""
        for _ in range(1000):
            now = self.clock()
            due = (self.timer.deliver(now, 10.0), self.pops.deliver(now, 10.0))
            if all(each is None or each > now for each in due) and not self.pops.reviver.is_behind:
                return
        raise AssertionError("it does not come to an end")

    # --- what is kept -------------------------------------------------------------------------------------------

    def save_offsets(self) -> None:
        """Save the offsets, like the broker does periodically."""
        if self.pops.log.position <= self.store.flushed_where:
            self.saved = copy.deepcopy(self.offsets.file_snapshot(self.clock()))

    def flush(self) -> None:
        self.store.flush()
        self.timer.flush()
        self.save_offsets()
        self.on_disk = self.image()

    def image(self) -> Path:
        self.images += 1
        image = self.directory / f"image{self.images}"
        # A start rebuilds the wheel, which is large, from the timer's log.
        shutil.copytree(self.directory / "store", image, ignore=shutil.ignore_patterns("timerwheel", "*.deleted-*"))
        return image

    def _reopen(self, image: Path | None) -> None:
        self.clock.now += 1  # a start takes that long: time and offset name a check point
        self.timer.close()
        self.store.close()
        if image is not None:
            shutil.rmtree(self.directory / "store")
            shutil.copytree(image, self.directory / "store")
        self.offsets = ConsumerOffsetManager()
        self.offsets.load(copy.deepcopy(self.saved))
        self.open()

    def stop(self) -> None:
        """Stop like the broker, and restart."""
        self.pops.close()
        self.store.flush()
        self.saved = copy.deepcopy(self.offsets.file_snapshot(self.clock()))
        self._reopen(None)
        self.flush()

    def kill(self) -> None:
        """All stored messages exist, with the offsets that were saved last."""
        self._reopen(self.image())

    def cut_power(self) -> None:
        """Only the flushed log exists."""
        self._reopen(self.on_disk)

    @property
    def open_points(self) -> dict[Any, CheckPoint]:
        """The check points in memory."""
        return self.pops.reviver._open

    def close(self) -> None:
        self.pops.close()
        self.timer.close()
        self.store.close()


def texts(popped: Sequence[tuple[RecordView, ExtraInfo]]) -> list[bytes]:
    return [bytes(record.body) for record, _ in popped]
