"""A broker killed under gRPC senders: acknowledged messages, transactions and recalls survive."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from spark_rocket.client import Reader
from spark_rocket.common.system import now_ms
from spark_rocket.proxy import definitions
from spark_rocket.testing import LocalCluster
from tests.proxy.caller import Caller, resource
from tests.proxy.outgoing import Type, message, send, sent

pytestmark = pytest.mark.live

Code = definitions.Code
SENDERS, ENOUGH = 4, 100


def send_until_it_fails(endpoint: str, number: int, busy: Event) -> list[str]:
    """The ids of what was acknowledged: single messages and batches in turn."""
    ids: list[str] = []
    with Caller(endpoint, f"sender@{number}") as caller:
        while True:
            batch = [message("T", b"x" * 50) for _ in range(1 if len(ids) % 2 else 5)]
            answer = send(caller, *batch)
            if answer.status.code != Code.OK:
                return ids
            ids += [entry.message_id for entry in answer.entries]
            if len(ids) > ENOUGH:
                busy.set()


def test_acknowledged_messages_survive() -> None:
    with LocalCluster(config={"recallMessageEnable": True}) as cluster, ThreadPoolExecutor(SENDERS) as pool:
        for topic in ("T", "Tx", "Late"):
            cluster.create_topic(topic, 1)
        with Caller(cluster.grpc_endpoint, "first@1") as caller:
            committed, rolled_back = (
                sent(caller, message("Tx", body, message_type=Type.TRANSACTION))[0] for body in (b"yes", b"no")
            )
            (late,) = sent(caller, message("Late", message_type=Type.DELAY, deliver_ms=now_ms() + 3_600_000))
        busy = [Event() for _ in range(SENDERS)]
        senders = [pool.submit(send_until_it_fails, cluster.grpc_endpoint, i, busy[i]) for i in range(SENDERS)]
        assert all(one.wait(30) for one in busy)
        cluster.kill_broker()
        acknowledged = {message_id for sender in senders for message_id in sender.result(30)}
        cluster.restart_broker()
        with Caller(cluster.grpc_endpoint, "second@1") as caller:
            for entry, resolution in ((committed, "COMMIT"), (rolled_back, "ROLLBACK")):
                answer = caller.call(
                    "EndTransaction",
                    topic=resource("Tx"),
                    message_id=entry.message_id,
                    transaction_id=entry.transaction_id,
                    resolution=definitions.TransactionResolution.Value(resolution),
                )
                assert answer.status.code == Code.OK
            recalled = caller.call("RecallMessage", topic=resource("Late"), recall_handle=late.recall_handle)
            assert (recalled.status.code, recalled.message_id) == (Code.OK, late.message_id)
        with Reader(cluster.name_server) as reader:
            (queue,) = reader.queues("T")
            found: list[str | None] = []
            while more := reader.messages(queue, len(found)):
                found += [one.msg_id for one in more]
            (decided,) = reader.queues("Tx")
            assert [one.body for one in reader.messages(decided, 0)] == [b"yes"]
    assert len(acknowledged) > SENDERS * ENOUGH
    assert acknowledged <= set(found)
    assert len(found) == len(set(found))
