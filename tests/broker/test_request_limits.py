"""Every request that a server handles has bounds, which are checked before its handler runs."""

from __future__ import annotations

import pytest

from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.request_limits import BROKER_LIMITS, LIMITS, NAMESRV_LIMITS
from tests.broker.wire import Wire

pytestmark = pytest.mark.live


def test_every_code_that_a_server_handles_has_bounds(wire: Wire, namesrv: Wire) -> None:
    for server, limits in ((wire, BROKER_LIMITS), (namesrv, NAMESRV_LIMITS)):
        for code in RequestCode:
            if code not in limits:
                assert server.ask(code).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code.name


@pytest.mark.parametrize("code", [RequestCode(code) for code in BROKER_LIMITS], ids=lambda code: code.name)
def test_the_broker_refuses_what_is_larger(wire: Wire, code: RequestCode) -> None:
    limit = LIMITS[code]
    answer = wire.ask(code, x="x" * limit.max_header_bytes)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"at most {limit.max_header_bytes:,} are allowed" in (answer.remark or "")
    if limit.max_body_bytes <= 1 << 20:
        answer = wire.ask(code, b"x" * (limit.max_body_bytes + 1))
        assert f"at most {limit.max_body_bytes:,} are allowed" in (answer.remark or "")


@pytest.mark.parametrize("code", [RequestCode(code) for code in NAMESRV_LIMITS], ids=lambda code: code.name)
def test_the_name_server_refuses_what_is_larger(namesrv: Wire, code: RequestCode) -> None:
    answer = namesrv.ask(code, x="x" * LIMITS[code].max_header_bytes)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "are allowed" in (answer.remark or "")


def test_lag_of_half_a_million_topics(wire: Wire) -> None:
    answer = wire.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topicList=";" * 100_000)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "100,001 entries in topicList, at most 1,000" in (answer.remark or "")
