"""A promoted slave continues all pending work of its master, with any difference of clocks."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.broker import Broker
from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.client.send.transaction import LocalTransactionState, TransactionProducer
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageExt, MessageQueue, SendStatus
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.bodies.stats import HARuntimeInfo, TimerMetricsSerializeWrapper
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.delay import timer_log
from spark_rocket.store.tools.check import check_store
from tests.broker.popping import Popper
from tests.broker.test_name_servers import knows
from tests.broker.test_slave import ask
from tests.broker.wire import Wire
from tests.kit.brokers import Pair
from tests.kit.waiting import until

pytestmark = pytest.mark.live

HOURS = 3 * 3_600_000


class Promoted(Pair):
    """A pair whose slave becomes the master."""

    def synchronized(self) -> None:
        """Wait until the slave has the log, and offsets that it requests from now on."""
        sync = self.slave.parts.synchronize
        assert sync is not None
        rounds = sync.rounds
        self.caught_up()
        until(lambda: sync.rounds > rounds + 1)

    def promote(self, store: str = "a1", other: str | None = None) -> Broker:
        """Stop both, and start the slave as the master; optionally, the other one follows it."""
        for broker in list(self.brokers):
            self.stop(broker)
        self.master = self.add("a", 0, store=store)
        if other is not None:
            self.slave = self.add("a", 1, store=other)
            until(lambda: self.slave.parts.synchronize is not None and self.slave.parts.synchronize.rounds)
        return self.master

    def bodies(self, topic: str = "t") -> list[bytes]:
        found = self.master.parts.store.get_message(topic, 0, 0, 1000, 1 << 20)
        return [message.body for message in decode_messages(found.records, "a")]

    def pass_time(self, milliseconds: int) -> None:
        """Move all clocks on."""
        self.ahead += milliseconds
        self.wake()

    def wake(self) -> None:
        for driver in self.master.parts.delivery_timers.by_topic.values():
            self.loop.call_soon_threadsafe(driver.wake)


@contextmanager
def promoted(directory: Path, skew: dict[str, int] | None = None, **settings: Any) -> Iterator[Promoted]:
    pair = Promoted(directory, skew, **settings)
    try:
        yield pair
    finally:
        pair.close()
    for store in ("a0", "a1"):
        assert check_store(directory / store) == []


def goes_on(producer: Producer) -> None:
    """The producer has found the new master."""

    def sends() -> bool:
        try:
            producer.running().routes.refresh("t")
            return producer.send(Message("t", b"found"), timeout=30).status is SendStatus.SEND_OK
        except RocketError:
            return False

    until(sends)


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [HOURS, -HOURS])
def test_clocks_that_differ(tmp_path: Path, caplog: pytest.LogCaptureFixture, skew: int) -> None:
    """The slave's clock is hours ahead of the master's, or behind, with everything that depends on store times."""
    with promoted(tmp_path, {"a1": skew}) as pair:
        slave, sync = pair.slave.parts, pair.slave.parts.synchronize
        assert sync is not None
        until(lambda: sync.clocks_differ)
        said = [line for line in caplog.messages if "The clock of the master" in line]
        assert len(said) == 1
        assert f"{pair.master.address} is 10" in said[0]
        assert ("behind" if skew > 0 else "ahead of") + f" that of a[1] at {pair.slave.address}" in said[0]
        with Admin(pair.addresses) as admin, Producer("p", name_server=pair.addresses) as producer:
            admin.create_topic("t", 1)
            for number in range(3):
                producer.send(Message("t", b"%d" % number))
            producer.send(Message("t", b"delayed", {"DELAY": "5"}))
            producer.send(Message("t", b"timed", {"TIMER_DELAY_SEC": "60"}))
            queue = MessageQueue("t", "a", 0)
            with Reader(pair.addresses) as reader:
                reader.commit_offset("g", queue, 2)
            pair.synchronized()
            mine, his = slave.store, pair.master.parts.store
            stored = [his.get_store_time("t", 0, offset) for offset in range(3)]
            assert [mine.get_store_time("t", 0, offset) for offset in range(3)] == stored
            assert [mine.get_offset_by_time("t", 0, at) for at in stored] == [
                his.get_offset_by_time("t", 0, at) for at in stored
            ]
            assert mine.retention.run(pair.clock_of("a1")).removed == 0
            master = pair.promote()
            goes_on(producer)
            with Reader(pair.addresses) as reader:
                assert (reader.address(queue), reader.committed_offset("g", queue)) == (master.address, 2)
            producer.send(Message("t", b"new"))
            producer.send(Message("t", b"new delayed", {"DELAY": "1"}))
            producer.send(Message("t", b"new timed", {"TIMER_DELAY_SEC": "1"}))
            pair.pass_time(1_000)
            until(lambda: {b"new", b"new delayed", b"new timed"} <= set(pair.bodies()))
            pair.skew.clear()  # the clock is corrected
            pair.pass_time(60_000)
            until(lambda: {b"delayed", b"timed"} <= set(pair.bodies()))
        assert pair.bodies()[:3] == [b"0", b"1", b"2"]


def test_timed_messages_survive_the_second_master_of_an_hour(tmp_path: Path) -> None:
    """The first one's clock was ahead: new messages are due before the timer's progress."""
    with promoted(tmp_path, {"a0": HOURS}) as pair:
        addresses = pair.addresses
        with Admin(addresses) as admin, Producer("p", name_server=addresses) as producer:
            admin.create_topic("t", 1)

            def checkpoint(store: str) -> tuple[int, int]:
                path = tmp_path / store / "config" / "timercheck"
                raw = path.read_bytes() if path.exists() else bytes(24)
                return int.from_bytes(raw[:8], "big"), int.from_bytes(raw[16:24], "big")

            producer.send(Message("t", b"first", {"TIMER_DELAY_SEC": "1"}))
            pair.pass_time(1_000)
            until(lambda: pair.bodies() == [b"first"])
            pair.do(_flushed(pair.master))
            until(lambda: checkpoint("a1")[0] > pair.clock_of("a1") + HOURS // 2)
            pair.promote("a1", other="a0")
            pair.skew.clear()
            goes_on(producer)
            producer.send(Message("t", b"second", {"TIMER_DELAY_SEC": "60"}))
            pair.do(_flushed(pair.master))
            until(lambda: checkpoint("a0")[1] == 2)
            pair.caught_up()
            assert b"second" not in pair.bodies()
            pair.promote("a0")
            pair.pass_time(60_000)
            until(lambda: b"second" in pair.bodies())
            assert pair.bodies().count(b"first") == 1


async def _flushed(broker: Broker) -> None:
    broker.parts.store.flush()


# --- pending messages -------------------------------------------------------------------------------------------------


class Decides:
    """Leaves every transaction undecided until a later check."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return arg if isinstance(arg, LocalTransactionState) else LocalTransactionState.UNKNOW

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        ends = {b"yes": LocalTransactionState.COMMIT_MESSAGE, b"no": LocalTransactionState.ROLLBACK_MESSAGE}
        return ends[message.body.split()[0]]


def test_transactions_continue(tmp_path: Path) -> None:
    settings = {"transactionTimeOut": 50, "transactionCheckInterval": 100, "transactionCheckMax": 10_000}
    with promoted(tmp_path, transactionCheckInterval=3_600_000) as pair:  # this master checks no transaction

        def producer() -> TransactionProducer:
            return TransactionProducer("p", listener=Decides(), name_server=pair.addresses)

        with Admin(pair.addresses) as admin, producer() as before:
            admin.create_topic("t", 1)
            before.send_in_transaction(Message("t", b"committed"), LocalTransactionState.COMMIT_MESSAGE)
            before.send_in_transaction(Message("t", b"gone"), LocalTransactionState.ROLLBACK_MESSAGE)
            for number in range(3):
                before.send_in_transaction(Message("t", b"yes %d" % number))
                before.send_in_transaction(Message("t", b"no %d" % number))
            until(lambda: pair.bodies() == [b"committed"])
            until(lambda: pair.master.parts.transactions.waiting == 6)
            pair.synchronized()
        pair.settings.update(settings)
        pair.promote("a1", other="a0")
        until(lambda: knows(pair.addresses, "t"))
        with producer() as after:
            after.send_in_transaction(Message("t", b"another"), LocalTransactionState.COMMIT_MESSAGE)
            until(lambda: pair.master.parts.transactions.waiting == 0 and len(pair.bodies()) > 4)
        assert sorted(pair.bodies()) == [b"another", b"committed", b"yes 0", b"yes 1", b"yes 2"]
        pair.caught_up()
        assert pair.slave.parts.store.get_max_offset("t", 0) == 5


def test_popped_messages_are_acked_or_redelivered_after_a_promotion(tmp_path: Path) -> None:
    with promoted(tmp_path) as pair, RemotingClient() as client:
        with Admin(pair.addresses) as admin:
            admin.create_group("g")
        pair.filled("t", *[b"%d" % number for number in range(6)])
        popper = Popper(Wire(client, pair.master.address), "g", "t")
        taken = popper.take(maxMsgNums=4, invisibleTime=20_000)
        assert [message.body for message, _ in taken] == [b"0", b"1", b"2", b"3"]
        late = [(message, receipt.replace("broker-a", "a")) for message, receipt in taken]
        assert popper.ack(*late[0]).code == ResponseCode.SUCCESS
        pair.synchronized()
        until(lambda: pair.slave.parts.offsets.query("g", "t", 0) == 4)
        pair.promote()
        popper.wire.address = pair.master.address
        assert [message.body for message, _ in popper.take()] == [b"4", b"5"], "the others are in flight"
        assert popper.ack(*late[1]).code == ResponseCode.SUCCESS, "with a receipt of the master before"
        pair.skew["a1"] = 30_000  # their invisible time has ended
        pair.wake()
        back: list[bytes] = []

        def is_back() -> bool:
            pair.wake()
            back.extend(message.body for message, _ in popper.take())
            return len(back) >= 2

        until(is_back)
        assert sorted(back) == [b"2", b"3"]


# --- reports ----------------------------------------------------------------------------------------------------------


def test_the_state_of_replication(tmp_path: Path) -> None:
    with promoted(tmp_path) as pair:

        def state(broker: Broker) -> HARuntimeInfo:
            return HARuntimeInfo.from_json(ask(broker.address, RequestCode.GET_BROKER_HA_STATUS).body)

        pair.filled("t", b"x" * 100)
        end = pair.master.parts.store.max_physical_offset
        until(lambda: [one.slave_ack_offset for one in state(pair.master).ha_connection_info] == [end])
        master, slave = state(pair.master), state(pair.slave)
        assert (master.master, master.master_commit_log_max_offset, master.in_sync_slave_nums) == (True, end, 1)
        (one,) = master.ha_connection_info
        assert (one.diff, one.in_sync, one.transfer_from_where) == (0, True, end)
        assert one.addr.startswith("127.0.0.1:")
        own = slave.ha_client_runtime_info
        assert (slave.master, own.max_offset, own.activated) == (False, end, True)
        assert own.master_addr == f"127.0.0.1:{pair.master.parts.replication.port}"
        now = pair.clock_of("a1")
        assert now - 60_000 < min(own.last_read_timestamp, own.last_write_timestamp) <= now
        pair.stop(pair.master)
        until(lambda: state(pair.slave).ha_client_runtime_info.last_read_timestamp == 0)


def test_two_masters_of_one_slave_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The master whose log it copies, and the master that it requests the rest from."""
    with promoted(tmp_path) as pair:
        assert "set as haMasterAddress" not in caplog.text
        pair.stop(pair.slave)
        address = f"localhost:{pair.master.parts.replication.port}"
        pair.slave = pair.add("a", 1, haMasterAddress=address)
        until(lambda: f"log of {address}, set as haMasterAddress" in caplog.text)
        assert f"registered with the name servers, {pair.master.address} (HA 127.0.0.1:" in caplog.text


def test_pending_messages_by_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_log, "_CHUNK_UNITS", 3)  # counted in two parts
    with promoted(tmp_path) as pair:

        def counts() -> dict[str, int]:
            answer = ask(pair.master.address, RequestCode.GET_TIMER_METRICS)
            found = TimerMetricsSerializeWrapper.from_json(answer.body)
            return {topic: metric.count for topic, metric in found.timing_count.items()}

        assert counts() == {}
        with RemotingClient() as client:
            for topic in ("t", "t", "t", "u"):
                Wire(client, pair.master.address).send(topic, b"x", {"TIMER_DELAY_SEC": "3600"})
        until(lambda: counts() == {"t": 3, "u": 1})
        assert ask(pair.slave.address, RequestCode.GET_TIMER_METRICS).code == ResponseCode.SYSTEM_ERROR


def test_a_slave_without_offsets_does_not_report_missing_ones(tmp_path: Path) -> None:
    """A group with this response starts at the end of the queue, without the messages before it."""
    with promoted(tmp_path) as pair:
        asked: dict[str, Any] = {"consumerGroup": "g", "topic": "t", "queueId": "0", "setZeroIfNotFound": "false"}
        assert ask(pair.master.address, RequestCode.QUERY_CONSUMER_OFFSET, **asked).code == ResponseCode.QUERY_NOT_FOUND
        refused = ask(pair.slave.address, RequestCode.QUERY_CONSUMER_OFFSET, **asked)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "slave" in str(refused.remark)
        pair.loop.call_soon_threadsafe(pair.master.parts.offsets.commit, "h", "t", 0, 0)
        until(lambda: pair.slave.parts.offsets.query("h", "t", 0) == 0)
        assert ask(pair.slave.address, RequestCode.QUERY_CONSUMER_OFFSET, **asked).code == ResponseCode.QUERY_NOT_FOUND


def test_groups_that_have_read_more_than_the_log_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A master died before its slave had all messages: new messages get the same offsets."""
    with promoted(tmp_path) as pair:
        with Admin(pair.addresses) as admin, Producer("p", name_server=pair.addresses) as producer:
            admin.create_topic("t", 2)
            for queue in producer.queues("t"):
                if not queue.queue_id:
                    producer.send(Message("t", b"x"), queue=queue)
            pair.synchronized()
        pair.stop(pair.slave)
        path = tmp_path / "a1" / "config" / "consumerOffset.json"
        offsets = {"t@g": {"0": 9, "1": 4}, "t@h": {"0": 1}, "gone@g": {"0": 7}}
        path.write_text(json.dumps({"offsetTable": offsets}))
        with caplog.at_level(logging.WARNING):
            found = pair.promote().parts.offsets
        assert {key: dict(queues) for key, queues in found.table.items() if key in offsets} == {
            "t@g": {0: 1, 1: 0},
            "t@h": {0: 1},
            "gone@g": {0: 7},
        }
        assert "in 2 queues" in caplog.text
        assert "group g, topic t, queue 0 was at 9, the queue ends at 1" in caplog.text
