"""Requests recorded from real Java clients, byte for byte, and how a real 4.9.8 broker answered them.

Each is sent over a plain socket to a broker whose topics are the recorded ones. The comparison includes the header's
spelling, the code and the names of the response's fields. Values differ with the state; other tests check them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from spark_rocket.protocol.wire.bodies.client import HeartbeatData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests import golden
from tests.broker.wire import Wire

pytestmark = pytest.mark.live

# Whose answer depends on other clients that were connected to the real broker, or that were held.
STATEFUL = {
    RequestCode.PULL_MESSAGE,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.VIEW_MESSAGE_BY_ID,
}
# Names a record of the real broker's log, which is not in ours.
ELSEWHERE = {RequestCode.CONSUMER_SEND_MSG_BACK: ResponseCode.SYSTEM_ERROR}
# Fixed in Apache's 5.x, which resets offline groups too.
DIFFERENT = {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResponseCode.SUCCESS}


def exchanges() -> list[tuple[golden.GoldenFrame, golden.GoldenFrame]]:
    by_name = {frame.name: frame for frame in golden.frames()}
    pairs = []
    for frame in golden.frames():
        if frame.index["server"] == "br" and frame.is_request and frame.index["direction"] == "client->server":
            answer = by_name.get(frame.name.replace("-request", "-response"))
            if answer is not None and frame.request_code not in STATEFUL:
                pairs.append((frame, answer))
    return pairs


@pytest.fixture(scope="module")
def connection() -> Iterator[socket.socket]:
    with LocalCluster(in_process=True) as cluster, RemotingClient() as client:
        for name in ("GoldenA", "GoldenB", "GoldenBatch", "GoldenOrder", "GoldenDelay", "GoldenTx", "GoldenRetry"):
            cluster.create_topic(name, 4)
        wire = Wire(client, cluster.broker_address)
        for frame in golden.frames():  # from 5.1 on, commits create no groups
            if frame.is_request and frame.request_code == RequestCode.UPDATE_CONSUMER_OFFSET:
                wire.create_group(RemotingCommand.decode(frame.raw[4:]).ext_fields["consumerGroup"])
        for number in range(20):  # what the recorded queries by key look for
            wire.send("GoldenA", b"x", {"KEYS": f"key-{number} second-{number}"}, queue_id=number % 4)
        host, _, port = cluster.broker_address.partition(":")
        with socket.create_connection((host, int(port))) as opened:
            opened.settimeout(20)
            yield opened


def exchange(connection: socket.socket, raw: bytes, told: list[RemotingCommand] | None = None) -> RemotingCommand:
    """Send one frame and read the one with the same id; requests of the broker go to ``told``."""
    opaque = RemotingCommand.decode(raw[4:]).opaque
    connection.sendall(raw)
    while True:
        length = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
        answer = RemotingCommand.decode(connection.recv(length, socket.MSG_WAITALL))
        if answer.is_response and answer.opaque == opaque:
            return answer
        if told is not None:
            told.append(answer)


@pytest.mark.parametrize(
    ("request_frame", "answer_frame"), exchanges(), ids=lambda frame: frame.name.removesuffix("-request")
)
def test_a_recorded_request_is_answered_as_a_real_broker_did(
    connection: socket.socket, request_frame: golden.GoldenFrame, answer_frame: golden.GoldenFrame
) -> None:
    ours = exchange(connection, request_frame.raw)
    theirs = RemotingCommand.decode(answer_frame.raw[4:])
    code = request_frame.request_code
    expected = ELSEWHERE.get(code, DIFFERENT.get(code, theirs.code))  # type: ignore[call-overload]
    # A real broker echoes the request's spelling too, but for the records it hands out without copying them (12).
    spelling = RemotingCommand.decode(request_frame.raw[4:]).serialize_type
    assert (ours.code, ours.serialize_type) == (expected, spelling), ours.remark
    if expected == theirs.code:
        assert set(theirs.ext_fields) <= set(ours.ext_fields)
        assert bool(len(ours.body)) == bool(len(theirs.body))


def test_that_there_is_something_to_compare() -> None:
    codes = {request.request_code for request, _ in exchanges()}
    assert {10, 12, 14, 15, 17, 29, 30, 31, 34, 35, 41, 42, 202, 208, 310, 320} <= codes


def test_messages_returned_with_our_offset(connection: socket.socket) -> None:
    """The recorded requests, with the offset of a message in this broker's log."""
    frames = [frame for frame in golden.frames() if frame.is_request and frame.request_code == 36]
    assert len(frames) == 3
    host, port = connection.getpeername()
    with RemotingClient() as client:
        wire = Wire(client, f"{host}:{port}")
        for number, frame in enumerate(frames):
            wire.send("GoldenRetry", b"x", {"k": str(number)})
            request = RemotingCommand.decode(frame.raw[4:])
            request.ext_fields["offset"] = str(wire.messages("GoldenRetry", number)[0].physical_offset)
            ours = exchange(connection, request.encode())
            assert (ours.code, ours.remark, ours.serialize_type) == (0, None, request.serialize_type)
        assert [m.properties["k"] for m in wire.messages("SCHEDULE_TOPIC_XXXX")] == ["0", "1", "2"]


@pytest.mark.parametrize("spelling", ["json", "bin"])
def test_a_recorded_member_is_listed_and_notified_as_by_a_real_broker(connection: socket.socket, spelling: str) -> None:
    """A heartbeat, then the group's members; the broker sends 40, as recorded but for the group's name."""
    recorded = [frame for frame in golden.frames() if frame.name.startswith(spelling) and frame.is_request]
    beat, body = next(
        (frame, data)
        for frame in recorded
        if frame.request_code == RequestCode.HEART_BEAT
        and (data := HeartbeatData.from_json(bytes(RemotingCommand.decode(frame.raw[4:]).body))).consumer_data_set
    )
    (group,) = [data.group_name for data in body.consumer_data_set]
    lists = [
        frame
        for frame in recorded
        if frame.request_code == RequestCode.GET_CONSUMER_LIST_BY_GROUP
        and RemotingCommand.decode(frame.raw[4:]).ext_fields["consumerGroup"] == group
    ]
    assert lists
    with socket.create_connection(connection.getpeername()) as member:
        member.settimeout(20)
        told: list[RemotingCommand] = []
        assert exchange(member, beat.raw, told).code == ResponseCode.SUCCESS
        for frame in lists:
            answer = exchange(member, frame.raw, told)
            assert bytes(answer.body) == b'{"consumerIdList":["%s"]}' % body.client_id.encode()
    (ours,) = told
    assert ours.ext_fields == {"consumerGroup": group}
    for frame in recorded:
        if frame.request_code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            theirs = RemotingCommand.decode(frame.raw[4:])
            assert (ours.code, ours.flag, bytes(ours.body)) == (theirs.code, theirs.flag, bytes(theirs.body))
            assert ours.ext_fields.keys() == theirs.ext_fields.keys()
