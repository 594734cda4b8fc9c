"""A scripted producer of transactions, and views of their state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_rocket.model import TRANSACTION_GROUP, MessageExt
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.wire.bodies.client import HeartbeatData, ProducerData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import CheckTransactionStateRequestHeader
from spark_rocket.protocol.wire.json import loads_tolerant
from spark_rocket.store import MessageStore
from spark_rocket.store.results import PutResult
from tests.broker import java_types as java
from tests.broker.wire import Peer, Wire, messages_of
from tests.kit.clock import Clock

HALF, OP, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GOLDEN_SIZES: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1000,
}
MINUTES = 60_000


class Producer(Peer):
    """A scripted producer of one group: sends half messages, decides, and records its checks."""

    def __init__(self, address: str, clock: Clock, group: str = "GID_tx") -> None:
        super().__init__(address)
        self.group = group
        self.clock = clock

    def join(self) -> None:
        self.beat(producers=[self.group])

    def half(self, body: bytes = b"x", topic: str = "Tx", *, queue_id: int = 1, **properties: str) -> RemotingCommand:
        every = {"TRAN_MSG": "true", "PGROUP": self.group, **properties}
        answer = self.send(topic, body, every, queue_id=queue_id, f=4, g=self.clock.now)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    def decide(self, sent: RemotingCommand, decision: int, **more: object) -> RemotingCommand:
        fields: dict[str, object] = {
            "producerGroup": self.group,
            "tranStateTableOffset": sent.ext_fields["queueOffset"],
            "commitLogOffset": decode_offset_msg_id(sent.ext_fields["msgId"])[1],
            "commitOrRollback": decision,
            "msgId": sent.ext_fields["transactionId"],
            "fromTransactionCheck": False,
        }
        return self.ask(RequestCode.END_TRANSACTION, **{**fields, **more})

    def commit_half(self, sent: RemotingCommand) -> None:
        answer = self.decide(sent, COMMIT)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def rollback(self, sent: RemotingCommand) -> None:
        assert self.decide(sent, ROLLBACK).code == ResponseCode.SUCCESS

    def question(self) -> tuple[CheckTransactionStateRequestHeader, MessageExt]:
        request = self.asked.get(timeout=20)
        assert (request.code, request.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
        java.read_header(request.ext_fields, "CheckTransactionStateRequestHeader")
        (message,) = messages_of(request)
        return CheckTransactionStateRequestHeader.from_ext(request.ext_fields), message

    def answers(self, decision: int) -> RemotingCommand:
        """Take a check and respond to it."""
        header, message = self.question()
        return self.end_checked(header, message, decision)

    def end_checked(
        self, header: CheckTransactionStateRequestHeader, message: MessageExt, decision: int
    ) -> RemotingCommand:
        return self.ask(
            RequestCode.END_TRANSACTION,
            producerGroup=message.properties["PGROUP"],
            tranStateTableOffset=header.tran_state_table_offset,
            commitLogOffset=header.commit_log_offset,
            commitOrRollback=decision,
            msgId=header.msg_id,
            transactionId=header.transaction_id,
            fromTransactionCheck=True,
        )

    def asked_about(self) -> list[bytes]:
        """Bodies of all checks that were not taken yet."""
        handled = threading.Event()
        beat = HeartbeatData("client", [ProducerData(self.group)], []).to_json()
        self.ask_later(RequestCode.HEART_BEAT, beat).add_done_callback(lambda _: handled.set())  # after all handlers
        assert handled.wait(20)
        return [self.question()[1].body for _ in range(self.asked.qsize())]

    def nothing_asked(self) -> bool:
        return not self.asked_about()


def progress(directory: Path) -> dict[str, Any]:
    """Half and op offsets on disk."""
    table = loads_tolerant((directory / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    return {topic: table.get(f"{topic}@{TRANSACTION_GROUP}", {}).get("0") for topic in (HALF, OP)}


def bodies(wire: Wire, topic: str = "Tx", **more: Any) -> list[bytes]:
    return wire.bodies(topic, **{"queue_id": 1, **more})


@contextmanager
def refusing(store: MessageStore, result: PutResult, when: Callable[[str, bytes], bool]) -> Iterator[None]:
    """The store refuses messages by their topic and body."""
    put = store.put_message

    def put_message(topic: str, queue_id: int, body: Buffer, *rest: Any, **more: Any) -> PutResult:
        return result if when(topic, bytes(body)) else put(topic, queue_id, body, *rest, **more)

    store.put_message = put_message
    try:
        yield
    finally:
        store.put_message = put
