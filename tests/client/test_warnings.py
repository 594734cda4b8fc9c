"""A state that lasts is logged once, not with each message: a broker without slaves, a listener that is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from spark_rocket.client import Producer, TransactionProducer
from spark_rocket.client.send import transaction
from spark_rocket.common.logs import RateLimited
from spark_rocket.model import Message, SendStatus
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.client.producing import HOWS, Decides, done
from tests.kit.scripted import STORED, FakeCluster, Handler, says

pytestmark = pytest.mark.live

BROKERS = 1
MESSAGES = 50
UNSAFE = [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT]


def stored_as(code: int) -> Handler:
    def respond(request: RemotingCommand) -> RemotingCommand:
        count = len(decode_batch_body(request.body)) if request.code == RequestCode.SEND_BATCH_MESSAGE else 1
        return RemotingCommand.response(request, code, None, {**STORED, "msgId": ",".join([STORED["msgId"]] * count)})

    return respond


def respond(mq: FakeCluster, code: int) -> None:
    for request in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        mq.everywhere(request, stored_as(code))


@pytest.fixture
def producer(mq: FakeCluster, closing: Callable[[Any], Any], request: pytest.FixtureRequest) -> Producer:
    made: Producer = closing(Producer("g", name_server=mq.name_server.address, member=False, **request.param))
    return made


@pytest.mark.parametrize("producer", [{}, {"auto_batch": True, "batch_max_delay": 0.001}], indirect=True)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("code", UNSAFE)
def test_a_broker_that_stores_unsafely_is_logged_once(
    mq: FakeCluster, producer: Producer, caplog: pytest.LogCaptureFixture, how: str, code: ResponseCode
) -> None:
    caplog.set_level(logging.INFO)
    respond(mq, code)
    assert {done(producer, how).status for _ in range(MESSAGES)} == {SendStatus[code.name]}
    assert [r.getMessage() for r in caplog.records if "broker b0" in r.getMessage()] == [
        f"broker b0 stores messages with status {code.name}"
    ]
    respond(mq, ResponseCode.SUCCESS)
    assert {done(producer, how).status for _ in range(MESSAGES)} == {SendStatus.SEND_OK}
    assert sum("with SEND_OK again" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize("producer", [{}], indirect=True)
def test_a_state_that_changes_with_each_message_is_not_logged_with_each(
    mq: FakeCluster, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(MESSAGES):
        for code in (*UNSAFE, ResponseCode.SUCCESS):
            respond(mq, code)
            producer.send(Message.of("t", "x"))
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == len(UNSAFE)


def test_transactions_that_are_rolled_back_for_one_reason(
    mq: FakeCluster,
    closing: Callable[[Any], Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A test before this one may have logged the same reason.
    monkeypatch.setattr(transaction, "_often", RateLimited(logging.getLogger("spark_rocket.client.send.transaction")))
    mq.everywhere(RequestCode.END_TRANSACTION, says(0))
    respond(mq, ResponseCode.SLAVE_NOT_AVAILABLE)
    producer = closing(TransactionProducer("g", Decides(), name_server=mq.name_server.address))
    for _ in range(MESSAGES):
        producer.send_in_transaction(Message.of("t", "x"))
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "status" in r.getMessage()]
    assert len(warnings) == 2
    assert any(text.startswith("rolled back transaction") for text in warnings)
