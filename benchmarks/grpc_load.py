"""`python -m benchmarks.grpc_load VERB JSON`: a lean gRPC client in a separate process, on bare sockets.

It writes HTTP/2 frames directly, with prebuilt header blocks, and works with any server. It trusts the server and
parses responses only where their content is needed. It prints one JSON object on one line.
"""

from __future__ import annotations

import json
import select
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

from benchmarks import frames
from spark_rocket.proxy import definitions

_FRAME = struct.Struct(">BHBBI")  # length (24 bits), type, flags, stream
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_OPEN = (1 << 31) - 1
_MOST_DATA = 16_384  # maximum bytes per frame
_WINDOW_STEP = 1 << 28  # received bytes after which the window is enlarged by as many


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """Encode a header as a literal that is not added to the table."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Connection:
    """One HTTP/2 connection with sequential calls, each on the next stream."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        more = (("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "bench"))
        mq = (("x-mq-client-id", name), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"))
        head = b"\x83\x86" + _literal(b":authority", b"127.0.0.1:%d" % port)
        self._tail = head + b"".join(_literal(a.encode(), b.encode()) for a, b in (*more, *mq))
        self._blocks: dict[str, bytes] = {}
        self._stream = -1
        self._window = 65_535  # bytes that the server still accepts
        self._stream_window = 65_535  # the same for a new call
        self._taken = 0
        self._buffer = bytearray()
        self._data: list[bytes] = []  # of the call's response
        self._acknowledged = False
        settings = struct.pack(">HI", 4, _OPEN)  # INITIAL_WINDOW_SIZE
        window_update = _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _OPEN - 65_535))
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, settings) + window_update)
        while not self._acknowledged:
            self._read()
            self._look()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def ask(self, method: str, request: bytes) -> None:
        """Start a call."""
        block = self._blocks.get(method)
        if block is None:
            path = _literal(b":path", f"/{definitions.SERVICE}/{method}".encode())
            block = self._blocks[method] = self._tail[:2] + path + self._tail[2:]
        self._stream += 2
        data = b"\x00" + struct.pack(">I", len(request)) + request
        assert len(data) <= self._stream_window, "larger than the window of a new stream"
        while self._window < len(data):
            self._read()
            self._look()
        self._window -= len(data)
        parts = [_frame(_HEADERS, _END_HEADERS, self._stream, block)]
        for start in range(0, len(data), _MOST_DATA):
            last = start + _MOST_DATA >= len(data)
            parts.append(_frame(_DATA, _END_STREAM if last else 0, self._stream, data[start : start + _MOST_DATA]))
        self._socket.sendall(b"".join(parts))

    def responses(self) -> list[bytes] | None:
        """Return the messages of the call's response once it has ended, else None."""
        while (ended := self._look()) is None and self._read_some():
            pass
        return ended

    # --- frames -----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data

    def _read_some(self) -> bool:
        """Read available bytes; return False if there are none."""
        if not select.select([self._socket], [], [], 0)[0]:  # with a timeout, MSG_DONTWAIT would wait
            return False
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data
        return True

    def _look(self) -> list[bytes] | None:
        """Parse complete frames; return the call's messages if the last one has arrived."""
        buffer, at, ended = self._buffer, 0, None
        while ended is None and len(buffer) - at >= 9:
            high, low, kind, flags, stream = _FRAME.unpack_from(buffer, at)
            size = high << 16 | low
            if len(buffer) - at < 9 + size:
                break
            at += 9 + size
            if kind == _DATA:
                self._data.append(bytes(buffer[at - size : at]))
                self._taken += size
            elif kind == _WINDOW_UPDATE and stream == 0:
                self._window += struct.unpack_from(">I", buffer, at - size)[0]
            elif kind == _SETTINGS and not flags & _ACK:
                self._settings(bytes(buffer[at - size : at]))
            elif kind == _SETTINGS:
                self._acknowledged = True
            elif kind == _PING and not flags & _ACK:
                self._socket.sendall(_frame(_PING, _ACK, 0, bytes(buffer[at - size : at])))
            elif kind in (_GOAWAY, _RESET):
                raise ConnectionError(f"frame {kind}: {bytes(buffer[at - size : at])!r}")
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                ended = list(_messages(b"".join(self._data)))
                self._data.clear()
                if not ended:
                    raise RuntimeError("a call ended without a response")
        del buffer[:at]
        if self._taken > _WINDOW_STEP:
            self._socket.sendall(_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._taken)))
            self._taken = 0
        return ended

    def _settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == 4:
                self._stream_window = value
        self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at + 1)
        yield data[at + 5 : at + 5 + size]
        at += 5 + size


# --- requests -------------------------------------------------------------------------------------------------------


def send_request(topic: str, size: int, count: int, body: bytes | None = None) -> bytes:
    """Build a SendMessage request of ``count`` messages, like a client's."""
    request = definitions.SendMessageRequest()
    for number in range(count):
        message = request.messages.add(body=body or frames.payload(size))
        message.topic.name = topic
        system = message.system_properties
        system.message_id = f"01020304050600007B0000000000{number:06X}"
        system.message_type, system.body_encoding = definitions.MessageType.NORMAL, definitions.Encoding.IDENTITY
        system.born_timestamp.seconds, system.born_host = 1_795_000_000, "bench"
    return bytes(request.SerializeToString())


def receive_request(topic: str, group: str) -> bytes:
    request = definitions.ReceiveMessageRequest(batch_size=32)
    request.group.name = group
    request.message_queue.topic.name = topic
    request.filter_expression.expression = "*"
    request.filter_expression.type = definitions.FilterType.TAG
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = 20
    return bytes(request.SerializeToString())


def ack_request(topic: str, group: str, messages: list[Any]) -> bytes:
    request = definitions.AckMessageRequest()
    request.group.name, request.topic.name = group, topic
    for message in messages:
        system = message.system_properties
        request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
    return bytes(request.SerializeToString())


def received(responses: list[bytes]) -> list[Any]:
    """Return the messages of a ReceiveMessage response."""
    parsed = map(definitions.ReceiveMessageResponse.FromString, responses)
    return [response.message for response in parsed if response.WhichOneof("content") == "message"]


def _check(responses: list[bytes]) -> None:
    status = definitions.SendMessageResponse.FromString(responses[0]).status
    if status.code != definitions.Code.OK:
        raise RuntimeError(f"not stored: {status}")


def send(port: int, topic: str, size: int, conns: int, count: int, seconds: float) -> dict[str, Any]:
    """Send with one request of ``count`` messages in flight on each connection."""
    requests = cycle([send_request(topic, size, count)])
    chooser = selectors.DefaultSelector()
    connections = [Connection(port, f"sender@{number}") for number in range(conns)]
    done = 0
    begun = time.perf_counter()
    deadline = begun + seconds
    under_way = 0
    for connection in connections:
        connection.ask("SendMessage", next(requests))
        chooser.register(connection, selectors.EVENT_READ, connection)
        under_way += 1
    while under_way:
        for key, _ in chooser.select(30):
            responses = key.data.responses()
            if responses is None:
                continue
            done += 1
            if done % 500 == 1:
                _check(responses)
            if time.perf_counter() < deadline:
                key.data.ask("SendMessage", next(requests))
            else:
                under_way -= 1
    elapsed = time.perf_counter() - begun
    for connection in connections:
        connection.close()
    return {"messages": done * count, "seconds": elapsed}


def receive(port: int, topic: str, group: str, conns: int, seconds: float) -> dict[str, Any]:
    """Receive 32 messages and ack them, repeatedly, on each connection."""
    chooser = selectors.DefaultSelector()
    connections = [Connection(port, f"receiver@{number}") for number in range(conns)]
    ask = receive_request(topic, group)
    begun = time.perf_counter()
    deadline = begun + seconds
    under_way = count = 0
    acking: set[Connection] = set()
    for connection in connections:
        connection.ask("ReceiveMessage", ask)
        chooser.register(connection, selectors.EVENT_READ, connection)
        under_way += 1
    while under_way:
        for key, _ in chooser.select(30):
            connection = key.data
            responses = connection.responses()
            if responses is None:
                continue
            if connection not in acking and (messages := received(responses)):
                acking.add(connection)
                count += len(messages)
                connection.ask("AckMessage", ack_request(topic, group, messages))
                continue
            acking.discard(connection)
            if time.perf_counter() < deadline:
                connection.ask("ReceiveMessage", ask)
            else:
                under_way -= 1
    elapsed = time.perf_counter() - begun
    for connection in connections:
        connection.close()
    return {"messages": count, "seconds": elapsed}


def held(port: int, topic: str, group: str, conns: int, rate: int, count: int, size: int) -> dict[str, Any]:
    """Hold ``conns`` polls; measure milliseconds from just before a message is sent until a poll returns it."""
    chooser = selectors.DefaultSelector()
    ask = receive_request(topic, group)
    for number in range(conns):
        consumer = Connection(port, f"holder@{number}")
        consumer.ask("ReceiveMessage", ask)
        chooser.register(consumer, selectors.EVENT_READ, consumer)
    producer = Connection(port, "sender@0")
    template = send_request(topic, size, 1, (frames.STAMP + frames.payload(size))[:size])
    at = template.index(frames.STAMP) + len(frames.STAMP) - frames.STAMP_DIGITS
    chooser.register(producer, selectors.EVENT_READ, producer)
    waits: list[int] = []
    acking: set[Connection] = set()
    free = True
    due: deque[float] = deque()

    def take(timeout: float) -> None:
        nonlocal free
        for key, _ in chooser.select(timeout):
            now = time.perf_counter_ns()
            responses = key.data.responses()
            if responses is None:
                continue
            if key.data is producer:
                free = True
            elif key.data not in acking and (messages := received(responses)):
                start = len(frames.STAMP) - frames.STAMP_DIGITS
                waits.extend(now - int(message.body[start : len(frames.STAMP)]) for message in messages)
                acking.add(key.data)
                key.data.ask("AckMessage", ack_request(topic, group, messages))
            else:
                acking.discard(key.data)
                key.data.ask("ReceiveMessage", ask)

    settled = time.perf_counter() + 0.5
    while time.perf_counter() < settled:  # until all polls are held
        take(0.1)
    begun = time.perf_counter()
    due.extend(begun + number / rate for number in range(count))
    give_up = due[-1] + 20
    while len(waits) < count and time.perf_counter() < give_up:
        left = due[0] - time.perf_counter() if due else 0.1
        if free and due and left <= 0:
            due.popleft()
            stamp = b"%0*d" % (frames.STAMP_DIGITS, time.perf_counter_ns())
            free = False
            producer.ask("SendMessage", template[:at] + stamp + template[at + frames.STAMP_DIGITS :])
        else:
            take(max(left, 0.0) if free else 0.1)
    if len(waits) != count:
        raise RuntimeError(f"{count} messages sent, {len(waits)} delivered")
    waits.sort()
    return {"p50": waits[count // 2] / 1e6, "p99": waits[min(count - 1, count * 99 // 100)] / 1e6}


VERBS: dict[str, Callable[..., dict[str, Any]]] = {"send": send, "receive": receive, "held": held}

if __name__ == "__main__":
    print(json.dumps(VERBS[sys.argv[1]](**json.loads(sys.argv[2]))))
