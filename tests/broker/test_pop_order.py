"""Ordered pops: queues are blocked while messages are in flight, and freed by acks or time; Apache's file format."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from spark_rocket.broker.delivery.filters import ALL
from spark_rocket.broker.pop.consumer_order_info_manager import ALREADY_ACKED, ILLEGAL, ConsumerOrderInfoManager
from spark_rocket.broker.pop.requests import PopRequest
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.config_files import ConfigFile
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.wire.json import dumps_fastjson, loads_tolerant

NOW = 1_795_229_620_131
DAY = 24 * 3600 * 1000

# Written by Apache's manager, with fastjson.
OF_APACHE = (
    '{"table":{"T@G":{0:{"a":"attempt-1","cm":5,"i":60000,"l":1795229620131,"o":[5,1,2],'
    '"oc":{6:1},"ot":{6:1795229650131},"popTime":1795229620131}}}}'
)


class Broker:
    """The order state of one topic's queues, with a scripted broker; a pop starts at the committed offset."""

    def __init__(self) -> None:
        config = BrokerConfig()
        self.now = NOW
        self.loop = asyncio.new_event_loop()
        self.free: list[tuple[str, str, int]] = []
        self.offsets = ConsumerOffsetManager()
        self.topics = TopicConfigManager(config, lambda: self.now)
        self.groups = SubscriptionGroupManager(config, lambda: self.now)
        self.topics.ensure("T", 4)
        self.groups.find("G")
        self.offsets.commit("G", "T", 0, 5)
        self.order = self.manager()

    def manager(self) -> ConsumerOrderInfoManager:
        return ConsumerOrderInfoManager(
            self.loop, lambda: self.now, self.offsets, self.topics, self.groups, lambda *queue: self.free.append(queue)
        )

    def pop(self, *offsets: int, attempt: str | None = None, invisible: int = 60_000) -> str:
        request = PopRequest("G", "T", -1, 32, invisible, 0, 0, 0, ALL, True, attempt)
        return self.order.popped(request, "0", "T", 0, self.now, offsets)

    def is_blocked(self, attempt: str | None = None) -> bool:
        return self.order.is_blocked(attempt, "G", "T", 0, 60_000, self.now)

    def ack(self, offset: int, pop_time: int = NOW) -> int:
        """Like the ack processor: commit the manager's result."""
        commit = self.order.ack("G", "T", 0, offset, pop_time, self.now)
        if commit >= 0:
            self.offsets.commit("G", "T", 0, commit)
        return commit

    def change(self, offset: int, invisible: int, pop_time: int = NOW) -> None:
        self.order.change_invisible("G", "T", 0, offset, pop_time, self.now + invisible)

    def later(self, milliseconds: int) -> list[tuple[str, str, int]]:
        """The queues that were free by then."""
        self.now += milliseconds
        self.free.clear()
        self.order.free(self.now)
        return list(self.free)


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.order.close()
    broker.loop.close()


def test_a_queue_is_blocked_until_all_of_a_pop_is_acked(broker: Broker) -> None:
    assert not broker.is_blocked()
    broker.pop(5, 6, 7)
    assert broker.is_blocked()
    assert [broker.ack(5), broker.ack(7), broker.is_blocked()] == [6, 6, True]
    assert broker.free == []
    assert [broker.ack(6), broker.is_blocked()] == [8, False]
    assert broker.free == [("G", "T", 0)]
    assert broker.ack(6) == ALREADY_ACKED
    assert not broker.order.is_blocked(None, "G", "T", 1, 60_000, NOW)
    assert not broker.order.is_blocked(None, "H", "T", 0, 60_000, NOW)


def test_a_queue_is_free_when_the_last_message_is_visible_again(broker: Broker) -> None:
    broker.pop(5, 6)
    assert broker.later(59_999) == []
    assert broker.is_blocked()
    assert broker.later(1) == [("G", "T", 0)]
    assert not broker.is_blocked()
    assert broker.later(100_000) == []  # reported once


def test_acks_do_not_commit_beyond_unacked_messages(broker: Broker) -> None:
    broker.pop(5, 6, 9)
    assert broker.ack(9) == 5
    assert broker.ack(6) == 5
    assert broker.later(60_000) == [("G", "T", 0)]
    assert broker.ack(5) == 10  # late, but not popped again yet


def test_changed_times_block_longer_or_shorter(broker: Broker) -> None:
    broker.pop(5, 6)
    broker.change(5, 90_000)
    assert broker.later(60_000) == []
    assert broker.is_blocked()
    broker.change(5, 10_000)
    broker.change(5, 0, pop_time=NOW - 1)  # of an earlier pop
    assert broker.later(9_999) == []
    assert broker.later(1) == [("G", "T", 0)]
    assert not broker.is_blocked()


def test_a_shortened_time_frees_at_once(broker: Broker) -> None:
    broker.pop(5)
    broker.change(5, 0)
    assert not broker.is_blocked()
    assert broker.later(0) == [("G", "T", 0)]


def test_the_same_attempt_gets_them_again(broker: Broker) -> None:
    broker.pop(5, 6, attempt="one")
    assert broker.is_blocked()
    assert broker.is_blocked("two")
    assert not broker.is_blocked("one")
    broker.now += 10
    assert broker.pop(5, 6, attempt="one") == "0 0 0"  # not one delivery more
    assert broker.ack(5, NOW) == ALREADY_ACKED
    assert broker.ack(5, NOW + 10) == 6


def test_deliveries_are_counted(broker: Broker) -> None:
    assert broker.pop(5, 6) == "0 0 0"
    broker.ack(5)
    broker.later(60_000)
    assert broker.pop(6, 7) == "0 qo0%6 1;0 0 0"
    broker.later(60_000)
    assert broker.pop(6, 7) == "0 qo0%6 2;0 qo0%7 1;0 0 1"


def test_only_popped_messages_can_be_acked(broker: Broker) -> None:
    broker.pop(5, 6)
    assert broker.ack(9) == ILLEGAL
    assert broker.ack(5, NOW - 5) == ALREADY_ACKED
    assert broker.ack(4) == ALREADY_ACKED
    assert broker.offsets.query("G", "T", 0) == 5


def test_after_a_crash_an_ack_skips_nothing(broker: Broker) -> None:
    """The file is lost: messages in flight are unknown."""
    assert broker.ack(7) == broker.ack(5) == ALREADY_ACKED


@pytest.mark.parametrize(("saved_at", "offset"), [(0, 5), (NOW, 5), (NOW - 1, 6)])
def test_after_a_crash_acks_of_pops_since_the_offsets_were_saved_count(
    broker: Broker, saved_at: int, offset: int
) -> None:
    broker.pop(5, 6, 7)
    broker.order.ack("G", "T", 0, 5, NOW, NOW)  # committed, but not saved
    broker.offsets.saved_at = saved_at
    broker.order.recover(lambda topic, queue_id: 8)
    assert broker.offsets.query("G", "T", 0) == offset
    assert broker.is_blocked()


def test_messages_missing_in_the_log_are_removed(broker: Broker) -> None:
    """Its acks would apply to the next messages with these offsets."""
    broker.pop(5, 6, 7)
    broker.offsets.saved_at = NOW - 1
    broker.order.recover(lambda topic, queue_id: 7)
    assert not broker.is_blocked()
    assert broker.ack(5) == ALREADY_ACKED
    assert broker.offsets.query("G", "T", 0) == 5


def test_messages_below_the_offset_count_as_acked(broker: Broker) -> None:
    """The file is older than the offsets."""
    broker.pop(5, 6, 7)
    broker.offsets.commit("G", "T", 0, 7)
    assert broker.is_blocked()
    assert broker.ack(7) == 8
    broker.pop(5, 6, 7)
    assert not broker.is_blocked()


def test_a_reset_and_a_deletion_forget(broker: Broker) -> None:
    broker.pop(5)
    broker.order.clear("G", "T", 0)
    assert not broker.is_blocked()
    assert broker.later(60_000) == []
    for forget in (partial(broker.order.remove_topic, "T"), partial(broker.order.remove_group, "G")):
        broker.pop(5)
        forget()
        assert broker.order.table == {}


def test_the_file_is_apaches(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "consumerOrderInfo.json"
    path.write_text(OF_APACHE)
    file = ConfigFile(path, broker.order.snapshot, broker.order.load)
    assert file.load()
    assert (broker.is_blocked(), broker.is_blocked("attempt-1")) == (True, False)
    file.save()
    assert "".join(path.read_text().split()) == OF_APACHE
    broker.order.start()
    assert broker.later(29_999) == []
    assert broker.later(1) == [("G", "T", 0)]  # 5 and 7 are acked, 6 was changed
    assert broker.ack(6) == 8


def test_the_first_pop_of_a_queue_as_apache_writes_it(broker: Broker) -> None:
    broker.pop(5, 6)
    (info,) = loads_tolerant(broker.order.snapshot())["table"]["T@G"].values()
    assert info == {"cm": 0, "i": 60_000, "l": NOW, "o": [5, 1], "popTime": NOW}


def test_useless_records_are_not_written(broker: Broker) -> None:
    broker.pop(5)
    request = PopRequest("H", "U", -1, 32, 60_000, 0, 0, 0, ALL, True)
    broker.order.popped(request, "0", "U", 0, NOW, [1])  # neither is there
    request = request._replace(group="G")
    broker.order.popped(request, "0", "T", 9, NOW, [1])  # the topic has fewer queues now
    table = {"table": {"T@G": {0: broker.order.table["T@G"][0].to_value()}}}
    assert broker.order.snapshot() == dumps_fastjson(table, pretty=True)
    broker.now += DAY + 1
    assert broker.order.snapshot() == b'{\n\t"table":{}\n}'


def test_the_file_has_the_current_state(broker: Broker) -> None:
    def is_written() -> bool:
        table = {
            key: {queue_id: info.to_value() for queue_id, info in queues.items()}
            for key, queues in broker.order.table.items()
        }
        return broker.order.snapshot() == dumps_fastjson({"table": table}, pretty=True)

    broker.pop(5, 6, 7)
    assert is_written()
    broker.ack(5)
    assert is_written()
    broker.order.change_invisible("G", "T", 0, 6, NOW, NOW + 9)
    assert is_written()
    broker.order.recover(lambda topic, queue_id: 0)
    assert broker.order.table == {}
    assert is_written()
    broker.pop(5)
    assert is_written()
    broker.order.clear("G", "T", 0)
    assert is_written()


@pytest.mark.parametrize(
    "text", ['{"table":{"T@G":7}}', '{"table":{"T@G":{0:{"o":"x"}}}}', '{"table":{"T@G":{"x":{}}}}']
)
def test_a_file_that_does_not_fit_is_refused(broker: Broker, tmp_path: Path, text: str) -> None:
    path = tmp_path / "consumerOrderInfo.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        ConfigFile(path, broker.order.snapshot, broker.order.load).load()
    assert broker.order.table == {}


def test_ends_wake_by_the_loop(broker: Broker) -> None:
    async def main() -> None:
        free = asyncio.Event()
        broker.order = ConsumerOrderInfoManager(
            broker.loop, lambda: broker.now, broker.offsets, broker.topics, broker.groups, lambda *queue: free.set()
        )
        broker.pop(5, invisible=10)
        broker.now += 10
        await asyncio.wait_for(free.wait(), 30)

    broker.loop.run_until_complete(main())
