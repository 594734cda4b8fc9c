"""Avro bodies as readable text, and the process that decodes them."""

from __future__ import annotations

import io
import json
import sys
import zlib
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_rocket.console import avro, avro_process
from spark_rocket.console.avro import MAX_RECORDS, avro_text
from spark_rocket.console.avro_process import decode_avro
from spark_rocket.console.bodies import show
from spark_rocket.errors import ProtocolError

CALM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def container(schema: Any, records: list[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, schema, records, **options)
    return file.getvalue()


def test_compressed_and_uncompressed_containers() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "bytes"}]}
    records = [{"a": i, "b": b"\x01"} for i in range(200)]
    for codec in ("null", "deflate"):
        found = json.loads(avro_text(container(schema, records, codec=codec, sync_interval=100), None))
        assert found == [{"a": i, "b": "01"} for i in range(MAX_RECORDS)]


@CALM
@given(st.binary(max_size=80))
def test_a_damaged_container_is_reported(tail: bytes) -> None:
    for body in (b"Obj\x01" + tail, container("long", [1, 2])[:-20] + tail):
        shown = show(body, avro_text=avro_text)
        assert (shown["avro"] is None) == (shown["avroProblem"] is not None)


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "MAX_UNPACKED_BYTES", 10_000)
    body = container("bytes", [b"\x00" * 100_000], codec="deflate")
    assert len(body) < 1_000
    with pytest.raises(ProtocolError, match="is larger than"):
        avro_text(body, None)
    packer = zlib.compressobj(wbits=-15)
    assert len(packer.compress(b"") + packer.flush()) < 10


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "null"},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]},
        {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        ["null", {"type": "map", "values": {"type": "array", "items": "null"}}],
    ],
)
def test_arrays_of_zero_byte_elements_are_refused(schema: Any) -> None:
    # A billion of them in six bytes.
    with pytest.raises(ProtocolError, match=r"without bytes|cannot be used"):
        avro_text(b"\x80\xa8\xd6\xb9\x07\x00", json.dumps(schema))


@pytest.mark.parametrize("schema", ["", "{", '"nothing"', "[]", '{"type": "record"}', "12"])
def test_an_invalid_schema(schema: str) -> None:
    with pytest.raises(ProtocolError):
        avro_text(b"\x02", schema)


def test_a_single_object_is_read_with_a_schema() -> None:
    assert avro_text(b"\xc3\x01" + bytes(8) + b"\x54", '"long"') == "42"


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


TREE = record("Tree", next="Tree")


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        record("n.Tree", next=["null", "Tree"]),
        record("Tree", children={"type": "array", "items": "Tree"}),
        record("Tree", children={"type": "map", "values": ["null", "Tree"]}),
        record("A", b=record("B", c=["null", record("C", a="A")])),
        ["null", record("Tree", next={"type": "array", "items": ["Tree"]})],
    ],
)
def test_a_schema_that_contains_itself_is_refused(schema: Any) -> None:
    with pytest.raises(ProtocolError, match="contains itself"):
        avro_text(bytes(100), json.dumps(schema))


def test_a_container_whose_own_schema_contains_itself_is_refused() -> None:
    """Nested 50,000 times, such a value would overflow the stack of fastavro."""
    with pytest.raises(ProtocolError, match="contains itself"):
        avro_text(container(record("Tree", next=["null", "Tree"]), [{"next": None}]), None)


def test_a_type_used_twice_does_not_contain_itself() -> None:
    schema = record("Pair", left=record("Leaf", a="long"), right="Leaf")
    assert json.loads(avro_text(b"\x02\x04", json.dumps(schema))) == {"left": {"a": 1}, "right": {"a": 2}}


def nested(depth: int) -> Any:
    schema: Any = "long"
    for level in range(depth):
        schema = record(f"R{level}", a=schema)
    return schema


def by_name(depth: int) -> list[Any]:
    """The schema looks flat: each type contains the previous one."""
    return [*(record(f"T{level}", a=f"T{level - 1}" if level else "long") for level in range(depth))]


@pytest.mark.parametrize("schema", [nested(200), by_name(200), json.loads("[" * 800 + "]" * 800)])
def test_deeply_nested_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(ProtocolError, match="nested deeper"):
        avro_text(bytes(100), json.dumps(schema))


def test_normally_nested_schemas_are_read() -> None:
    assert '"a": 21' in avro_text(b"\x2a", json.dumps(nested(50)))


# --- the process ------------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_a_body_is_decoded_in_another_process() -> None:
    body = container("long", [1, 2])
    assert json.loads(decode_avro(body, None)) == [1, 2]
    assert decode_avro(b"\x54", '"long"') == "42"
    shown = show(body)
    assert (shown["kind"], shown["avro"]) == ("avro", avro_text(body, None))
    with pytest.raises(ProtocolError, match="contains itself"):
        decode_avro(bytes(10_000), json.dumps(TREE))
    assert "Invalid Avro schema" in str(show(b"x", "{")["avroProblem"])


@pytest.mark.live
def test_a_short_schema_with_a_billion_values() -> None:
    """Values have no bytes, and each type has twice as many as the previous one: a limit of time or memory applies."""
    schema = [record("T0")] + [record(f"T{n}", a=f"T{n - 1}", b=f"T{n - 1}") for n in range(1, 41)]
    with pytest.raises(ProtocolError, match="could not be decoded"):
        decode_avro(b"\x50", json.dumps(schema))
    assert decode_avro(b"\x54", '"long"') == "42"


@pytest.mark.live
@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was terminated by SIGSEGV"),
        ("import sys; sys.exit(3)", "exited with status 3"),
        ("print('nothing')", "exited with status 0"),
        ("import sys; sys.stdin.read(); import threading; threading.Event().wait()", "timeout after 0.5 s"),
    ],
)
def test_a_crash_of_the_decoder_is_reported(program: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "wait" in program:
        monkeypatch.setattr(avro_process, "WALL_SECONDS", 0.5)
    with pytest.raises(ProtocolError, match=f"could not be decoded.*{wanted}"):
        decode_avro(b"x", None, command=(sys.executable, "-c", program))


@pytest.mark.live
def test_the_decoder_process_cannot_be_started() -> None:
    with pytest.raises(ProtocolError, match="cannot start a process"):
        decode_avro(b"x", None, command=("/nowhere/python",))


@pytest.mark.live
def test_errors_of_any_schema_can_be_encoded() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_avro(b"x", '"\\ud800"')
    assert caught.value.message.encode()
