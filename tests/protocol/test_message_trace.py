"""Trace records, byte for byte as Apache's TraceDataEncoder puts them together."""

from __future__ import annotations

import pytest

from spark_rocket.protocol.message_trace import (
    TRANS_MSG_COMMIT,
    TraceBean,
    TraceContext,
    TraceType,
    decode_trace_data,
    encode_trace_data,
    trace_keys,
)

PUB = TraceContext(
    TraceType.Pub,
    1_700_000_000_000,
    "DefaultRegion",
    "producers",
    cost_time=3,
    trace_beans=[
        TraceBean(
            "orders",
            "7F0000010B2818B4AAC2008D5F2E0000",
            "7F00000100002A9F0000000000000000",
            "paid",
            "k1 k2",
            "127.0.0.1:10911",
            body_length=26,
        )
    ],
)
PUB_TEXT = (
    "Pub\x011700000000000\x01DefaultRegion\x01producers\x01orders\x017F0000010B2818B4AAC2008D5F2E0000\x01paid\x01k1 k2"
    "\x01127.0.0.1:10911\x0126\x013\x010\x017F00000100002A9F0000000000000000\x01true\x02"
)
BEFORE = TraceContext(
    TraceType.SubBefore,
    1_700_000_000_005,
    "DefaultRegion",
    "consumers",
    request_id="REQ1",
    trace_beans=[TraceBean(msg_id="ID1", retry_times=2, keys="k1"), TraceBean(msg_id="ID2")],
)
BEFORE_TEXT = (
    "SubBefore\x011700000000005\x01DefaultRegion\x01consumers\x01REQ1\x01ID1\x012\x01k1\x02"
    "SubBefore\x011700000000005\x01DefaultRegion\x01consumers\x01REQ1\x01ID2\x010\x01null\x02"
)
AFTER = TraceContext(
    TraceType.SubAfter,
    1_700_000_000_009,
    group_name="consumers",
    cost_time=4,
    success=False,
    request_id="REQ1",
    context_code=4,
    trace_beans=[TraceBean(msg_id="ID1", keys="k1")],
)
AFTER_TEXT = "SubAfter\x01REQ1\x01ID1\x014\x01false\x01k1\x014\x011700000000009\x01consumers\x02"
DECIDED = TraceContext(
    TraceType.EndTransaction,
    1_700_000_000_011,
    "DefaultRegion",
    "producers",
    trace_beans=[
        TraceBean(
            "orders",
            "ID1",
            store_host="127.0.0.1:10911",
            msg_type=TRANS_MSG_COMMIT,
            transaction_id="ID1",
            transaction_state="COMMIT_MESSAGE",
        )
    ],
)
DECIDED_TEXT = (
    "EndTransaction\x011700000000011\x01DefaultRegion\x01producers\x01orders\x01ID1\x01null\x01null\x01127.0.0.1:10911"
    "\x012\x01ID1\x01COMMIT_MESSAGE\x01false\x02"
)
RECALL = TraceContext(
    TraceType.Recall, 1_700_000_000_012, "DefaultRegion", "producers", trace_beans=[TraceBean("orders", "ID1")]
)
RECALL_TEXT = "Recall\x011700000000012\x01DefaultRegion\x01producers\x01orders\x01ID1\x01true\x02"

CASES = [(PUB, PUB_TEXT), (BEFORE, BEFORE_TEXT), (AFTER, AFTER_TEXT), (DECIDED, DECIDED_TEXT), (RECALL, RECALL_TEXT)]


@pytest.mark.parametrize(("context", "text"), CASES, ids=lambda value: getattr(value, "trace_type", None))
def test_golden(context: TraceContext, text: str) -> None:
    assert encode_trace_data(context) == text
    decoded = decode_trace_data(text.encode())
    assert [bean for one in decoded for bean in one.trace_beans] == context.trace_beans
    context.trace_beans, kept = context.trace_beans[-1:], context.trace_beans
    assert decoded[-1] == context
    context.trace_beans = kept


def test_several_records_of_one_body() -> None:
    decoded = decode_trace_data("".join(text for _, text in CASES))
    kinds = [one.trace_type.value for one in decoded]
    assert kinds == ["Pub", "SubBefore", "SubBefore", "SubAfter", "EndTransaction", "Recall"]


def test_records_of_older_and_newer_clients() -> None:
    fields = PUB_TEXT.rstrip("\x02").split("\x01")
    (oldest,) = decode_trace_data("\x01".join(fields[:12] + fields[13:]))
    assert (oldest.success, oldest.trace_beans[0].offset_msg_id) == (True, "")
    (newest,) = decode_trace_data("\x01".join([*fields, "10.0.0.1@1"]))
    assert (newest.success, newest.trace_beans[0].client_host) == (True, "10.0.0.1@1")
    (old_after,) = decode_trace_data("SubAfter\x01REQ\x01ID\x014\x01true\x01null\x02")
    assert (old_after.cost_time, old_after.context_code, old_after.trace_beans[0].keys) == (4, 0, None)


def test_keys_find_every_message_once() -> None:
    context = TraceContext(
        TraceType.Pub, trace_beans=[TraceBean(msg_id="A", keys="x y"), TraceBean(msg_id="B", keys="x")]
    )
    assert trace_keys(context) == ["A", "x", "y", "B"]


def test_separators_in_values_do_not_cut_records() -> None:
    context = TraceContext(TraceType.Recall, 1, trace_beans=[TraceBean("to\x01pic", "I\x02D")])
    (decoded,) = decode_trace_data(encode_trace_data(context))
    assert decoded.trace_beans[0].topic == "to pic"


@pytest.mark.parametrize("text", [text for _, text in CASES])
def test_every_truncation_is_read_or_left_out(text: str) -> None:
    for end in range(len(text)):
        decode_trace_data(text[:end])
