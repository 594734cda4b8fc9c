"""Ordered pops against a model: pops, acks, changes, timeouts, saves and kills."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_rocket.broker.delivery.filters import ALL
from spark_rocket.broker.pop.consumer_order_info_manager import ConsumerOrderInfoManager
from spark_rocket.broker.pop.requests import PopRequest
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.protocol.wire.json import dumps_fastjson, loads_tolerant

MESSAGES = 40
INVISIBLE = 10


class OrderMachine(RuleBasedStateMachine):
    """One queue of one group. A receipt is an offset and the time of its pop."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 1_000
        #: What each file may say after a kill: the state of one of the last steps, each file's of another.
        self.saved: dict[str, list[bytes]] = {"offsets": [], "order": []}
        self.receipts: list[tuple[int, int]] = []
        self.acked: set[int] = set()  # acked by any client
        self.out: dict[int, int] = {}  # offsets in flight, and until when
        self.out_attempt: str | None = None
        self.start({})

    def start(self, files: dict[str, bytes]) -> None:
        config = BrokerConfig()
        topics = TopicConfigManager(config, lambda: self.now)
        groups = SubscriptionGroupManager(config, lambda: self.now)
        topics.ensure("T")
        groups.find("G")
        self.offsets = ConsumerOffsetManager()
        self.order = ConsumerOrderInfoManager(
            self.loop, lambda: self.now, self.offsets, topics, groups, lambda *queue: None
        )
        for name, text in files.items():
            getattr(self, name).load(loads_tolerant(text))
        if files:
            self.order.recover(lambda topic, queue_id: MESSAGES)
        if self.committed < 0:
            self.offsets.commit("G", "T", 0, 0)
        self.order.start()

    def teardown(self) -> None:
        self.order.close()
        self.loop.close()

    @property
    def committed(self) -> int:
        return self.offsets.query("G", "T", 0)

    @rule(count=st.integers(2, 4), attempt=st.sampled_from([None, "a", "b"]), invisible=st.sampled_from([1, INVISIBLE]))
    def pop(self, count: int, attempt: str | None, invisible: int) -> None:
        self.now += 1  # a pop has its millisecond to itself, as long as the broker runs
        blocked = self.order.is_blocked(attempt, "G", "T", 0, invisible, self.now)
        somebody_has = any(until > self.now for until in self.out.values())
        same = attempt is not None and attempt == self.out_attempt
        assert blocked == (somebody_has and not same) or self.killed
        first = self.committed
        if blocked or first >= MESSAGES:
            return
        offsets = list(range(first, min(first + count, MESSAGES)))
        request = PopRequest("G", "T", 0, count, invisible, 0, 0, 0, ALL, True, attempt)
        self.order.popped(request, "0", "T", 0, self.now, offsets)
        self.receipts += [(offset, self.now) for offset in offsets]
        self.out = dict.fromkeys(offsets, self.now + invisible)
        self.out_attempt = attempt
        self.killed = False

    killed = False

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def ack(self, data: Any) -> None:
        offset, popped = data.draw(st.sampled_from(self.receipts[-4:]))
        before = self.committed
        commit = self.order.ack("G", "T", 0, offset, popped, self.now)
        self.acked.add(offset)
        if commit >= 0:
            assert commit >= before
            self.offsets.commit("G", "T", 0, commit)
            self.out.pop(offset, None)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), invisible=st.sampled_from([0, 3, 2 * INVISIBLE]))
    def change(self, data: Any, invisible: int) -> None:
        offset, popped = data.draw(st.sampled_from(self.receipts[-4:]))
        if offset < self.committed:
            return
        self.order.change_invisible("G", "T", 0, offset, popped, self.now + invisible)
        latest = max(each[1] for each in self.receipts)
        if offset in self.out and popped == latest:
            self.out[offset] = self.now + invisible

    @rule(milliseconds=st.sampled_from([1, INVISIBLE, 3 * INVISIBLE]))
    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds
        due = self.order.free(self.now)
        assert due is None or due > self.now

    @precondition(lambda self: self.saved["order"])
    @rule(data=st.data())
    def kill(self, data: Any) -> None:
        self.order.close()
        self.start({name: data.draw(st.sampled_from(texts)) for name, texts in self.saved.items()})
        self.killed = True  # who has what is known as far as it was saved

    @invariant()
    def files_are_written(self) -> None:
        self.saved["offsets"].append(dumps_fastjson(self.offsets.file_snapshot(self.now)))
        self.saved["order"].append(self.order.snapshot())
        for texts in self.saved.values():
            del texts[:-4]

    @invariant()
    def nothing_is_passed_that_nobody_acked(self) -> None:
        assert set(range(self.committed)) <= self.acked


TestOrder = OrderMachine.TestCase
TestOrder.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)
