import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.session import MAX_OPAQUE, Session

from .conftest import request


def test_numbers_count_up_and_wrap_within_31_bits() -> None:
    session: Session[str] = Session(first_opaque=MAX_OPAQUE)
    assert [session.next_opaque() for _ in range(3)] == [MAX_OPAQUE, 0, 1]


def test_a_pending_request_is_taken_once() -> None:
    session: Session[str] = Session()
    session.expect(7, "seven")
    session.expect(8, "eight")
    assert len(session) == 2
    assert session.take(7) == "seven"
    assert session.take(7) is None
    assert session.take(9) is None
    assert session.drain() == ["eight"]
    assert session.drain() == []


@given(st.lists(st.binary(max_size=200), max_size=5), st.data())
def test_frames_do_not_depend_on_the_split_of_bytes(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(request(opaque=n, body=body).encode() for n, body in enumerate(bodies))
    session: Session[str] = Session()
    out: list[RemotingCommand] = []
    at = 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream) - at))
        out += map(RemotingCommand.decode, session.receive(stream[at : at + step]))
        at += step
    assert [(command.opaque, bytes(command.body)) for command in out] == list(enumerate(bodies))


def test_the_buffer_of_a_large_frame_is_filled_directly() -> None:
    first, large, last = (request(opaque=n, body=bytes([n]) * size) for n, size in enumerate((3, 100_000, 5)))
    stream = first.encode() + large.encode()
    cut = len(first.encode()) + 300
    session: Session[str] = Session()
    assert len(session.receive(stream[:cut])) == 1
    assert session.detach(200_000) is None  # less is missing
    detached = session.detach(1_000)
    assert detached is not None
    frame, filled = detached
    rest = stream[cut:]
    assert filled + len(rest) == len(frame)
    frame[filled:] = rest
    assert RemotingCommand.decode(frame) == large
    assert session.detach(0) is None
    assert RemotingCommand.decode(session.receive(last.encode())[0]) == last


def test_an_incomplete_length_has_no_buffer() -> None:
    session: Session[str] = Session()
    session.receive(b"\0\0")
    assert session.detach(0) is None


def test_a_frame_above_the_limit() -> None:
    session: Session[str] = Session(max_frame_length=1000)
    with pytest.raises(ProtocolError):
        session.receive(request(body=bytes(1000)).encode())
