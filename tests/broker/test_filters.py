"""SQL92 filters in the broker: matches, limits of a pull, permissions, and wake-ups of held pulls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.delivery import filters
from spark_rocket.broker.delivery.filters import get_matching
from spark_rocket.errors import StoreCorruptError
from spark_rocket.model import Message, MessageExt
from spark_rocket.protocol.filter.sql92 import parse_sql92
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.bodies.client import CheckClientRequestBody, SubscriptionData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.store import MessageStore
from spark_rocket.store.results import GetMessageResult, GetMessageStatus
from spark_rocket.store.tools.check import check_store
from tests.broker.test_pull import offsets
from tests.broker.wire import HELD, Wire, held_pulls, messages_of, subscribed, time_is_up
from tests.store.helpers import opened, small

pytestmark = pytest.mark.live

SQL: dict[str, Any] = {"expressionType": "SQL92"}


def values(number: int) -> dict[str, str]:
    return {"a": str(number), "region": "eu" if number % 3 else "us"}


def send(wire: Wire, topic: str, count: int, first: int = 0) -> None:
    messages = [
        Message.of(topic, b"%d" % number, tags=f"t{number % 2}", properties=values(number))
        for number in range(first, first + count)
    ]
    wire.send_batch(topic, messages)


def bodies(answer: RemotingCommand) -> list[int]:
    return [int(message.body) for message in messages_of(answer)]


@pytest.mark.parametrize(
    ("expression", "numbers"),
    [
        ("a > 16", [17, 18, 19]),
        ("a BETWEEN 3 AND 5", [3, 4, 5]),
        ("region = 'us' AND a < 7", [0, 3, 6]),
        ("region IN ('us', 'cn') AND NOT (a <= 14)", [15, 18]),
        ("TAGS = 't1' AND a >= 17", [17, 19]),
        ("missing IS NULL AND a = 9", [9]),
        ("missing > 1 OR a = 8", [8]),
        ("region CONTAINS 'u' AND a > 18", [19]),
        ("TRUE", list(range(20))),
    ],
)
def test_an_expression_selects_messages(wire: Wire, topic: str, expression: str, numbers: list[int]) -> None:
    send(wire, topic, 20)
    answer = wire.pull(topic, 0, tags=expression, **SQL)
    assert (answer.code, bodies(answer)) == (ResponseCode.SUCCESS, numbers)
    assert answer.ext_fields == offsets(20, 0, 20)


def test_nothing_that_matches(wire: Wire, topic: str) -> None:
    send(wire, topic, 20)
    answer = wire.pull(topic, 5, tags="a = 2", **SQL)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert answer.ext_fields == offsets(20, 0, 20)
    for offset, code in ((20, ResponseCode.PULL_NOT_FOUND), (21, ResponseCode.PULL_OFFSET_MOVED)):
        assert wire.pull(topic, offset, tags="a = 2", **SQL).code == code


def test_the_next_pull_continues_after_skipped_messages(wire: Wire, topic: str) -> None:
    send(wire, topic, 50)
    found: list[int] = []
    offset = 0
    while offset < 50:
        answer = wire.pull(topic, offset, tags="region = 'us'", maxMsgNums=4, **SQL)
        assert len(bodies(answer)) <= 4
        found += bodies(answer)
        assert int(answer.ext_fields["nextBeginOffset"]) > offset
        offset = int(answer.ext_fields["nextBeginOffset"])
    assert found == list(range(0, 50, 3))


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts messages, not time, so it does not depend on the machine."""
    monkeypatch.setattr(filters, "_MAX_EXAMINE_S", 60.0)


def test_at_most_800_entries_are_examined(wire: Wire, topic: str, patience: None) -> None:
    wire.send_batch(topic, [Message.of(topic, b"", properties={"a": "0"})] * 1_000)
    ends = []
    offset = 0
    while offset < 1_000:
        answer = wire.pull(topic, offset, tags="a = 1", maxMsgNums=100_000, maxMsgBytes=1 << 23, **SQL)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        ends.append(offset := int(answer.ext_fields["nextBeginOffset"]))
    assert ends == [800, 1_000]


def test_lite_pulls_are_filtered_too(wire: Wire, topic: str) -> None:
    send(wire, topic, 20)
    for fields in (wire.pull_fields(topic, 0, tags="a > 17", **SQL), wire.pull_fields(topic, 18)):
        assert bodies(wire.ask(RequestCode.LITE_PULL_MESSAGE, **fields)) == [18, 19]


@pytest.mark.parametrize(
    ("expression", "where"),
    [("a >", "(character 4)"), ("", "(character 1)"), ("a = 'x", "(character 5)"), ("a BETWEEN 5 AND 1", "")],
)
def test_an_invalid_expression(wire: Wire, topic: str, expression: str, where: str) -> None:
    for _ in range(2):
        answer = wire.pull(topic, 0, tags=expression, **SQL)
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert (answer.remark or "").startswith("parse the consumer's subscription failed: ")
        assert where in (answer.remark or "")


def test_a_broker_without_sql92_filters(wire: Wire, topic: str) -> None:
    with wire.settings(enablePropertyFilter=False):
        answer = wire.pull(topic, 0, tags="a > 1", **SQL)
        checked = check(wire, SubscriptionData.build(topic, "a > 1", 1, "SQL92"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("The broker does not support consumer to filter message by SQL92")
    assert (checked.code, checked.remark) == (answer.code, answer.remark)


def check(wire: Wire, subscription: SubscriptionData | None) -> RemotingCommand:
    body = CheckClientRequestBody("client", "group", subscription_data=subscription)
    return wire.ask(RequestCode.CHECK_CLIENT_CONFIG, body.to_json())


def test_a_client_asks_before_it_starts(wire: Wire) -> None:
    build = SubscriptionData.build
    for subscription in (None, build("T", "a || b", 1), build("T", "a > 1", 1, "SQL92")):
        assert check(wire, subscription).code == ResponseCode.SUCCESS
    wrong = check(wire, build("T", "a > ", 1, "SQL92"))
    assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "(character 5)" in (wrong.remark or "")
    other = check(wire, build("T", "a", 1, "XPATH"))
    assert (other.code, other.remark) == (1, "The broker does not support consumer to filter message by XPATH")
    assert wire.ask(RequestCode.CHECK_CLIENT_CONFIG).code == ResponseCode.SUCCESS


def test_the_filter_of_the_groups_heartbeats(wire: Wire, topic: str, group: str) -> None:
    send(wire, topic, 20)
    registered = {"consumerGroup": group, "sysFlag": 0, "subscription": None, "expressionType": None}
    assert wire.pull(topic, 0, **registered).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    wire.beat(subscribed(group, topic, "a > 17", 5, "SQL92"))
    assert bodies(wire.pull(topic, 0, **registered, subVersion=5)) == [18, 19]
    assert wire.pull(topic, 0, **registered, subVersion=6).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert wire.pull(f"{topic}-b", 0, **registered).code == ResponseCode.TOPIC_NOT_EXIST
    wire.beat(subscribed(group, topic, "a >", 7, "SQL92"))
    wrong = wire.pull(topic, 0, **registered, subVersion=7)
    assert wrong.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "(character 4)" in (wrong.remark or "")
    wire.beat(subscribed(group, topic, "t1", 8))
    assert len(bodies(wire.pull(topic, 0, **registered, subVersion=8))) == 10


# --- waiting ----------------------------------------------------------------------------------------------------


def test_a_held_pull_waits_until_a_message_matches(wire: Wire, topic: str, parts: BrokerParts) -> None:
    send(wire, topic, 4)
    later = wire.hold(topic, 4, tags="a = 9", **SQL)
    assert held_pulls(wire, parts, topic) == 1
    for number in range(4, 9):
        send(wire, topic, 1, number)
        assert held_pulls(wire, parts, topic) == 1
    assert not later.done()
    send(wire, topic, 2, 9)
    answer = later.result(60)
    assert (answer.code, bodies(answer)) == (ResponseCode.SUCCESS, [9])
    assert answer.ext_fields == offsets(11, 0, 11)
    assert held_pulls(wire, parts, topic) == 0


def test_a_held_pull_gets_the_offset_after_other_messages(wire: Wire, topic: str, parts: BrokerParts) -> None:
    later = wire.hold(topic, 0, tags="a = 99", **SQL)
    assert held_pulls(wire, parts, topic) == 1
    send(wire, topic, 7)
    time_is_up(parts, topic)
    answer = later.result(60)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert answer.ext_fields == offsets(7, 0, 7)


def test_a_held_pull_without_messages(wire: Wire, topic: str) -> None:
    send(wire, topic, 3)
    answer = wire.pull(topic, 3, tags="a = 99", **SQL, **{**HELD, "suspendTimeoutMillis": 200})
    assert (answer.code, answer.ext_fields) == (ResponseCode.PULL_NOT_FOUND, offsets(3, 0, 3))


def test_more_messages_than_one_pull_examines_arrive_while_it_is_held(
    wire: Wire, topic: str, patience: None, parts: BrokerParts
) -> None:
    """It is answered then, because no later event would wake it."""
    later = wire.hold(topic, 0, tags="a = 1", **SQL)
    assert held_pulls(wire, parts, topic) == 1
    wire.send_batch(topic, [Message.of(topic, b"", properties={"a": "0"})] * 900)
    answer = later.result(60)
    assert (answer.code, answer.ext_fields) == (ResponseCode.PULL_RETRY_IMMEDIATELY, offsets(800, 0, 900))


# --- over a store -----------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    config = small(tmp_path, mapped_file_size_commit_log=4 << 20)
    store = opened(config)
    yield store
    store.close()
    assert check_store(tmp_path, config) == []


def put(store: MessageStore, count: int, size: int = 10) -> None:
    for _ in range(count):
        number = max(store.get_max_offset("T", 0), 0)
        properties = f"a\x01{number}".encode()
        store.put_message("T", 0, b"x" * size, properties, born_timestamp=1, born_host=("127.0.0.1", 1))


def matching(
    store: MessageStore, text: str, offset: int = 0, *, msgs: int = 32, size: int = 1 << 20, most: int = 800
) -> GetMessageResult:
    return get_matching(store, "T", 0, offset, msgs, size, parse_sql92(text).matches, most)


def numbers(result: GetMessageResult) -> list[int]:
    assert result.count == len(decode_messages(result.records))
    return [message.queue_offset for message in decode_messages(result.records)]


def test_every_start_and_every_bound(store: MessageStore) -> None:
    put(store, 200)
    wanted = [number for number in range(200) if number % 7 == 3 or number > 190]
    text = " OR ".join(["a > 190", *(f"a = {number}" for number in wanted if number <= 190)])
    for most in (1, 2, 79, 80, 81, 800):
        for msgs in (1, 2, 32):
            found, offset = [], 0
            while offset < 200:
                result = matching(store, text, offset, msgs=msgs, most=most)
                assert result.status in (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)
                assert offset < result.next_begin_offset <= offset + max(most, 1)
                assert result.count <= msgs
                found += numbers(result)
                offset = result.next_begin_offset
            assert found == wanted


def test_bytes_are_bounded_but_one_message_is_always_delivered(store: MessageStore) -> None:
    put(store, 12, 1_000)
    assert numbers(matching(store, "a >= 5", size=1)) == [5]
    some = matching(store, "a >= 5", size=3_500)
    assert numbers(some) == [5, 6, 7]
    assert some.next_begin_offset == 8


def test_large_records_are_not_all_examined(store: MessageStore, patience: None) -> None:
    put(store, 40, 1 << 20)
    result = matching(store, "a = 39")
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 16)


def test_a_long_expression_is_evaluated_for_fewer_messages(store: MessageStore) -> None:
    put(store, 200)
    text = " OR ".join(f"b = {number} OR a = {number}" for number in range(150, 1_500))
    found, offset, pulls = [], 0, 0
    while offset < 200:
        result = matching(store, text, offset)
        assert result.next_begin_offset > offset
        found += numbers(result)
        offset = result.next_begin_offset
        pulls += 1
    assert found == list(range(150, 200))
    assert pulls > 3


def test_a_queue_with_later_damage(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages before it are delivered; a pull at that place gets an error."""
    put(store, 200)
    get_message = store.get_message

    def wrong_from_160(topic: str, queue_id: int, offset: int, *bounds: Any) -> GetMessageResult:
        if offset >= 160:
            raise StoreCorruptError("wrong")
        return get_message(topic, queue_id, offset, *bounds)

    monkeypatch.setattr(store, "get_message", wrong_from_160)
    result = matching(store, "a > 150")
    assert (numbers(result), result.next_begin_offset) == ([*range(151, 160)], 160)
    for text, offset in (("a > 150", 160), ("a > 170", 0)):
        with pytest.raises(StoreCorruptError):
            matching(store, text, offset)


def test_the_ends_of_a_queue(store: MessageStore) -> None:
    assert matching(store, "TRUE").status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    put(store, 3)
    assert matching(store, "TRUE", 3).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    assert matching(store, "TRUE", 4).status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
    assert matching(store, "TRUE", -1).status is GetMessageStatus.OFFSET_TOO_SMALL


def test_the_contents_of_a_message_do_not_matter(store: MessageStore) -> None:
    for host in (("127.0.0.1", 1), ("::1", 1)):
        for properties in (b"a\x011", b"a\x011\x02", b"x\x02a\x011", b"", b"\xff\x01\xfe\x02a\x011"):
            store.put_message("T", 0, b"b", properties, born_timestamp=1, born_host=host)
    result = matching(store, "a = 1")
    found: list[MessageExt] = decode_messages(result.records)
    assert [message.queue_offset for message in found] == [0, 1, 2, 4, 5, 6, 7, 9]
