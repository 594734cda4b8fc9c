"""`python -m benchmarks.overload_load VERB JSON`: many clients, and clients that send without limit.

Like `benchmarks.load`: bare sockets, prebuilt frames, one JSON object on one line; works with any server.
Times are `time.monotonic`, which all processes of this machine share.
"""

from __future__ import annotations

import json
import os
import random
import re
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import frames
from benchmarks.load import connect, first_offset, next_offset, percentiles, receive_frame
from spark_rocket.protocol.wire.bodies.client import HeartbeatData, ProducerData
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand

_CHUNK = 100  # requests written at once
_OK, _BUSY = b'"code":0', b'"code":2'  # no other code in a send's response begins like this
_CODE = re.compile(rb'"code":(\d+)')
_LONGEST = 16  # bytes that may be split between two reads


def heartbeat(name: str) -> bytes:
    """Build a heartbeat, which a producer sends every 30 s."""
    body = HeartbeatData(client_id=name, producer_data_set=[ProducerData("benchmark")]).to_json()
    return RemotingCommand.request(RequestCode.HEART_BEAT, {}, body).encode()


def memory(pid: int) -> dict[str, float]:
    """Return MiB of a process: peak memory, and current memory without mapped files."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {"most": int(status["VmHWM"].split()[0]) / 1024, "own": int(status["RssAnon"].split()[0]) / 1024}


def idle(port: int, topic: str, idle: int, held: int, rate: int, count: int, size: int, pid: int) -> dict[str, Any]:
    """Open connections that send one heartbeat, and one held pull per queue; send messages to any of the queues.

    Measures milliseconds from just before a message is sent until it arrives, and the server's memory.
    """
    quiet = []
    for number in range(idle):
        connection = connect(port)
        connection.sendall(heartbeat(f"idle-{number}"))
        quiet.append(connection)
        if number % 100 == 99:
            for one in quiet[-100:]:
                receive_frame(one)
    return {**deliver(port, topic, held, rate, count, size), "MiB": memory(pid)["most"], "idle": len(quiet)}


def deliver(port: int, topic: str, held: int, rate: int, count: int, size: int) -> dict[str, Any]:
    """Send messages at a rate, each to any of the held pulls."""
    chooser = selectors.DefaultSelector()
    producer = connect(port)
    chooser.register(producer, selectors.EVENT_READ, -1)
    pulls = [connect(port) for _ in range(held)]
    bodies = [frames.send(topic, queue, frames.payload(size)) for queue in range(held)]
    for body in bodies:  # a queue's first message creates its file
        producer.sendall(body)
        receive_frame(producer)
    sent_at: list[deque[int]] = [deque() for _ in range(held)]
    for queue, connection in enumerate(pulls):
        connection.sendall(frames.pull(topic, queue, first_offset(connection, topic, queue)))
        chooser.register(connection, selectors.EVENT_READ, queue)
    waits: list[int] = []

    def look(timeout: float) -> None:
        for key, _ in chooser.select(timeout):
            assert isinstance(key.fileobj, socket.socket)
            response = receive_frame(key.fileobj)
            queue: int = key.data
            if queue < 0 or not sent_at[queue]:
                continue  # a send's response, or a pull that timed out
            waits.append(time.perf_counter_ns() - sent_at[queue].popleft())
            key.fileobj.sendall(frames.pull(topic, queue, next_offset(response)))

    turns = random.Random(7)
    begun = time.perf_counter()
    for number in range(count):
        while (left := begun + number / rate - time.perf_counter()) > 0:
            look(left)
        queue = turns.randrange(held)
        while sent_at[queue]:  # one message per pull
            if all(sent_at):
                look(1.0)
            queue = turns.randrange(held)
        sent_at[queue].append(time.perf_counter_ns())
        producer.sendall(bodies[queue])
    give_up = time.perf_counter() + 20
    while len(waits) < count and time.perf_counter() < give_up:
        look(0.1)
    if len(waits) != count:
        raise RuntimeError(f"{count} messages sent, {len(waits)} delivered")
    return percentiles(waits)


def echoes(port: int, idle: int, held: int, rate: int, count: int, pid: int) -> dict[str, Any]:
    """The same with a server that responds to every frame at once: one request at a time, on any connection."""
    quiet = [connect(port) for _ in range(idle + held)]
    frame = heartbeat("idle")
    for connection in quiet:
        connection.sendall(frame)
        receive_frame(connection)
    waits = []
    turns = random.Random(7)
    begun = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        connection = turns.choice(quiet)
        asked = time.perf_counter_ns()
        connection.sendall(frame)
        receive_frame(connection)
        waits.append(time.perf_counter_ns() - asked)
    return {**percentiles(waits), "MiB": memory(pid)["most"]}


def flood(port: int, topic: str, size: int, conns: int, rate: int, seconds: float) -> dict[str, Any]:
    """Send at a rate without waiting for responses, as far as the server's sockets accept the bytes."""
    os.nice(5)  # a real flood would come from another machine
    chunk = b"".join(frames.send(topic, queue % 4, frames.payload(size)) for queue in range(_CHUNK))
    connections = [connect(port) for _ in range(conns)]
    chooser = selectors.DefaultSelector()
    left: dict[socket.socket, memoryview] = {}
    tails: dict[socket.socket, bytes] = {}
    for connection in connections:
        connection.setblocking(False)
        chooser.register(connection, selectors.EVENT_READ)
        tails[connection] = b""
    offered = sent = ok = busy = 0
    begun = time.monotonic()
    end = begun + seconds
    last_write = begun
    while True:
        now = time.monotonic()
        if now < end:
            due = int((now - begun) * rate)
            for connection in connections:
                if offered >= due:
                    break
                offered += _CHUNK
                data = left.get(connection) or memoryview(chunk)
                try:
                    done = connection.send(data)
                except BlockingIOError:
                    continue
                if done == len(data):
                    left.pop(connection, None)
                    sent += _CHUNK
                else:
                    left[connection] = data[done:]
                last_write = time.monotonic()
            random.shuffle(connections)
        elif ok + busy >= sent or now > end + 10:
            break
        for key, _ in chooser.select(0.001):
            assert isinstance(key.fileobj, socket.socket)
            try:
                data_in = key.fileobj.recv(1 << 18)
            except BlockingIOError:
                continue
            if not data_in:
                raise ConnectionError("the server closed the connection")
            text = tails[key.fileobj] + data_in
            ok += text.count(_OK)
            busy += text.count(_BUSY)
            cut = max(text.rfind(_OK), text.rfind(_BUSY))
            tails[key.fileobj] = text[max(len(text) - _LONGEST, cut + len(_OK)) :]
    return {"offered": offered, "sent": sent, "ok": ok, "busy": busy, "end": last_write, "seconds": seconds}


def probe(port: int, topic: str, seconds: float, pid: int) -> dict[str, Any]:
    """One well-behaved client: alternate heartbeats and sends, 100 pairs per second; also the server's memory.

    Returns for each request its start, its duration (seconds) and its response code.
    """
    connection = connect(port)
    pair = (heartbeat("probe"), frames.send(topic, 0, frames.payload(128)))
    seen: list[tuple[float, float, int, int]] = []
    most = 0.0
    begun = time.monotonic()
    while (now := time.monotonic()) < begun + seconds:
        for kind, frame in enumerate(pair):
            asked = time.monotonic()
            connection.sendall(frame)
            response = receive_frame(connection)
            code = _CODE.search(response)
            assert code is not None
            found = int(code[1])
            seen.append((asked, time.monotonic() - asked, kind, found))
        most = max(most, memory(pid)["own"])
        time.sleep(max(0.0, 0.01 - (time.monotonic() - now)))
    return {"seen": seen, "MiB": most}


VERBS: dict[str, Callable[..., dict[str, Any]]] = {"idle": idle, "echoes": echoes, "flood": flood, "probe": probe}

if __name__ == "__main__":
    print(json.dumps(VERBS[sys.argv[1]](**json.loads(sys.argv[2]))))
