"""Attributes of a value under the names of an interface."""

from __future__ import annotations

import pytest

from spark_rocket.client.admin import QueueState
from spark_rocket.common.attributes import camel_case, pick
from spark_rocket.model import MessageQueue

ROW = QueueState(MessageQueue("t", "a", 3), 5, 9, 0)


@pytest.mark.parametrize(
    ("names", "picked"),
    [
        ("min_offset messages", {"minOffset": 5, "messages": 4}),
        ("end=max_offset topic=queue.topic", {"end": 9, "topic": "t"}),
        ("last_stored_ms", {"lastStoredMs": 0}),
        ("lastUpdate=last_stored_ms? first=min_offset?", {"lastUpdate": None, "first": 5}),
        ("", {}),
    ],
)
def test_attributes_by_the_names_of_an_interface(names: str, picked: dict[str, object]) -> None:
    assert list(pick(ROW, names).items()) == list(picked.items()), "in this order"
    assert pick(None, names) == dict.fromkeys(picked)


def test_a_misspelt_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError):
        pick(ROW, "max_ofset")


def test_names_in_camel_case() -> None:
    assert [camel_case(name) for name in ("lag", "broker_offset", "put_tps_1m")] == ["lag", "brokerOffset", "putTps1m"]
