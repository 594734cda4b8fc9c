from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.protocol.wire import json as json_codec

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_both_ways_write_and_read_the_same(value: object) -> None:
    text = json_codec.plain_dumps(value)
    assert json_codec.loads(text) == json_codec.plain_loads(text) == value
    assert json_codec.plain_loads(json_codec.dumps(value)) == value
    assert (
        json.loads(json_codec.plain_dumps(value, sort_keys=True)) == json.loads(json_codec.dumps_sorted(value)) == value
    )


@pytest.mark.parametrize("text", [b"NaN", b"[Infinity]", b"{'a':1}", b"{a:1}", b"[1,]", b"", b"\xff", b"[" * 100_000])
def test_what_is_not_standard(text: bytes) -> None:
    for loads in (json_codec.plain_loads, json_codec.loads):
        with pytest.raises(ValueError):
            loads(text)


@pytest.mark.parametrize("value", ["\ud800", {"a": b"b"}, [object()]])
def test_what_json_cannot_express(value: object) -> None:
    for dumps in (json_codec.plain_dumps, json_codec.dumps):
        with pytest.raises(TypeError):
            dumps(value)


def test_keys_that_are_numbers() -> None:
    value = {"b": [1.5], "a": {10: "x", 9: None}}
    assert json_codec.dumps_sorted(value) == b'{"a":{"10":"x","9":null},"b":[1.5]}'
    assert json.loads(json_codec.plain_dumps(value, sort_keys=True)) == json.loads(json_codec.dumps_sorted(value))


@pytest.mark.live
def test_the_protocol_works_without_orjson() -> None:
    code = (
        "import sys; sys.modules['orjson'] = None; "
        "from spark_rocket.protocol.wire.command import RemotingCommand; "
        "from spark_rocket.protocol.wire import json as json_codec; "
        "assert json_codec.loads is json_codec.plain_loads; "
        "frame = RemotingCommand.request(105, {'topic': 'ä'}).encode(); "
        "print(RemotingCommand.decode(frame[4:]).ext_fields['topic'] == 'ä')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
