"""The statuses for responses of brokers, errors of clients and internal errors."""

from __future__ import annotations

import logging
from urllib.parse import quote

import pytest

from spark_rocket.errors import RefusedError, StateError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.statuses import StatusError, status_code_of
from spark_rocket.proxy.messaging import status_of
from spark_rocket.proxy.transport.calls import cut_text

Code = definitions.Code


def test_every_answer_of_a_broker_has_a_status() -> None:
    names = {code: Code.Name(status_code_of(code)) for code in ResponseCode}
    assert names[ResponseCode.SUCCESS] == "OK"
    assert names[ResponseCode.TOPIC_NOT_EXIST] == "TOPIC_NOT_FOUND"
    assert names[ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST] == "CONSUMER_GROUP_NOT_FOUND"
    assert names[ResponseCode.SYSTEM_BUSY] == names[ResponseCode.FLOW_CONTROL] == "TOO_MANY_REQUESTS"
    assert names[ResponseCode.SYSTEM_ERROR] == names[ResponseCode.GO_AWAY] == "INTERNAL_SERVER_ERROR"
    assert [code.name for code, name in names.items() if name == "OK"] == ["SUCCESS"]
    assert status_code_of(12_345) == Code.INTERNAL_SERVER_ERROR


def test_failures_have_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    assert status_of(StatusError(Code.ILLEGAL_TOPIC, "blank"), "M") == (Code.ILLEGAL_TOPIC, "blank")
    refused = RefusedError("no such topic", response_code=ResponseCode.TOPIC_NOT_EXIST, remedy="Create it.")
    assert status_of(refused, "M") == (Code.TOPIC_NOT_FOUND, "no such topic Create it.")
    assert status_of(StateError("closed"), "M") == (Code.INTERNAL_SERVER_ERROR, "closed")
    assert not caplog.records
    with caplog.at_level(logging.ERROR):
        assert status_of(KeyError("x"), "SendMessage") == (Code.INTERNAL_SERVER_ERROR, "KeyError: 'x'")
    assert "SendMessage failed" in caplog.text


@pytest.mark.parametrize("text", ["x" * 10_000, "界" * 3_000, "%" * 5_000, "a界" * 900 + "\ud800"], ids=len)
def test_error_messages_are_short_enough_for_clients(text: str) -> None:
    """8 KiB of metadata, 4 KiB through nginx: with more, a call fails without a reason."""
    said = cut_text(text)
    assert len(quote(said, safe="")) <= 3072
    assert text.startswith(said)
    assert len(said) > 300
