"""Transactional messages from the client: local transactions, their results, and checks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.client.admin import Admin
from spark_rocket.client.core.lifecycle import ServiceState
from spark_rocket.client.send.transaction import (
    LocalTransactionState,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
)
from spark_rocket.errors import ClientError, NameServerUnreachableError, StateError
from spark_rocket.model import Message, MessageExt, MessageQueue, SendStatus
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    SendMessageRequestHeader,
)
from spark_rocket.testing import LocalCluster
from tests.kit.scripted import STORED, FakeCluster, record, says
from tests.kit.waiting import until

pytestmark = pytest.mark.live

BROKERS = 1

COMMIT, ROLLBACK, UNKNOW = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)


class Listener:
    """Returns or raises configured results; records its calls."""

    def __init__(self, local: Any = COMMIT, *checks: Any) -> None:
        self.local = local
        self.checks = list(checks)
        self.executed: SimpleQueue[tuple[Message, Any]] = SimpleQueue()
        self.checked: SimpleQueue[MessageExt] = SimpleQueue()

    def execute_local_transaction(self, message: Message, arg: Any) -> Any:
        self.executed.put((message, arg))
        return _said(self.local)

    def check_local_transaction(self, message: MessageExt) -> Any:
        result = self.checks.pop(0) if self.checks else UNKNOW
        self.checked.put(message)
        return _said(result)


def _said(result: Any) -> Any:
    if isinstance(result, Exception):
        raise result
    return result


Make = Callable[..., TransactionProducer]


@pytest.fixture
def make(closing: Callable[[Any], Any]) -> Make:
    """Builds producers of a name server, a group, and a listener."""
    return lambda name_server, group, listener, **options: closing(
        TransactionProducer(group, listener, name_server=name_server, **options)
    )


# --- against a broker with early checks -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty() -> Iterator[LocalCluster]:
    config = {"transactionTimeOut": 50, "transactionCheckInterval": 100, "transactionCheckMax": 10_000}
    with LocalCluster(in_process=True, config=config) as running:
        yield running


def received(cluster: LocalCluster, topic: str, count: int, offset: int = 0) -> list[bytes]:
    """Wait for messages of queue 0 from an offset."""
    found: list[bytes] = []
    with Reader(cluster.name_server) as reader:
        while len(found) < count:
            result = reader.pull(MessageQueue(topic, "broker-a", 0), offset + len(found), suspend_ms=20_000)
            found += [message.body for message in decode_messages(result.records)]
    return found


def test_committed_immediately(cluster: LocalCluster, make: Make) -> None:
    topic = cluster.create_topic("committed", 1)
    listener = Listener(COMMIT)
    producer = make(cluster.name_server, "tx-commit", listener)
    message = Message.of(topic, b"paid", tags="t", properties={"DELAY": "3", "TIMER_DELAY_SEC": "9", "mine": "x"})
    result = producer.send_in_transaction(message, 42)
    assert isinstance(result, TransactionSendResult)
    assert (result.status, result.local_transaction_state, result.local_exception) == (SendStatus.SEND_OK, COMMIT, None)
    half, arg = listener.executed.get_nowait()
    assert (half.body, arg) == (b"paid", 42)
    assert half.properties == {
        "TAGS": "t",
        "mine": "x",
        "UNIQ_KEY": result.msg_id,
        "TRAN_MSG": "true",
        "PGROUP": "tx-commit",
    }
    assert "TRAN_MSG" not in message.properties
    assert received(cluster, topic, 1) == [b"paid"]
    with Reader(cluster.name_server) as reader:
        (found,) = decode_messages(reader.pull(MessageQueue(topic, "broker-a", 0), 0).records)
    assert (found.sys_flag, found.msg_id, found.queue_offset) == (TRANSACTION_COMMIT, result.transaction_id, 0)


def test_rolled_back_and_never_delivered(hasty: LocalCluster, make: Make) -> None:
    topic = hasty.create_topic("rolled-back", 1)
    listener = Listener(ROLLBACK)
    producer = make(hasty.name_server, "tx-rollback", listener)
    assert producer.send_in_transaction(Message.of(topic, b"no")).local_transaction_state is ROLLBACK
    listener.local = COMMIT
    producer.send_in_transaction(Message.of(topic, b"yes"))
    assert received(hasty, topic, 1) == [b"yes"]
    listener.local = UNKNOW
    listener.checks = [COMMIT] * 10
    producer.send_in_transaction(Message.of(topic, b"later"))
    assert received(hasty, topic, 2) == [b"yes", b"later"]


NOT_KNOWN = [UNKNOW, None, True, "COMMIT_MESSAGE", ValueError("of the listener's own")]


@pytest.mark.parametrize("unknown", NOT_KNOWN, ids=str)
def test_unknown_states_are_checked(
    hasty: LocalCluster, make: Make, unknown: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = hasty.create_topic(f"asked-{NOT_KNOWN.index(unknown)}", 1)
    listener = Listener(unknown, unknown, COMMIT)
    producer = make(hasty.name_server, "tx-unknown", listener)
    body = b"later" * 10_000  # compressed on the wire
    result = producer.send_in_transaction(Message.of(topic, body, keys="k", flag=7))
    assert result.local_transaction_state is UNKNOW
    assert result.local_exception is (unknown if isinstance(unknown, Exception) else None)
    for times in ("1", "2"):
        asked = listener.checked.get(timeout=30)
        assert (asked.topic, asked.queue_id, asked.body, asked.keys) == (topic, 0, body, "k")
        assert asked.msg_id == result.msg_id
        assert asked.properties["TRANSACTION_CHECK_TIMES"] == times
    assert received(hasty, topic, 1) == [body]
    expected = {ValueError: "failed", LocalTransactionState: ""}.get(type(unknown), "not a LocalTransactionState")
    assert expected in caplog.text


def test_another_member_responds_to_checks_of_a_closed_one(hasty: LocalCluster, make: Make) -> None:
    topic = hasty.create_topic("inherited", 1)
    with TransactionProducer("tx-heirs", Listener(UNKNOW), name_server=hasty.name_server) as first:
        sent = first.send_in_transaction(Message.of(topic, b"left behind"))
    heir = Listener(UNKNOW, COMMIT)
    make(hasty.name_server, "tx-heirs", heir).start()  # and sends nothing
    assert heir.checked.get(timeout=30).msg_id == sent.msg_id
    assert received(hasty, topic, 1) == [b"left behind"]


def test_each_producer_of_a_process_gets_its_own_checks(hasty: LocalCluster, make: Make) -> None:
    topic = hasty.create_topic("two-groups", 1)
    listeners = [Listener(UNKNOW, COMMIT), Listener(UNKNOW, COMMIT)]
    producers = [make(hasty.name_server, f"tx-{number}", listener) for number, listener in enumerate(listeners)]
    for number, producer in enumerate(producers):
        producer.send_in_transaction(Message.of(topic, b"%d" % number))
    for number, listener in enumerate(listeners):
        assert listener.checked.get(timeout=30).body == b"%d" % number
    assert sorted(received(hasty, topic, 2)) == [b"0", b"1"]


def test_every_transaction_survives_broker_kills() -> None:
    """The broker is killed before it receives decisions, and checks these transactions after its restart."""
    times = {"transactionTimeOut": 100, "transactionCheckInterval": 500, "transactionCheckMax": 10_000}
    with LocalCluster(config=times) as cluster:
        topic = cluster.create_topic("killed", 1)
        states: dict[str, LocalTransactionState] = {}

        class Accounts(TransactionListener):
            """Decides by the number of the message, and kills the broker during some."""

            def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
                states[message.properties["UNIQ_KEY"]] = COMMIT if arg % 2 else ROLLBACK
                if arg in (7, 28):
                    cluster.kill_broker()
                    cluster.restart_broker()
                    producer.instance().members.send_heartbeats()  # as it does every 30 s
                return UNKNOW if arg % 20 in (3, 4) else states[message.properties["UNIQ_KEY"]]

            def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
                return states.get(message.msg_id, ROLLBACK)

        producer = TransactionProducer("tx-killed", Accounts(), name_server=cluster.name_server)
        with producer:
            for number in range(40):
                producer.send_in_transaction(Message.of(topic, b"%d" % number), number)
            found: list[bytes] = []
            while len(set(found)) < 20:
                found += received(cluster, topic, 1, len(found))
            assert set(found) == {b"%d" % number for number in range(1, 40, 2)}


# --- requests -------------------------------------------------------------------------------------------------------


@pytest.fixture
def ends(mq: FakeCluster) -> SimpleQueue[RemotingCommand]:
    """The decisions that the broker receives."""
    received: SimpleQueue[RemotingCommand] = SimpleQueue()
    mq.everywhere(RequestCode.END_TRANSACTION, lambda request: received.put(request))
    return received


def test_requests_equal_javas(mq: FakeCluster, make: Make, ends: SimpleQueue[RemotingCommand]) -> None:
    producer = make(mq.name_server.address, "g", Listener(RuntimeError("no")))
    result = producer.send_in_transaction(Message.of("t", b"x", properties={"UNIQ_KEY": "mine"}))
    header = SendMessageRequestHeader.from_ext_v2(mq.sends()[0].ext_fields)
    assert header.sys_flag == 4
    assert decode_properties(header.properties) == {
        "UNIQ_KEY": "mine",
        "TRAN_MSG": "true",
        "PGROUP": "g",
        "WAIT": "true",
    }
    end = ends.get(timeout=10)
    assert end.is_oneway
    assert end.remark == "the listener raised RuntimeError: no"
    assert EndTransactionRequestHeader.from_ext(end.ext_fields) == EndTransactionRequestHeader(
        producer_group="g",
        tran_state_table_offset=7,
        commit_log_offset=0xAB,
        commit_or_rollback=0,
        msg_id="mine",
        topic="t",
        transaction_id="T",
        broker_name="b0",
    )
    assert (result.transaction_id, result.queue_offset) == ("T", 7)


@pytest.mark.parametrize(
    "code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE]
)
def test_stored_but_not_replicated_is_rolled_back(
    mq: FakeCluster, make: Make, ends: SimpleQueue[RemotingCommand], code: ResponseCode
) -> None:
    mq.everywhere(RequestCode.SEND_MESSAGE_V2, says(code, ext=STORED))
    listener = Listener(COMMIT)
    producer = make(mq.name_server.address, "g", listener)
    result = producer.send_in_transaction(Message.of("t", b"x"))
    assert (result.status.name, result.local_transaction_state) == (code.name, ROLLBACK)
    assert listener.executed.empty()
    assert ends.get(timeout=10).ext_fields["commitOrRollback"] == "12"


def test_a_failed_send_executes_no_transaction(mq: FakeCluster, make: Make) -> None:
    forbidden = says(ResponseCode.NO_PERMISSION, "the broker[b] sending transaction message is forbidden")
    mq.everywhere(RequestCode.SEND_MESSAGE_V2, forbidden)
    listener = Listener(COMMIT)
    producer = make(mq.name_server.address, "g", listener, retry_times_when_send_failed=0)
    with pytest.raises(ClientError, match="sending transaction message is forbidden"):
        producer.send_in_transaction(Message.of("t", b"x"))
    assert listener.executed.empty()


def test_a_lost_decision_is_checked_later(mq: FakeCluster, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    class Breaker(Listener):
        def execute_local_transaction(self, message: Message, arg: Any) -> Any:
            mq.brokers[0].close()
            until(lambda: not producer.instance().remoting.is_connected(mq.brokers[0].address))
            return super().execute_local_transaction(message, arg)

    producer = make(mq.name_server.address, "g", Breaker(COMMIT), send_timeout=1.0)
    result = producer.send_in_transaction(Message.of("t", b"x"))
    assert result.local_transaction_state is COMMIT
    assert "not sent, it will be checked" in caplog.text


# --- checks without a broker ------------------------------------------------------------------------------------


def question(group: str = "g") -> RemotingCommand:
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=3, commit_log_offset=300, transaction_id="T", broker_name="b0"
    )
    body = record(3, PGROUP=group, UNIQ_KEY="mine")
    return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body, oneway=True)


def test_the_response_to_a_check(mq: FakeCluster, make: Make, ends: SimpleQueue[RemotingCommand]) -> None:
    producer = make(mq.name_server.address, "g", Listener(COMMIT, ROLLBACK))
    producer.start()
    producer.instance().members.handle(mq.brokers[0].address, question())
    end = ends.get(timeout=10)
    assert end.is_oneway
    assert EndTransactionRequestHeader.from_ext(end.ext_fields) == EndTransactionRequestHeader(
        producer_group="g",
        tran_state_table_offset=3,
        commit_log_offset=300,
        commit_or_rollback=12,
        msg_id="mine",
        topic="t",
        from_transaction_check=True,
        transaction_id="T",
        broker_name="b0",  # by which a proxy of 5.x passes it on
    )


def test_checks_without_a_producer(mq: FakeCluster, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener(COMMIT, COMMIT)
    producer = make(mq.name_server.address, "g", listener)
    producer.start()
    members = producer.instance().members
    address = mq.brokers[0].address
    members.handlers[RequestCode.CHECK_TRANSACTION_STATE](address, question("other"))
    assert "no transaction producer of group 'other'" in caplog.text
    assert producer._checks is not None
    producer._checks.shutdown()
    with caplog.at_level(logging.INFO):
        members.handlers[RequestCode.CHECK_TRANSACTION_STATE](address, question())
    assert "closed" in caplog.text
    assert listener.checked.empty()


def test_too_many_checks_are_dropped(
    mq: FakeCluster, make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr("spark_rocket.client.send.transaction.MAX_PENDING_CHECKS", 2)
    started, go_on = threading.Event(), threading.Event()

    class Slow(Listener):
        def check_local_transaction(self, message: MessageExt) -> Any:
            started.set()
            go_on.wait(20)
            return super().check_local_transaction(message)

    listener = Slow()
    producer = make(mq.name_server.address, "g", listener)
    producer.start()
    ask = producer.instance().members.handlers[RequestCode.CHECK_TRANSACTION_STATE]
    ask(mq.brokers[0].address, question())
    assert started.wait(20)
    for _ in range(3):
        ask(mq.brokers[0].address, question())
    assert "too many pending" in caplog.text
    go_on.set()
    for _ in range(3):
        listener.checked.get(timeout=20)


# --- start and close --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", [None, lambda message, arg: COMMIT, Message.of("t", "x")])
def test_an_invalid_listener(listener: Any) -> None:
    with pytest.raises(ClientError, match=r"argument listener.*Pass a TransactionListener"):
        TransactionProducer("tx-none", listener, name_server="127.0.0.1:1")


def test_a_producer_joins_and_leaves_its_group(cluster: LocalCluster, admin: Admin) -> None:
    def members() -> int:
        return len(admin.producers("tx-life"))

    cluster.create_topic("life", 1)
    producer = TransactionProducer("tx-life", Listener(), name_server=cluster.name_server)
    assert producer.state is ServiceState.CREATE_JUST
    producer.start()
    producer.start()
    assert (producer.state, members()) == (ServiceState.RUNNING, 1)
    producer.close()
    producer.close()
    assert (producer.state, members()) == (ServiceState.SHUTDOWN_ALREADY, 0)
    with pytest.raises(StateError):
        producer.send_in_transaction(Message.of("life", b"x"))


def test_invalid_names() -> None:
    with pytest.raises(ClientError):
        TransactionProducer("no group", Listener())
    with pytest.raises(ClientError):
        TransactionProducer("g", Listener(), topics=["no topic"])


def test_without_a_name_server(nobody: str, make: Make) -> None:
    listener = Listener()
    producer = make(nobody, "g", listener)
    producer.start()  # it can arrive later
    with pytest.raises(NameServerUnreachableError):
        producer.send_in_transaction(Message.of("t", b"x"))
    assert listener.executed.empty()


def test_unresponsive_servers_do_not_exceed_the_timeout(
    mq: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.everywhere(RequestCode.HEART_BEAT, lambda request: None)
    address = mq.name_server.address
    producer = make(address, "g", Listener(), topics=["u", "v"])
    assert producer.send_in_transaction(Message.of("t", b"x")).local_transaction_state is COMMIT
    asked: list[float] = []

    async def ask(_: object, request: RemotingCommand, allowed: object, what: str, seconds: float) -> None:
        asked.append(seconds)
        raise NameServerUnreachableError(what)

    monkeypatch.setattr("spark_rocket.client.core.name_servers.NameServers.ask", ask)
    producer = make(address, "g", Listener(), instance_name="another", topics=["u", "v"])
    with pytest.raises(NameServerUnreachableError):
        producer.send_in_transaction(Message.of("t", b"x"), timeout=0.5)
    assert len(asked) == 4
    assert 0.5 >= asked[0] > asked[1] > asked[2] > asked[3] > 0


@pytest.mark.parametrize("where", ["call_later", "route"])
def test_a_failed_start_leaves_nothing_behind(
    mq: FakeCluster, make: Make, closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    address = mq.name_server.address
    other = closing(Producer(name_server=address))
    members = other.running().members
    producer = make(address, "g", Listener())
    with monkeypatch.context() as broken:
        instance = other.running()
        broken.setattr(instance if where == "call_later" else instance.routes, where, _interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.start()
    assert producer.state is ServiceState.START_FAILED
    assert not members.producers
    with pytest.raises(StateError, match="failed to start"):
        producer.send_in_transaction(Message.of("t", b"x"))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_routes_of_topics_stay_in_use(mq: FakeCluster, make: Make) -> None:
    producer = make(mq.name_server.address, "g", Listener(), topics=["t"])
    producer.start()
    routes = producer.instance().routes
    assert routes.broker_addresses() == [mq.brokers[0].address]
    routes._clock = routes._routes._monotonic = lambda: time.monotonic() + 121.0  # two minutes without a send
    assert not routes.broker_addresses()
    producer._keep_routes()
    assert routes.broker_addresses() == [mq.brokers[0].address]
