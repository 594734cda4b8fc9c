"""HPACK against the RFC's examples and against PyPI's hpack."""

from __future__ import annotations

import hpack as other
import pytest
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.proxy import huffman
from spark_rocket.proxy.hpack import STATIC, Decoder, HpackError, integer, literal
from spark_rocket.proxy.huffman import HuffmanError

# RFC 7541, C.3 to C.6: the size of the table allowed; blocks, each with its fields and the table's size behind it.
_GET = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
_REQUESTS = [
    (_GET, 57),
    ([*_GET, (b"cache-control", b"no-cache")], 110),
    (
        [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":path", b"/index.html"),
            (b":authority", b"www.example.com"),
            (b"custom-key", b"custom-value"),
        ],
        164,
    ),
]
_FOUND = [
    (b":status", b"302"),
    (b"cache-control", b"private"),
    (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
    (b"location", b"https://www.example.com"),
]
_RESPONSES = [
    (_FOUND, 222),
    ([(b":status", b"307"), *_FOUND[1:]], 222),
    (
        [
            (b":status", b"200"),
            (b"cache-control", b"private"),
            (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
            (b"location", b"https://www.example.com"),
            (b"content-encoding", b"gzip"),
            (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
        ],
        215,
    ),
]
_EXAMPLES = {
    "C.3": (
        4096,
        _REQUESTS,
        """
        82868441 0f777777 2e657861 6d706c65 2e636f6d
        828684be 58086e6f 2d636163 6865
        828785bf 400a6375 73746f6d 2d6b6579 0c637573 746f6d2d 76616c75 65
        """,
    ),
    "C.4": (
        4096,
        _REQUESTS,
        """
        82868441 8cf1e3c2 e5f23a6b a0ab90f4 ff
        828684be 5886a8eb 10649cbf
        828785bf 408825a8 49e95ba9 7d7f8925 a849e95b b8e8b4bf
        """,
    ),
    "C.5": (
        256,
        _RESPONSES,
        """
        48033330 32580770 72697661 7465611d 4d6f6e2c 20323120 4f637420 32303133 2032303a 31333a32 3120474d 546e1768 \
        74747073 3a2f2f77 77772e65 78616d70 6c652e63 6f6d
        48033330 37c1c0bf
        88c1611d 4d6f6e2c 20323120 4f637420 32303133 2032303a 31333a32 3220474d 54c05a04 677a6970 7738666f 6f3d4153 \
        444a4b48 514b425a 584f5157 454f5049 55415851 57454f49 553b206d 61782d61 67653d33 3630303b 20766572 73696f6e 3d31
        """,
    ),
    "C.6": (
        256,
        _RESPONSES,
        """
        48826402 5885aec3 771a4b61 96d07abe 941054d4 44a82005 95040b81 66e082a6 2d1bff6e 919d29ad 171863c7 8f0b97c8 \
        e9ae82ae 43d3
        4883640e ffc1c0bf
        88c16196 d07abe94 1054d444 a8200595 040b8166 e084a62d 1bffc05a 839bd9ab 77ad94e7 821dd7f2 e6c7b335 dfdfcd5b \
        3960d5af 27087f36 72c1ab27 0fb5291f 95873160 65c003ed 4ee5b106 3d5007
        """,
    ),
}


def _lines(text: str) -> list[bytes]:
    return [bytes.fromhex(line) for line in text.strip().splitlines()]


@pytest.mark.parametrize("example", _EXAMPLES)
def test_examples_of_the_rfc(example: str) -> None:
    limit, expected, text = _EXAMPLES[example]
    decoder = Decoder(limit)
    for block, (fields, size) in zip(_lines(text), expected, strict=True):
        assert decoder.decode(block) == fields
        assert decoder.size == size


@pytest.mark.parametrize(
    ("block", "field", "size"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", (b"custom-key", b"custom-header"), 55),
        ("040c2f73616d706c652f70617468", (b":path", b"/sample/path"), 0),
        ("100870617373776f726406736563726574", (b"password", b"secret"), 0),
        ("82", (b":method", b"GET"), 0),
    ],
)
def test_each_representation(block: str, field: tuple[bytes, bytes], size: int) -> None:
    decoder = Decoder()
    assert decoder.decode(bytes.fromhex(block)) == [field]
    assert decoder.size == size
    assert decoder.table == ([field] if size else [])


@pytest.mark.parametrize(
    ("value", "bits", "encoded"), [(10, 5, "0a"), (1337, 5, "1f9a0a"), (42, 8, "2a"), (31, 5, "1f00")]
)
def test_integers(value: int, bits: int, encoded: str) -> None:
    assert integer(value, bits).hex() == encoded


def test_the_static_table() -> None:
    assert len(STATIC) == 61
    decoder = Decoder()
    assert decoder.decode(b"".join(integer(index, 7, 0x80) for index in range(1, 62))) == list(STATIC)
    assert tuple(other.table.HeaderTable.STATIC_TABLE) == STATIC


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # the dynamic table is empty
        b"\xff\xff\xff\xff\xff\x7f",  # an integer out of all bounds
        b"\xff\x80",  # which does not end
        b"\x3f\xe2\x1f",  # a table of 4097 bytes
        b"\x82\x20",  # a size behind a field
        b"\x40\x01a",  # no value
        b"\x00\x05ab",  # a string that is longer than its block
        b"\x00\x81\x00\x00",  # padded with zeros
        b"\x00\x84\xff\xff\xff\xff\x00",  # EOS
        b"\x00\x82\x1f\xff\x00",  # more than 7 bits of padding
        b"\x7f\xff\xff\xff\xff\x0f",
    ],
)
def test_what_is_no_block(block: bytes) -> None:
    with pytest.raises(HpackError):
        Decoder().decode(block)


def test_a_table_that_is_made_smaller_forgets() -> None:
    decoder = Decoder()
    decoder.decode(literal_with_indexing(b"a", b"1") + literal_with_indexing(b"b", b"2"))
    assert decoder.decode(b"\x3f\x03") == []  # 34 bytes
    assert decoder.table == [(b"b", b"2")]
    assert decoder.decode(b"\x20\x3f\xe1\x1f") == []  # none, then all again
    assert decoder.table == []
    assert decoder.max_size == 4096
    decoder.decode(literal_with_indexing(b"x", bytes(5000)))  # larger than the whole table
    assert decoder.size == 0


def literal_with_indexing(name: bytes, value: bytes) -> bytes:
    return b"\x40" + integer(len(name), 7) + name + integer(len(value), 7) + value


def test_runs_of_indices_follow_the_table() -> None:
    decoder = Decoder()
    decoder.decode(literal_with_indexing(b"a", b"1") + literal_with_indexing(b"b", b"2"))
    for _ in range(2):
        assert decoder.decode(b"\xbe\xbf\x82") == [(b"b", b"2"), (b"a", b"1"), (b":method", b"GET")]
    decoder.decode(literal_with_indexing(b"c", b"3"))
    assert decoder.decode(b"\xbe\xbf\x82") == [(b"c", b"3"), (b"b", b"2"), (b":method", b"GET")]


def _bits(*symbols: int) -> bytes:
    """These symbols, as the code of the RFC has them."""
    value = length = 0
    for symbol in symbols:
        code, bits = huffman.codes()[symbol]
        value = value << bits | code
        length += bits
    padding = -length % 8
    return (value << padding | (1 << padding) - 1).to_bytes((length + padding) // 8, "big")


def test_the_huffman_code_is_the_rfcs() -> None:
    assert huffman.codes() == list(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True))
    for symbol in range(256):
        for after in (ord("a"), 0, 255, symbol):
            assert huffman.decode(_bits(symbol, after)) == bytes((symbol, after))
    with pytest.raises(HuffmanError):
        huffman.decode(_bits(ord("a"), huffman.EOS))


@given(st.binary(max_size=300))
def test_huffman_strings(text: bytes) -> None:
    assert huffman.decode(_bits(*text)) == text


@given(st.binary(max_size=80))
def test_any_bytes_as_a_huffman_string(data: bytes) -> None:
    try:
        text = huffman.decode(data)
    except HuffmanError:
        return
    assert _bits(*text) == data


_names = st.sampled_from([b":path", b"te", b"user-agent", b"x-mq-client-id", b"x-a", b"authorization", b""])
_fields = st.lists(
    st.tuples(_names, st.one_of(st.sampled_from([b"", b"a", b"/x"]), st.binary(max_size=200))), max_size=12
)


@settings(max_examples=50)
@given(st.lists(st.tuples(_fields, st.booleans(), st.sampled_from([None, 0, 40, 200, 4096])), max_size=8))
def test_blocks_of_another_encoder(blocks: list[tuple[list[tuple[bytes, bytes]], bool, int | None]]) -> None:
    encoder = other.Encoder()
    decoder = Decoder()
    for fields, compressed, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        assert decoder.decode(encoder.encode(fields, huffman=compressed)) == fields
        assert decoder.table == list(encoder.header_table.dynamic_entries)
        assert decoder.size == sum(len(name) + len(value) + 32 for name, value in decoder.table) <= decoder.max_size


@given(_fields)
def test_blocks_for_another_decoder(fields: list[tuple[bytes, bytes]]) -> None:
    found = other.Decoder().decode(literal(*fields), raw=True)
    assert [(name, value) for name, value in found] == fields
    assert Decoder().decode(literal(*fields)) == fields


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_as_blocks(blocks: list[bytes]) -> None:
    decoder = Decoder()
    try:
        for block in blocks:
            assert len(decoder.decode(block)) <= len(block)
    except HpackError:
        pass
    assert 0 <= decoder.size <= decoder.max_size <= 4096


def test_blocks_cut_anywhere() -> None:
    fields = [(b":path", b"/a"), (b"x-long", b"v" * 200), (b"te", b"trailers")]
    block = other.Encoder().encode(fields)
    for end in range(len(block)):
        try:
            assert Decoder().decode(block[:end]) == fields[: len(Decoder().decode(block[:end]))]
        except HpackError:
            pass
