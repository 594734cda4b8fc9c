"""`python -m benchmarks.load VERB JSON`: a lean client in a separate process, on bare sockets with prebuilt frames.

It works with any server: the broker and the echo server get the same bytes. It prints one JSON object on one line.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

from benchmarks import frames

_LENGTH = struct.Struct(">I")
_OK = re.compile(rb'"code":\s*0\b')


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_frame(connection: socket.socket) -> bytes:
    """Receive one complete frame with its length; small frames arrive in one piece."""
    data = connection.recv(65536)
    while len(data) < 4 or len(data) < 4 + _LENGTH.unpack_from(data)[0]:
        more = connection.recv(1 << 20)
        if not more:
            raise ConnectionError("the server closed the connection")
        data += more
    return data


def _check(response: bytes) -> None:
    if not _OK.search(response, 0, 400):
        raise RuntimeError(f"not stored: {response[:400]!r}")


def keep_sending(port: int, frames_of: list[bytes], conns: int, *, seconds: float, requests: int) -> dict[str, Any]:
    """Keep one request in flight on each connection, until the time or the number of requests is used up."""
    chooser = selectors.DefaultSelector()
    turns: Iterator[bytes] = cycle(frames_of)
    sent = done = 0
    begun = time.perf_counter()
    deadline = begun + seconds
    connections = [connect(port) for _ in range(min(conns, requests))]
    for connection in connections:
        connection.sendall(next(turns))
        sent += 1
        chooser.register(connection, selectors.EVENT_READ, connection)
    while done < sent:
        # A single connection waits in its own recv, which saves a system call per round trip.
        ready = connections if len(connections) == 1 else [key.data for key, _ in chooser.select(30)]
        for connection in ready:
            response = receive_frame(connection)
            done += 1
            if not done % 1000:
                _check(response)
            if sent < requests and time.perf_counter() < deadline:
                connection.sendall(next(turns))
                sent += 1
    _check(response)
    elapsed = time.perf_counter() - begun
    for connection in connections:
        connection.close()
    return {"requests": done, "seconds": elapsed}


def pipeline(port: int, frames_of: list[bytes], in_flight: int, *, seconds: float) -> dict[str, Any]:
    """Keep requests in flight on one connection, until the time is used up."""
    turns: Iterator[bytes] = cycle(frames_of)
    connection = connect(port)
    begun = time.perf_counter()
    deadline = begun + seconds
    connection.sendall(b"".join(next(turns) for _ in range(in_flight)))
    sent, done, data = in_flight, 0, b""
    while done < sent:
        data += connection.recv(1 << 16)
        position, count = 0, done
        while len(data) - position >= 4 and len(data) - position >= 4 + _LENGTH.unpack_from(data, position)[0]:
            if not done % 1000:
                _check(data[position:])
            position += 4 + _LENGTH.unpack_from(data, position)[0]
            done += 1
        data = data[position:]
        if done > count and time.perf_counter() < deadline:
            connection.sendall(b"".join(next(turns) for _ in range(done - count)))
            sent += done - count
    elapsed = time.perf_counter() - begun
    connection.close()
    return {"requests": done, "seconds": elapsed}


def send(port: int, topic: str, size: int, conns: int, seconds: float) -> dict[str, Any]:
    """Send single messages."""
    load = [frames.send(topic, queue, frames.payload(size)) for queue in range(4)]
    return keep_sending(port, load, conns, seconds=seconds, requests=1 << 60)


def batch(port: int, topic: str, size: int, conns: int, seconds: float) -> dict[str, Any]:
    """Send batches of 500."""
    load = [frames.send_batch(topic, queue, size) for queue in range(4)]
    done = keep_sending(port, load, conns, seconds=seconds, requests=1 << 60)
    return {**done, "messages": done["requests"] * frames.BATCH}


def fill(port: int, topic: str, size: int, conns: int, messages: int, queues: int = 4) -> dict[str, Any]:
    """Send ``messages`` messages in batches, spread over the queues."""
    load = [frames.send_batch(topic, queue, size) for queue in range(queues)]
    done = keep_sending(port, load, conns, seconds=600, requests=messages // frames.BATCH)
    return {**done, "messages": done["requests"] * frames.BATCH}


def percentiles(waits_ns: list[int]) -> dict[str, Any]:
    """Convert times in nanoseconds to percentiles in milliseconds."""
    waits_ns.sort()
    count = len(waits_ns)
    return {"p50": waits_ns[count // 2] / 1e6, "p99": waits_ns[min(count - 1, count * 99 // 100)] / 1e6, "count": count}


def _paced(count: int, rate: int, send_one: Callable[[], None], on_readable: Callable[[float], None]) -> None:
    """Send at the rate; wait for responses between the sends."""
    begun = time.perf_counter()
    for number in range(count):
        due = begun + number / rate
        while (left := due - time.perf_counter()) > 0:
            on_readable(left)
        send_one()


def longpoll(port: int, topic: str, rate: int, count: int, size: int, **delay: str) -> dict[str, Any]:
    """Measure milliseconds from just before a message is sent until a held pull returns it.

    With ``TIMER_DELAY_MS`` or ``DELAY="1"`` (1 s), measure from its due time.
    """
    producer, consumer = connect(port), connect(port)
    template = frames.send(topic, 0, (frames.STAMP + frames.payload(size))[:size], **delay)
    later = int(delay.get("TIMER_DELAY_MS", "1000" if delay else "0")) * 1_000_000
    at = template.index(frames.STAMP) + len(frames.STAMP) - frames.STAMP_DIGITS
    stamped = re.compile(rb"sent at (\d{%d})" % frames.STAMP_DIGITS)
    offset = first_offset(consumer, topic)
    waits: list[int] = []

    def ask() -> None:
        consumer.sendall(frames.pull(topic, 0, offset))

    def send_one() -> None:
        stamp = b"%0*d" % (frames.STAMP_DIGITS, time.perf_counter_ns())
        producer.sendall(template[:at] + stamp + template[at + frames.STAMP_DIGITS :])

    chooser = selectors.DefaultSelector()
    chooser.register(producer, selectors.EVENT_READ)
    chooser.register(consumer, selectors.EVENT_READ)

    def on_readable(timeout: float) -> None:
        nonlocal offset
        for key, _ in chooser.select(timeout):
            if key.fileobj is producer:
                producer.recv(65536)
                continue
            response = receive_frame(consumer)
            now = time.perf_counter_ns()
            offset = next_offset(response)
            waits.extend(now - later - int(stamp) for stamp in stamped.findall(response))
            ask()

    ask()
    _paced(count, rate, send_one, on_readable)
    give_up = time.perf_counter() + 10
    while len(waits) < count and time.perf_counter() < give_up:
        on_readable(0.1)
    if len(waits) != count:
        raise RuntimeError(f"{count} messages sent, {len(waits)} delivered")
    return percentiles(waits)


def _header(response: bytes) -> dict[str, Any]:
    length = _LENGTH.unpack_from(response, 4)[0] & 0xFFFFFF
    header: dict[str, Any] = json.loads(response[8 : 8 + length])
    return header


def next_offset(response: bytes) -> int:
    return int(_header(response)["extFields"]["nextBeginOffset"])


def first_offset(consumer: socket.socket, topic: str, queue: int = 0) -> int:
    """Return the queue's end, from the response to a pull far beyond it (which is not held)."""
    consumer.sendall(frames.pull(topic, queue, 1 << 40))
    return next_offset(receive_frame(consumer))


def echo(port: int, topic: str, rate: int, count: int, size: int) -> dict[str, Any]:
    """Measure the round trip of the same frames at the same rate, in milliseconds."""
    connection = connect(port)
    frame = frames.send(topic, 0, frames.payload(size))
    sent_at: list[int] = []
    waits: list[int] = []
    chooser = selectors.DefaultSelector()
    chooser.register(connection, selectors.EVENT_READ)
    response_size = len(frames.send_response())
    received = 0

    def send_one() -> None:
        sent_at.append(time.perf_counter_ns())
        connection.sendall(frame)

    def on_readable(timeout: float) -> None:
        nonlocal received
        for _ in chooser.select(timeout):
            received += len(connection.recv(65536))
            now = time.perf_counter_ns()
            while len(waits) < received // response_size:
                waits.append(now - sent_at[len(waits)])

    _paced(count, rate, send_one, on_readable)
    while len(waits) < count:
        on_readable(1.0)
    return percentiles(waits)


VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "send": send,
    "batch": batch,
    "fill": fill,
    "longpoll": longpoll,
    "echo": echo,
}

if __name__ == "__main__":
    print(json.dumps(VERBS[sys.argv[1]](**json.loads(sys.argv[2]))))
