"""Huffman strings of HPACK: RFC 7541, section 5.2 and appendix B.

The code is canonical: codes count up within a length, in the order of the symbols, and each length goes on where the
one before it stopped. So the 257 lengths are the whole table (256 bytes and EOS, 5 to 30 bits).

Strings are decoded a byte at a time by a machine whose states are the inner nodes of the code's tree; a state's row
says for each byte what comes out and which state follows. Rows are made when a string first comes to them, since text
needs few of the 256. A string ends right in the root or in at most 7 bits of EOS, which are all ones.

Thread-safety: all of it; two threads may make the same row, and either will do.
"""

from __future__ import annotations

from spark_rocket.errors import ProtocolError

# The length of each symbol's code, as a letter: A is 5 bits, Z is 30.
_LETTERS = (
    "ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHFIBCCCCCCCCCCCCCCCCCCCCCCDCDIOIJB"
    "KABABABBBACCBBBABCBAABCCCCCKGJIXPRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRTQRSSQQRQSRSSPRRRSRRS"
    "VVPORSRUVVVWWVTUOQVWWVWTQQVVXWWWPTPQRQQSRRUUTTVSVWVVWWWWWXWWWWWVZ"
)
EOS = 256
_ROOT = 0
_DEAD = 256  # after EOS was spelled out; there are 256 inner nodes
_KNOWN_LENGTH = 64
_KNOWN_COUNT = 4096

Row = list[tuple[bytes, int]]


class HuffmanError(ProtocolError):
    """No string of this code."""

    code = "HUFFMAN_ERROR"


def code_lengths() -> list[int]:
    """Bits of each symbol's code."""
    return [ord(letter) - ord("A") + 5 for letter in _LETTERS]


def codes() -> list[tuple[int, int]]:
    """Each symbol's code and its length."""
    found = [(0, 0)] * len(_LETTERS)
    code = bits = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(code_lengths())):
        code <<= length - bits
        bits = length
        found[symbol] = code, length
        code += 1
    return found


def _tree() -> tuple[list[list[int]], frozenset[int]]:
    """Inner nodes: what follows on 0 and on 1 (a node, or ``~symbol``); and those where a string may end."""
    nodes = [[0, 0]]
    for symbol, (code, length) in enumerate(codes()):
        at = _ROOT
        for bit in range(length - 1, 0, -1):
            side = code >> bit & 1
            if not nodes[at][side]:
                nodes.append([0, 0])
                nodes[at][side] = len(nodes) - 1
            at = nodes[at][side]
        nodes[at][code & 1] = ~symbol
    final = {_ROOT}
    at = _ROOT
    for _ in range(7):
        at = nodes[at][1]
        final.add(at)
    return nodes, frozenset(final)


_NODES, _FINAL = _tree()
_rows: list[Row] = [[] for _ in range(_DEAD)] + [[(b"", _DEAD)] * 256]
_known: dict[bytes, bytes] = {}


def _make_row(state: int) -> Row:
    row: Row = []
    for byte in range(256):
        at = state
        out = bytearray()
        for bit in range(7, -1, -1):
            at = _NODES[at][byte >> bit & 1]
            if at < 0:
                if ~at == EOS:
                    at = _DEAD
                    break
                out.append(~at)
                at = _ROOT
        row.append((bytes(out), at))
    _rows[state] = row
    return row


def decode(data: bytes) -> bytes:
    """The string. HuffmanError for what is none."""
    found = _known.get(data)
    if found is not None:
        return found
    rows = _rows
    out = bytearray()
    state = _ROOT
    for byte in data:
        emitted, state = (rows[state] or _make_row(state))[byte]
        out += emitted
    if state not in _FINAL:
        raise HuffmanError(f"{len(data)} bytes do not end as a Huffman string of HPACK does.")
    text = bytes(out)
    if len(data) <= _KNOWN_LENGTH:
        if len(_known) >= _KNOWN_COUNT:
            _known.clear()
        _known[data] = text
    return text
