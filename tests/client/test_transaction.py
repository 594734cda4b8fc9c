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
from spark_rocket.errors import ClientError, GroupInUseError, NameServerUnreachableError, StateError
from spark_rocket.model import Message, MessageExt, MessageQueue, SendStatus
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    SendMessageRequestHeader,
)
from spark_rocket.testing import LocalCluster
from tests.client.fakes import FakeCluster

pytestmark = pytest.mark.live

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
        answer = self.checks.pop(0) if self.checks else UNKNOW
        self.checked.put(message)
        return _said(answer)


def _said(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


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


def test_committed_immediately(cluster: LocalCluster, closing: Callable[[Any], Any]) -> None:
    topic = cluster.create_topic("committed", 1)
    listener = Listener(COMMIT)
    producer = closing(TransactionProducer("tx-commit", listener, name_server=cluster.name_server))
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


def test_rolled_back_and_never_delivered(hasty: LocalCluster, closing: Callable[[Any], Any]) -> None:
    topic = hasty.create_topic("rolled-back", 1)
    listener = Listener(ROLLBACK)
    producer = closing(TransactionProducer("tx-rollback", listener, name_server=hasty.name_server))
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
    hasty: LocalCluster, closing: Callable[[Any], Any], unknown: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = hasty.create_topic(f"asked-{NOT_KNOWN.index(unknown)}", 1)
    listener = Listener(unknown, unknown, COMMIT)
    producer = closing(TransactionProducer("tx-unknown", listener, name_server=hasty.name_server))
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


def test_another_member_answers_checks_of_a_closed_one(hasty: LocalCluster, closing: Callable[[Any], Any]) -> None:
    topic = hasty.create_topic("inherited", 1)
    with TransactionProducer("tx-heirs", Listener(UNKNOW), name_server=hasty.name_server) as first:
        sent = first.send_in_transaction(Message.of(topic, b"left behind"))
    heir = Listener(UNKNOW, COMMIT)
    closing(TransactionProducer("tx-heirs", heir, name_server=hasty.name_server)).start()  # and sends nothing
    assert heir.checked.get(timeout=30).msg_id == sent.msg_id
    assert received(hasty, topic, 1) == [b"left behind"]


def test_each_producer_of_a_process_gets_its_own_checks(hasty: LocalCluster, closing: Callable[[Any], Any]) -> None:
    topic = hasty.create_topic("two-groups", 1)
    listeners = [Listener(UNKNOW, COMMIT), Listener(UNKNOW, COMMIT)]
    producers = [
        closing(TransactionProducer(f"tx-{number}", listener, name_server=hasty.name_server))
        for number, listener in enumerate(listeners)
    ]
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


# --- requests ---------------------------------------------------------------------------------------------------


@pytest.fixture
def brokers(fake: Callable[..., FakeCluster]) -> FakeCluster:
    cluster = fake(1)
    cluster.add("t", 1)
    broker = cluster.brokers[0]
    broker.answers[RequestCode.HEART_BEAT] = lambda request: RemotingCommand.response(request)
    broker.answers[RequestCode.UNREGISTER_CLIENT] = lambda request: RemotingCommand.response(request)
    return cluster


def stored(code: int = 0) -> Callable[[RemotingCommand], RemotingCommand]:
    ext = {"msgId": "7F00000100002A9F00000000000000FF", "queueId": "0", "queueOffset": "7", "transactionId": "T"}
    return lambda request: RemotingCommand.response(request, code, None, ext)


def test_requests_equal_javas(brokers: FakeCluster, closing: Callable[[Any], Any]) -> None:
    broker = brokers.brokers[0]
    sends: SimpleQueue[RemotingCommand] = SimpleQueue()
    ends: SimpleQueue[RemotingCommand] = SimpleQueue()
    broker.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: (sends.put(request), stored()(request))[1]
    broker.answers[RequestCode.END_TRANSACTION] = lambda request: ends.put(request)
    listener = Listener(RuntimeError("no"))
    producer = closing(TransactionProducer("g", listener, name_server=brokers.name_server.address))
    result = producer.send_in_transaction(Message.of("t", b"x", properties={"UNIQ_KEY": "mine"}))
    header = SendMessageRequestHeader.from_ext_v2(sends.get(timeout=10).ext_fields)
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
        commit_log_offset=0xFF,
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
    brokers: FakeCluster, closing: Callable[[Any], Any], code: ResponseCode
) -> None:
    broker = brokers.brokers[0]
    ends: SimpleQueue[RemotingCommand] = SimpleQueue()
    broker.answers[RequestCode.SEND_MESSAGE_V2] = stored(code)
    broker.answers[RequestCode.END_TRANSACTION] = lambda request: ends.put(request)
    listener = Listener(COMMIT)
    producer = closing(TransactionProducer("g", listener, name_server=brokers.name_server.address))
    result = producer.send_in_transaction(Message.of("t", b"x"))
    assert (result.status.name, result.local_transaction_state) == (code.name, ROLLBACK)
    assert listener.executed.empty()
    assert ends.get(timeout=10).ext_fields["commitOrRollback"] == "12"


def test_a_failed_send_executes_no_transaction(brokers: FakeCluster, closing: Callable[[Any], Any]) -> None:
    brokers.brokers[0].answers[RequestCode.SEND_MESSAGE_V2] = lambda request: RemotingCommand.response(
        request, ResponseCode.NO_PERMISSION, "the broker[b] sending transaction message is forbidden"
    )
    listener = Listener(COMMIT)
    producer = closing(
        TransactionProducer("g", listener, name_server=brokers.name_server.address, retry_times_when_send_failed=0)
    )
    with pytest.raises(ClientError, match="sending transaction message is forbidden"):
        producer.send_in_transaction(Message.of("t", b"x"))
    assert listener.executed.empty()


def test_a_lost_decision_is_checked_later(
    brokers: FakeCluster, closing: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    brokers.brokers[0].answers[RequestCode.SEND_MESSAGE_V2] = stored()

    class Breaker(Listener):
        def execute_local_transaction(self, message: Message, arg: Any) -> Any:
            brokers.brokers[0].close()
            return super().execute_local_transaction(message, arg)

    producer = closing(
        TransactionProducer("g", Breaker(COMMIT), name_server=brokers.name_server.address, send_timeout=1.0)
    )
    with caplog.at_level(logging.WARNING):
        result = producer.send_in_transaction(Message.of("t", b"x"))
    assert result.local_transaction_state is COMMIT


# --- checks without a broker ------------------------------------------------------------------------------------


def question(group: str = "g") -> RemotingCommand:
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=3, commit_log_offset=255, transaction_id="T", broker_name="b0"
    )
    body = encode_record(
        b"t",
        0,
        b"x",
        f"PGROUP\x01{group}\x02UNIQ_KEY\x01mine".encode(),
        queue_offset=3,
        physical_offset=255,
        born_timestamp=1,
        born_host=b"\0" * 8,
        store_timestamp=1,
        store_host=b"\0" * 8,
    )
    return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body, oneway=True)


def test_the_response_to_a_check(brokers: FakeCluster, closing: Callable[[Any], Any]) -> None:
    broker = brokers.brokers[0]
    ends: SimpleQueue[RemotingCommand] = SimpleQueue()
    broker.answers[RequestCode.END_TRANSACTION] = lambda request: ends.put(request)
    producer = closing(TransactionProducer("g", Listener(COMMIT, ROLLBACK), name_server=brokers.name_server.address))
    producer.start()
    producer.instance().members.handle(broker.address, question())
    end = ends.get(timeout=10)
    assert end.is_oneway
    assert EndTransactionRequestHeader.from_ext(end.ext_fields) == EndTransactionRequestHeader(
        producer_group="g",
        tran_state_table_offset=3,
        commit_log_offset=255,
        commit_or_rollback=12,
        msg_id="mine",
        topic="t",
        from_transaction_check=True,
        transaction_id="T",
        broker_name="b0",  # by which a proxy of 5.x passes it on
    )


def test_checks_without_a_producer(
    brokers: FakeCluster, closing: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(COMMIT, COMMIT)
    producer = closing(TransactionProducer("g", listener, name_server=brokers.name_server.address))
    producer.start()
    members = producer.instance().members
    address = brokers.brokers[0].address
    members.handlers[RequestCode.CHECK_TRANSACTION_STATE](address, question("other"))
    assert "no transaction producer of group 'other'" in caplog.text
    producer._checks.shutdown()
    with caplog.at_level(logging.INFO):
        members.handlers[RequestCode.CHECK_TRANSACTION_STATE](address, question())
    assert "closed" in caplog.text
    assert listener.checked.empty()


def test_too_many_checks_are_dropped(
    brokers: FakeCluster, closing: Callable[[Any], Any], caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr("spark_rocket.client.send.transaction.MAX_PENDING_CHECKS", 2)
    started, go_on = threading.Event(), threading.Event()

    class Slow(Listener):
        def check_local_transaction(self, message: MessageExt) -> Any:
            started.set()
            go_on.wait(20)
            return super().check_local_transaction(message)

    listener = Slow()
    producer = closing(TransactionProducer("g", listener, name_server=brokers.name_server.address))
    producer.start()
    ask = producer.instance().members.handlers[RequestCode.CHECK_TRANSACTION_STATE]
    ask(brokers.brokers[0].address, question())
    assert started.wait(20)
    for _ in range(3):
        ask(brokers.brokers[0].address, question())
    assert "too many pending" in caplog.text
    go_on.set()
    for _ in range(3):
        listener.checked.get(timeout=20)


# --- start and close --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", [None, lambda message, arg: COMMIT, Message.of("t", "x")])
def test_an_invalid_listener(listener: Any) -> None:
    with pytest.raises(ClientError, match="has no execute_local_transaction"):
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


def test_a_second_producer_of_the_group_is_refused(cluster: LocalCluster, closing: Callable[[Any], Any]) -> None:
    first = closing(TransactionProducer("tx-twice", Listener(), name_server=cluster.name_server))
    first.start()
    second = TransactionProducer("tx-twice", Listener(), name_server=cluster.name_server)
    with pytest.raises(GroupInUseError):
        second.start()
    second.close()
    assert first.state is ServiceState.RUNNING
    with pytest.raises(StateError):
        second.start()


def test_invalid_names() -> None:
    with pytest.raises(ClientError):
        TransactionProducer("no group", Listener())
    with pytest.raises(ClientError):
        TransactionProducer("g", Listener(), topics=["no topic"])


def test_without_a_name_server(nobody: str, closing: Callable[[Any], Any]) -> None:
    listener = Listener()
    producer = closing(TransactionProducer("g", listener, name_server=nobody))
    producer.start()  # it can arrive later
    with pytest.raises(NameServerUnreachableError):
        producer.send_in_transaction(Message.of("t", b"x"))
    assert listener.executed.empty()


def test_unresponsive_servers_do_not_exceed_the_timeout(
    brokers: FakeCluster, closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = brokers.brokers[0]
    broker.answers[RequestCode.HEART_BEAT] = lambda request: None
    broker.answers[RequestCode.SEND_MESSAGE_V2] = stored()
    settings = {"name_server": brokers.name_server.address, "topics": ["u", "v"]}
    producer = closing(TransactionProducer("g", Listener(), **settings))
    assert producer.send_in_transaction(Message.of("t", b"x")).local_transaction_state is COMMIT
    asked: list[float] = []

    async def ask(_: object, request: RemotingCommand, allowed: object, what: str, seconds: float) -> None:
        asked.append(seconds)
        raise NameServerUnreachableError(what)

    monkeypatch.setattr("spark_rocket.client.core.name_servers.NameServers.ask", ask)
    producer = closing(TransactionProducer("g", Listener(), instance_name="another", **settings))
    with pytest.raises(NameServerUnreachableError):
        producer.send_in_transaction(Message.of("t", b"x"), timeout=0.5)
    assert len(asked) == 4
    assert 0.5 >= asked[0] > asked[1] > asked[2] > asked[3] > 0


@pytest.mark.parametrize("where", ["call_later", "route"])
def test_a_failed_start_leaves_nothing_behind(
    brokers: FakeCluster, closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    address = brokers.name_server.address
    other = closing(Producer(name_server=address))
    members = other.running().members
    producer = closing(TransactionProducer("g", Listener(), name_server=address))
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


def test_routes_of_topics_stay_in_use(brokers: FakeCluster, closing: Callable[[Any], Any]) -> None:
    brokers.brokers[0].answers[RequestCode.SEND_MESSAGE_V2] = stored()
    producer = closing(TransactionProducer("g", Listener(), topics=["t"], name_server=brokers.name_server.address))
    producer.start()
    routes = producer.instance()._routes
    assert routes.broker_addresses() == [brokers.brokers[0].address]
    routes._clock = routes._routes._monotonic = lambda: time.monotonic() + 121.0  # two minutes without a send
    assert not routes.broker_addresses()
    producer._keep_routes()
    assert routes.broker_addresses() == [brokers.brokers[0].address]


def test_sends_without_transactions(cluster: LocalCluster, closing: Callable[[Any], Any]) -> None:
    topic = cluster.create_topic("plain", 1)
    producer = closing(TransactionProducer("tx-plain", Listener(), name_server=cluster.name_server))
    producer.send(Message.of(topic, b"plain"))
    assert isinstance(producer, Producer)
    assert received(cluster, topic, 1) == [b"plain"]
