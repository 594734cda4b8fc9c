"""The checkpoint's JSON is a public format: its text is pinned here byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.datasource.stream_offsets import (
    StreamOffset,
    from_tree,
    initial_offset,
    parse_offsets_option,
    parse_stream_offset,
    starts_of,
    to_tree,
)
from spark_rocket.errors import OffsetsError, OptionError
from spark_rocket.model import MessageQueue

A0 = MessageQueue("orders", "broker-a", 0)
A2 = MessageQueue("orders", "broker-a", 2)
A10 = MessageQueue("orders", "broker-a", 10)
B0 = MessageQueue("orders", "broker-b", 0)
P0 = MessageQueue("payments", "broker-a", 0)

QUEUES = st.builds(
    MessageQueue, st.sampled_from(["orders", "a%b", "Z"]), st.sampled_from(["broker-a", "b"]), st.integers(0, 2000)
)
POSITIONS = st.dictionaries(QUEUES, st.integers(0, 2**62), max_size=20)


def test_the_initial_marker_never_changes() -> None:
    assert json.dumps(initial_offset()) == '{"initial": true, "version": 1}'
    assert parse_stream_offset(initial_offset()) is None


def test_the_text_of_an_offset() -> None:
    offset = StreamOffset({A10: 5, B0: 7, A2: 0, P0: 2**40}, {B0: 6})
    assert json.dumps(offset.to_json()) == (
        '{"offsets": {"orders": {"broker-a": {"10": 5, "2": 0}, "broker-b": {"0": 7}}, '
        '"payments": {"broker-a": {"0": 1099511627776}}}, "start": {"orders": {"broker-b": {"0": 6}}}, "version": 1}'
    )


@given(POSITIONS, POSITIONS)
def test_an_offset_round_trips_and_its_text_is_canonical(
    ends: dict[MessageQueue, int], starts: dict[MessageQueue, int]
) -> None:
    offset = StreamOffset(ends, starts)
    text = json.dumps(offset.to_json())
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert parse_stream_offset(json.loads(text)) == offset
    backwards = StreamOffset(dict(reversed(ends.items())), dict(reversed(starts.items())))
    assert json.dumps(backwards.to_json()) == text


def test_the_text_contains_first_messages() -> None:
    offset = StreamOffset({A10: 5, A2: 0}, {A10: 3}, {A10: (2, 1_769_860_800_000)})
    text = json.dumps(offset.to_json())
    assert text == (
        '{"first": {"orders": {"broker-a": {"10": [2, 1769860800000]}}}, "offsets": {"orders": {"broker-a": {"10": 5, '
        '"2": 0}}}, "start": {"orders": {"broker-a": {"10": 3}}}, "version": 1}'
    )
    again = parse_stream_offset(json.loads(text))
    assert again is not None
    assert again.firsts == offset.firsts
    assert again == offset == StreamOffset({A10: 5, A2: 0}, {A10: 3}), "they do not select what to read"


def test_the_text_contains_last_messages() -> None:
    offset = StreamOffset({A10: 5}, {A10: 3}, {A10: (2, 1_769_860_800_000)}, {A10: (4, 1_769_860_803_217)})
    text = json.dumps(offset.to_json())
    assert text == (
        '{"first": {"orders": {"broker-a": {"10": [2, 1769860800000]}}}, "last": {"orders": {"broker-a": {"10": [4, '
        '1769860803217]}}}, "offsets": {"orders": {"broker-a": {"10": 5}}}, "start": {"orders": {"broker-a": {"10": '
        '3}}}, "version": 1}'
    )
    again = parse_stream_offset(json.loads(text))
    assert again == offset == StreamOffset({A10: 5}, {A10: 3})
    assert again.lasts == offset.lasts


def test_the_text_contains_unselected_queues() -> None:
    offset = StreamOffset({A10: 5}, unselected={A2: 7, B0: 9})
    text = json.dumps(offset.to_json())
    assert text == (
        '{"offsets": {"orders": {"broker-a": {"10": 5}}}, "unselected": {"orders": {"broker-a": {"2": 7}, "broker-b": '
        '{"0": 9}}}, "version": 1}'
    )
    assert parse_stream_offset(json.loads(text)) == offset
    assert offset.positions == {A10: 5, A2: 7, B0: 9}


def test_a_batch_starts_at_the_previous_end_unless_its_offset_has_a_start() -> None:
    before = StreamOffset({A0: 10, A2: 20})
    assert starts_of(before, StreamOffset({A0: 11, A2: 30, B0: 9}, {A2: 25, B0: 4})) == {A0: 10, A2: 25, B0: 4}
    assert starts_of(None, StreamOffset({A0: 11}, {A0: 3})) == {A0: 3}


def test_an_end_without_a_start_is_an_error() -> None:
    with pytest.raises(OffsetsError, match="an end but no start for orders/broker-b/0"):
        starts_of(StreamOffset({A0: 10}), StreamOffset({A0: 11, B0: 9}))


@pytest.mark.parametrize("value", [{}, {"version": 2}, {"version": "1"}, {"offsets": {}}, []])
def test_an_offset_of_another_version_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(OffsetsError, match="version"):
        parse_stream_offset(value)


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"version": 1}, "topics should be"),
        ({"version": 1, "offsets": {"t": 3}}, "brokers of t"),
        ({"version": 1, "offsets": {"t": {"b": []}}}, "queues of t/b"),
        ({"version": 1, "offsets": {"t": {"b": {"x": 1}}}}, "'x'"),
        ({"version": 1, "offsets": {"t": {"b": {"0": 5, "00": 7}}}}, "'00'"),
        ({"version": 1, "offsets": {"t": {"b": {"01": 7}}}}, "'01'"),
        ({"version": 1, "offsets": {"t": {"b": {"0": 2**63}}}}, "9223372036854775808"),
        ({"version": 1, "offsets": {"t": {"b": {"0": 1.5}}}}, "1.5"),
        ({"version": 1, "offsets": {"t": {"b": {"0": True}}}}, "true"),
        ({"version": 1, "offsets": {"t": {"b": {"0": -1}}}}, "-1"),
        ({"version": 1, "offsets": {}, "first": {"t": {"b": {"0": 5}}}}, "invalid value 5 for t/b/0, expected"),
        ({"version": 1, "offsets": {}, "first": {"t": {"b": {"0": [1, -1]}}}}, "[1, -1]"),
        ({"version": 1, "offsets": {}, "first": {"t": {"b": {"0": [1, 2, 3]}}}}, "[1, 2, 3]"),
        ({"version": 1, "offsets": {}, "last": {"t": {"b": {"0": [1]}}}}, "invalid value [1] for t/b/0"),
    ],
)
def test_a_malformed_checkpoint_is_refused_with_the_position(value: dict[str, object], wrong: str) -> None:
    with pytest.raises(OffsetsError) as caught:
        parse_stream_offset(value)
    assert wrong in str(caught.value)


def test_the_option_takes_latest_and_earliest_by_number() -> None:
    text = '{"orders": {"broker-a": {"0": 123, "2": -2, "10": -1}}}'
    assert parse_offsets_option(text, "startingOffsets") == {A0: 123, A2: -2, A10: -1}


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"orders": 1}', '{"orders": {"broker-a": {"0": -3}}}', '{"orders": {"broker-a": {"0": "1"}}}'],
)
def test_bad_json_in_an_option_names_the_option_and_shows_the_form(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_offsets_option(text, "startingOffsets")
    assert "startingOffsets" in str(caught.value)
    assert '{"topic": {"broker-a": {"0": 123' in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ('{"t": {"b": {"0": 1, "0": 2}}}', "duplicate name '0'"),
        ('{"t": {"b": {"0": 1}}, "u": {"b": {"0": 1}}, "t": {"c": {"0": 1}}}', "duplicate name 't'"),
        ('{"t": {"b": {"0": 1, "00": 2}}}', "invalid queue number '00' in t/b"),
    ],
)
def test_no_queue_is_named_twice(text: str, twice: str) -> None:
    with pytest.raises(OptionError, match=twice):
        parse_offsets_option(text, "startingOffsets")


def test_a_tree_round_trips() -> None:
    positions = {A0: 1, B0: 2, P0: 3}
    assert from_tree(to_tree(positions)) == positions


GOLDEN = sorted((Path(__file__).parents[1] / "spark" / "golden").glob("*/offsets/*"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parents[1].name)
def test_stored_offsets_round_trip(path: Path) -> None:
    text = path.read_text().strip().splitlines()[-1]
    offset = parse_stream_offset(json.loads(text))
    assert json.dumps(offset.to_json() if offset is not None else initial_offset()) == text


def test_offsets_of_all_kinds_are_stored() -> None:
    kinds = {path.parents[1].name.removeprefix("checkpoint-v1") for path in GOLDEN}
    assert kinds >= {"", "-first", "-last", "-unselected", "-waiting"}
