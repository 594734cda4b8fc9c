"""Codes that other layers and peers count on."""

from __future__ import annotations

import pytest

from spark_rocket.protocol.wire import codes
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SEND_MESSAGE", 10),
        ("PULL_MESSAGE", 11),
        ("HEART_BEAT", 34),
        ("GET_ROUTEINFO_BY_TOPIC", 105),
        ("SEND_MESSAGE_V2", 310),
        ("SEND_BATCH_MESSAGE", 320),
        ("PEEK_MESSAGE", 200052),
        ("CHANGE_MESSAGE_INVISIBLETIME", 200053),
    ],
)
def test_requests(name: str, number: int) -> None:
    assert RequestCode[name] == number


def test_no_number_is_used_twice() -> None:
    for kind in (RequestCode, ResponseCode, LanguageCode):
        assert len(kind) == len(kind.__members__), "an alias: two names share a number"


def test_responses_that_mean_stored() -> None:
    stored = [ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE]
    assert [*stored, ResponseCode.FLUSH_SLAVE_TIMEOUT] == [0, 10, 11, 12]


def test_own_version_gets_standard_json() -> None:
    assert codes.CURRENT_VERSION >= codes.STANDARD_JSON_VERSION == 401
