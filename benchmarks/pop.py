"""POP with the classic protocol: pop and ack a backlog, compared with pulls of the same messages."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from benchmarks.lab import QUEUES, Lab
from benchmarks.registry import Pair, benchmark
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.client.remoting_client import RemotingClient

MESSAGES = 100_000
AT_ONCE = 32
_INVISIBLE_MS = 30_000
_groups = count(1)


@benchmark("pop.ack", unit="messages/s", ceiling="pulls of 32 of the same messages")
def pop_and_ack(lab: Lab, _: str) -> Pair:
    """Four connections, with 32 messages and one batch of acks at a time."""
    topic = lab.filled(128, MESSAGES)

    def rate(work: Callable[[RemotingClient, int], int]) -> float:
        def run(number: int) -> int:
            with RemotingClient() as client:
                return work(client, number)

        begun = time.perf_counter()
        with ThreadPoolExecutor(QUEUES) as pool:
            done = sum(pool.map(run, range(QUEUES)))
        assert done == MESSAGES, done
        return MESSAGES / (time.perf_counter() - begun)

    def popped() -> float:
        group = f"poppers-{next(_groups)}"
        return rate(lambda client, number: _pop_all(client, lab.cluster.broker_address, topic, group))

    return Pair(
        popped, lambda: rate(lambda client, number: _pull_all(client, lab.cluster.broker_address, topic, number))
    )


def _ask(client: RemotingClient, address: str, code: int, body: bytes = b"", **fields: object) -> RemotingCommand:
    ext = {name: str(value) for name, value in fields.items()}
    return client.invoke(address, RemotingCommand.request(code, ext, body), timeout=30.0)


def _pop_all(client: RemotingClient, address: str, topic: str, group: str) -> int:
    done = 0
    while True:
        response = _ask(
            client,
            address,
            RequestCode.POP_MESSAGE,
            consumerGroup=group,
            topic=topic,
            queueId=-1,
            maxMsgNums=AT_ONCE,
            invisibleTime=_INVISIBLE_MS,
            pollTime=0,
            bornTime=0,
            initMode=0,
        )
        if response.code != ResponseCode.SUCCESS:
            return done
        acks, taken = _acks(response.ext_fields, topic, group)
        body = dumps_fastjson({"acks": acks})
        assert _ask(client, address, RequestCode.BATCH_ACK_MESSAGE, body).code == ResponseCode.SUCCESS
        done += taken


def _acks(ext: dict[str, str], topic: str, group: str) -> tuple[list[dict[str, object]], int]:
    """Return acks for all messages of a pop, and their number."""
    acks: list[dict[str, object]] = []
    taken = 0
    for start_info, offset_info in zip(ext["startOffsetInfo"].split(";"), ext["msgOffsetInfo"].split(";"), strict=True):
        flag, queue_id, text = offset_info.split(" ")
        start = int(start_info.rpartition(" ")[2])
        offsets = [int(offset) - start for offset in text.split(",")]
        bits = sum(1 << offset for offset in offsets)
        taken += len(offsets)
        acks.append(
            {
                "c": group,
                "t": topic,
                "r": flag,
                "so": start,
                "q": int(queue_id),
                "rq": int(ext["reviveQid"]),
                "pt": int(ext["popTime"]),
                "it": _INVISIBLE_MS,
                "b": b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode(),
            }
        )
    return acks, taken


def _pull_all(client: RemotingClient, address: str, topic: str, queue_id: int) -> int:
    offset = 0
    while True:
        response = _ask(
            client,
            address,
            RequestCode.PULL_MESSAGE,
            consumerGroup="pullers",
            topic=topic,
            queueId=queue_id,
            queueOffset=offset,
            maxMsgNums=AT_ONCE,
            sysFlag=4,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subVersion=0,
            subscription="*",
        )
        if response.code != ResponseCode.SUCCESS:
            return offset
        offset = int(response.ext_fields["nextBeginOffset"])
