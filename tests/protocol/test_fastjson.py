"""JSON in both of its spellings."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire import json as json_module
from spark_rocket.protocol.wire.json import (
    MAX_DEPTH,
    TextLimits,
    check_values,
    dumps_fastjson,
    dumps_standard,
    loads_tolerant,
)

QUEUE = (("brokerName", "b"), ("queueId", 0), ("topic", "t"))

# Python value, fastjson's spelling
TABLE: list[tuple[Any, str]] = [
    ({}, "{}"),
    ([], "[]"),
    ({"a": [1, -2.5, True, False, None, "x"]}, '{"a":[1,-2.5,true,false,null,"x"]}'),
    ({"brokerAddrs": {0: "h:1", 12: "h:2"}}, '{"brokerAddrs":{0:"h:1",12:"h:2"}}'),
    (
        {"t": {QUEUE: {"maxOffset": 5}, (): 1}},
        '{"t":{{"brokerName":"b","queueId":0,"topic":"t"}:{"maxOffset":5},{}:1}}',
    ),
    ({"é\n": '"\\/'}, '{"é\\n":"\\"\\\\/"}'),
    ([[[]], {"x": {}}], '[[[]],{"x":{}}]'),
    ({-1: 1 << 62}, "{-1:4611686018427387904}"),
]
CASES = pytest.mark.parametrize(("value", "text"), TABLE)


def with_text_keys(value: Any) -> Any:
    """What reading gives back: keys that are numbers come out as their text."""
    if isinstance(value, dict):
        return {str(key) if isinstance(key, int) else key: with_text_keys(item) for key, item in value.items()}
    return [with_text_keys(item) for item in value] if isinstance(value, list) else value


@CASES
def test_write(value: Any, text: str) -> None:
    assert dumps_fastjson(value).decode() == text


@CASES
def test_read(value: Any, text: str) -> None:
    wanted = with_text_keys(value)
    for data in (text, text.encode(), bytearray(text.encode()), memoryview(text.encode())):
        assert loads_tolerant(data) == wanted
    assert loads_tolerant(dumps_fastjson(value, pretty=True)) == wanted
    assert loads_tolerant(f" \t\r\n{text}\n") == wanted


@CASES
def test_every_truncation(value: Any, text: str) -> None:
    for size in range(len(text)):
        with pytest.raises(ProtocolError):
            loads_tolerant(text[:size])


@CASES
def test_trailing_text(value: Any, text: str) -> None:
    for more in ("x", "{}", ",", "]", "\0"):
        with pytest.raises(ProtocolError):
            loads_tolerant(text + more)


def test_pretty_as_configuration_files_are() -> None:
    value = {"dataVersion": {"counter": 1}, "offsetTable": {"T@G": {0: 5, 1: 6}}, "list": [1, {}], "none": {}}
    assert dumps_fastjson(value, pretty=True).decode() == (
        '{\n\t"dataVersion":{\n\t\t"counter":1\n\t},\n\t"offsetTable":{\n\t\t"T@G":{0:5,1:6\n\t\t}\n\t},\n'
        '\t"list":[\n\t\t1,\n\t\t{}\n\t],\n\t"none":{}\n}'
    )


def test_standard_is_sorted_quoted_ascii() -> None:
    assert dumps_standard({"b": {1: "é", 0: "x"}, "a": None}) == b'{"a":null,"b":{"0":"x","1":"\\u00e9"}}'
    assert dumps_standard({"b": 1, "a": {2: 3}}) == b'{"a":{"2":3},"b":1}'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"a":1,}', {"a": 1}),
        ("[1,{0:2},]", [1, {"0": 2}]),
        ("{name:1,$x_1:null}", {"name": 1, "$x_1": None}),
        ("{null:1,true:2}", {"null": 1, "true": 2}),
        ('{0:"a\x01\tb"}', {"0": "a\x01\tb"}),
        (r'{0:"\x41\v\'\0\7\n"}', {"0": "A\v'\0\7\n"}),
        (r'{0:"\\x41"}', {"0": r"\x41"}),
        (r'{0:"\ud83d\ude00"}', {"0": "😀"}),
        (r'{0:"\ud83d"}', {"0": "\N{REPLACEMENT CHARACTER}"}),
        ("{0:1e3,1:-0.5,2:NaN}", {"0": 1000.0, "1": -0.5, "2": None}),
        ("{0:-9223372036854775808}", {"0": -(1 << 63)}),
        ("{0:123456789012345678901234567890}", {"0": 123456789012345678901234567890.0}),
        ('{{"b":1,"a":2}:3}', {(("a", 2), ("b", 1)): 3}),
        ("{0:1,0:2}", {"0": 2}),
        ('{0:1,"0":2}', {"0": 2}),
    ],
)
def test_what_fastjson_takes(text: str, wanted: object) -> None:
    assert loads_tolerant(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "}",
        "nul",
        "{0}",
        "{0:}",
        "{0:1 1:2}",
        "{0:1,,}",
        "{,}",
        "[,]",
        "[1 2]",
        "[0:1]",
        "{0:1]",
        "{[0]:1}",
        "{{}:{0:1}",
        '{{"a":[1]}:1}',
        '{{"a":{}}:1}',
        "{0:word}",
        r'{0:"\q"}',
        r'{0:"\u12"}',
        '{0:"open',
        '{0:"open\\"',
        "{0:'single'}",
        "{0:01x}",
        "{0:--1}",
    ],
)
def test_what_nobody_takes(text: str) -> None:
    with pytest.raises(ProtocolError):
        loads_tolerant(text)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(ProtocolError, match="Invalid UTF-8 in JSON at byte 1"):
        loads_tolerant(b"{\xff:1}")


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{0:", "}"), ("{", ":1}")])
def test_depth_is_bounded(opening: str, closing: str) -> None:
    for depth in (MAX_DEPTH + 2, 100_000):
        with pytest.raises(ProtocolError):
            loads_tolerant("{x:" + opening * depth + "1" + closing * depth + "}")


def test_depth_of_what_is_written_is_bounded() -> None:
    value: Any = {}
    for _ in range(5000):
        value = {0: value}
    with pytest.raises(ProtocolError, match="nested deeper"):
        dumps_fastjson(value)


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"a": object()}, {(("a", b"x"),): 1}, {"a": {1, 2}}])
def test_what_cannot_be_written(value: Any) -> None:
    with pytest.raises(ProtocolError):
        dumps_fastjson(value)
    with pytest.raises(ProtocolError):
        dumps_standard(value)


def test_only_fastjson_has_objects_as_keys_and_nobody_has_fractions() -> None:
    with pytest.raises(ProtocolError):
        dumps_standard({QUEUE: 1})
    with pytest.raises(ProtocolError, match="float is not a key"):
        dumps_fastjson({1.5: 1})


keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
leaves = st.none() | st.booleans() | int64 | keys
queue_keys = st.dictionaries(keys, keys | st.integers(0, 9), max_size=3).map(lambda key: tuple(sorted(key.items())))
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | queue_keys | int64, inner, max_size=3),
    max_leaves=12,
)


@given(values, st.booleans())
def test_any_value_survives(value: Any, pretty: bool) -> None:
    assert loads_tolerant(dumps_fastjson(value, pretty=pretty)) == with_text_keys(value)


def test_long_texts_take_linear_time() -> None:
    """Not a timing test: a quadratic parser would be caught by the suite's own limit on this much text."""
    big = "{" + ",".join(f'{number}:"{"x" * 50}"' for number in range(20_000)) + "}"
    assert len(loads_tolerant(big)) == 20_000
    for hostile in ('{0:"' + "\\\\" * 500_000, "{0:" + "1" * 500_000, "{0:" + " " * 500_000, '{0:"' + "x" * 1_000_000):
        with pytest.raises(ProtocolError):
            loads_tolerant(hostile)


def test_how_much_of_its_own_spelling_a_server_reads() -> None:
    limits = TextLimits(max_values=10, max_odd_values=5, max_odd_bytes=50)
    assert loads_tolerant(b'{0:"' + b"x" * 44 + b'"}', limits) == {"0": "x" * 44}
    odd = b'{0:"' + b"x" * 100 + b'"}'
    with pytest.raises(ProtocolError, match="not standard JSON; non-standard JSON is limited to 50 bytes and 5 values"):
        loads_tolerant(odd, limits)
    assert loads_tolerant(odd.replace(b"0", b'"0"'), limits) == {"0": "x" * 100}  # standard: as long as it likes
    assert loads_tolerant(b"{0:1,1:2,2:3}", limits) == {"0": 1, "1": 2, "2": 3}
    for many in (b"{0:1,1:2,2:3,3:4,4:5}", b"[[[[[NaN]]]]]", b'{0:"' + b"\\v" * 5 + b'"}'):
        with pytest.raises(ProtocolError, match="not standard JSON"):
            loads_tolerant(many, limits)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda raw: raw.decode()])
@pytest.mark.parametrize("text", [b"[" + b"0," * 9 + b"0]", b"[" * 11 + b"]" * 11, b'[{"a":{},"b":{}},[],[],[],[],0]'])
def test_values_are_counted_before_they_are_made(text: bytes, kind: Callable[[bytes], Any]) -> None:
    assert loads_tolerant(kind(text), TextLimits(100, 100, 100)) == json.loads(text)
    with pytest.raises(ProtocolError, match="at most 10 are allowed"):
        loads_tolerant(kind(text), TextLimits(10, 100, 100))


standard = st.recursive(
    st.none() | st.booleans() | int64 | st.floats(allow_nan=False, allow_infinity=False) | keys,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(standard, st.booleans(), st.sampled_from([None, 0, "\t"]))
def test_standard_json_within_an_odd_text_is_what_json_reads(value: Any, ascii_only: bool, indent: Any) -> None:
    """The bare key has it read by the parser for fastjson's spelling; its count of values covers what it makes."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    read = loads_tolerant(f"{{bare:{text}}}", TextLimits(_objects(value) + text.count("\\") + 300, 10_000, 1 << 20))
    assert read == {"bare": json.loads(text)}
    assert repr(read["bare"]) == repr(json.loads(text))  # 1 is 1.0, and true is 1, to ==
    check_values(text, 1 + sum(map(text.count, ",[{\\")))
    assert _objects(value) <= 1 + sum(map(text.count, ",[{"))


def _objects(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_objects, inner))


def test_keys_in_keys_are_refused() -> None:
    """Each level would hash all of the levels within it."""
    with pytest.raises(ProtocolError, match="not an object of plain fields"):
        loads_tolerant("{{{0:1}:1}:1}")


# --- with orjson and without -----------------------------------------------------------------------------------------

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_both_ways_write_and_read_the_same(value: object) -> None:
    text = json_module.plain_dumps(value)
    assert json_module.loads(text) == json_module.plain_loads(text) == value
    assert json_module.plain_loads(json_module.dumps(value)) == value
    assert (
        json.loads(json_module.plain_dumps(value, sort_keys=True))
        == json.loads(json_module.dumps_sorted(value))
        == value
    )


@pytest.mark.parametrize("text", [b"NaN", b"[Infinity]", b"{'a':1}", b"{a:1}", b"[1,]", b"", b"\xff", b"[" * 100_000])
def test_what_is_not_standard(text: bytes) -> None:
    for loads in (json_module.plain_loads, json_module.loads):
        with pytest.raises(ValueError):
            loads(text)


@pytest.mark.parametrize("value", ["\ud800", {"a": b"b"}, [object()]])
def test_what_json_cannot_express(value: object) -> None:
    for dumps in (json_module.plain_dumps, json_module.dumps):
        with pytest.raises(TypeError):
            dumps(value)


def test_keys_that_are_numbers() -> None:
    value = {"b": [1.5], "a": {10: "x", 9: None}}
    assert json_module.dumps_sorted(value) == b'{"a":{"10":"x","9":null},"b":[1.5]}'
    assert json.loads(json_module.plain_dumps(value, sort_keys=True)) == json.loads(json_module.dumps_sorted(value))


@pytest.mark.live
def test_the_protocol_works_without_orjson() -> None:
    code = (
        "import sys; sys.modules['orjson'] = None; "
        "from spark_rocket.protocol.wire.command import RemotingCommand; "
        "from spark_rocket.protocol.wire import json as json_module; "
        "assert json_module.loads is json_module.plain_loads; "
        "frame = RemotingCommand.request(105, {'topic': 'ä'}).encode(); "
        "print(RemotingCommand.decode(frame[4:]).ext_fields['topic'] == 'ä')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
