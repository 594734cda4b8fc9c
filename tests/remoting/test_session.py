import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.session import MAX_OPAQUE, Pending, Session

from .conftest import request


class Expected(Pending):
    """A request with the number ``opaque``, sent at 0 s."""

    def __init__(self, opaque: int, timeout: float, connect_by: float = math.inf) -> None:
        self.opaque = opaque
        self.begin(timeout, 0.0)
        self.connect_by = min(self.connect_by, connect_by)

    def respond(self, response: RemotingCommand) -> None: ...
    def fail(self, error: BaseException) -> None: ...


def test_numbers_count_up_and_wrap_within_31_bits() -> None:
    session = Session(first_opaque=MAX_OPAQUE)
    assert [session.next_opaque() for _ in range(3)] == [MAX_OPAQUE, 0, 1]


def test_a_request_leaves_the_session_once() -> None:
    session = Session()
    seven, eight, nine = requests = [Expected(opaque, opaque) for opaque in (7, 8, 9)]
    for each in requests:
        session.expect(each)
    assert len(session) == 3
    assert session.take(7) is seven
    assert session.take(7) is None
    assert session.take(1) is None
    assert session.expire(8.0) == [eight]
    assert not session.expects(8)
    assert session.drain() == [nine]
    assert session.drain() == session.expire(math.inf) == []


def test_forgetting_a_request_leaves_another_one_with_its_number() -> None:
    session = Session()
    here, elsewhere = Expected(1, 10.0), Expected(1, 10.0)
    session.expect(here)
    assert not session.forget(elsewhere)
    assert session.expects(1)
    assert session.forget(here)
    assert not session.expects(1)
    assert not session.forget(here)


def test_deadlines() -> None:
    session = Session(is_open=False)
    assert session.next_deadline == math.inf
    first, second = Expected(1, 10.0, connect_by=5.0), Expected(2, 7.0, connect_by=6.0)
    session.expect(first)
    session.expect(second)
    assert (session.next_deadline, session.expire(4.9)) == (5.0, [])
    assert (session.expire(5.0), session.next_deadline) == ([first], 6.0)
    session.is_open = True  # the deadlines for connecting have ended
    assert (session.expire(6.5), session.next_deadline) == ([], 7.0)
    session.expect(third := Expected(3, 6.9))
    assert session.next_deadline == 6.9
    assert (session.expire(7.0), session.next_deadline) == ([second, third], math.inf)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=5), st.data())
def test_frames_do_not_depend_on_the_split_of_bytes(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(request(opaque=n, body=body).encode() for n, body in enumerate(bodies))
    session = Session()
    out: list[RemotingCommand] = []
    at = 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream) - at))
        out += map(RemotingCommand.decode, session.receive(stream[at : at + step]))
        at += step
    assert [(command.opaque, bytes(command.body)) for command in out] == list(enumerate(bodies))


def test_a_large_frame_is_received_into_its_place() -> None:
    first, large, last = (request(opaque=n, body=bytes([n]) * size) for n, size in enumerate((3, 200_000, 5)))
    stream = first.encode() + large.encode()
    cut = len(first.encode()) + 150_000
    session, spare = Session(), memoryview(bytearray(1000))
    assert len(session.receive(stream[:cut])) == 1
    frames: list[memoryview] = []
    while not frames:
        assert session.in_progress
        place = session.buffer(spare)
        assert place is not spare
        part = stream[cut : cut + 30_000]
        place[: len(part)] = part
        cut += len(part)
        frames = session.filled(len(part), spare)
    (frame,) = frames
    assert RemotingCommand.decode(frame) == large
    assert (session.buffer(spare), session.in_progress) == (spare, False)
    spare[: len(last.encode())] = last.encode()
    (frame,) = session.filled(len(last.encode()), spare)
    spare[:] = bytes(1000)  # the next read
    assert RemotingCommand.decode(frame) == last


@pytest.mark.parametrize("body", [5_000, 200_000])
@pytest.mark.parametrize("step", [1_000, 1_000_000])
def test_the_rest_of_a_skipped_frame_is_discarded(body: int, step: int) -> None:
    skipped, last = request(opaque=1, body=bytes(body)), request(opaque=2)
    stream = skipped.encode() + last.encode()
    session = Session()
    assert session.receive(stream[: body // 2]) == []
    assert session.begun_frame(10) == skipped.encode()[4:14]
    session.skip()
    assert (session.unfinished_bytes, session.in_progress) == (0, True)
    frames = [frame for at in range(body // 2, len(stream), step) for frame in session.receive(stream[at : at + step])]
    assert [RemotingCommand.decode(frame).opaque for frame in frames] == [2]
    assert not session.in_progress


def test_a_frame_above_the_limit() -> None:
    session = Session(max_frame_length=1000)
    with pytest.raises(ProtocolError):
        session.receive(request(body=bytes(1000)).encode())
