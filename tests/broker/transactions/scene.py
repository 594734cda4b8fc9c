"""A scripted producer of transactions, and views of their state."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from spark_rocket.model import TRANSACTION_GROUP, MessageExt
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.bodies.client import HeartbeatData, ProducerData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import CheckTransactionStateRequestHeader
from spark_rocket.protocol.wire.json import loads_tolerant
from spark_rocket.remoting.client.remoting_client import RemotingClient
from tests.broker import java_types as java
from tests.broker.wire import Wire
from tests.kit.clock import Clock

HALF, OP, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GOLDEN_SIZES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1000,
}
MINUTES = 60_000


class Producer:
    """A scripted producer of one group: sends half messages, decides, and records its checks."""

    def __init__(self, address: str, clock: Clock, group: str = "GID_tx") -> None:
        self.asked: SimpleQueue[RemotingCommand] = SimpleQueue()
        self.client = RemotingClient(request_handler=self._keep)
        self.wire = Wire(self.client, address)
        self.group = group
        self.clock = clock

    def _keep(self, address: str, request: RemotingCommand) -> None:
        self.asked.put(request)

    def join(self) -> None:
        assert self.wire.ask(RequestCode.HEART_BEAT, self._heartbeat()).code == ResponseCode.SUCCESS

    def _heartbeat(self) -> bytes:
        return HeartbeatData("client", [ProducerData(self.group)], []).to_json()

    def half(self, body: bytes = b"x", topic: str = "Tx", *, queue_id: int = 1, **properties: str) -> RemotingCommand:
        every = {"TRAN_MSG": "true", "PGROUP": self.group, **properties}
        answer = self.wire.send(topic, body, every, queue_id=queue_id, f=4, g=self.clock.now)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    def end(self, sent: RemotingCommand, decision: int, **more: object) -> RemotingCommand:
        fields: dict[str, object] = {
            "producerGroup": self.group,
            "tranStateTableOffset": sent.ext_fields["queueOffset"],
            "commitLogOffset": decode_offset_msg_id(sent.ext_fields["msgId"])[1],
            "commitOrRollback": decision,
            "msgId": sent.ext_fields["transactionId"],
            "fromTransactionCheck": False,
        }
        return self.wire.ask(RequestCode.END_TRANSACTION, **{**fields, **more})

    def commit(self, sent: RemotingCommand) -> None:
        answer = self.end(sent, COMMIT)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def rollback(self, sent: RemotingCommand) -> None:
        assert self.end(sent, ROLLBACK).code == ResponseCode.SUCCESS

    def question(self) -> tuple[CheckTransactionStateRequestHeader, MessageExt]:
        request = self.asked.get(timeout=20)
        assert (request.code, request.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
        java.read_header(request.ext_fields, java.CHECK_TRANSACTION)
        (message,) = decode_messages(bytes(request.body))
        return CheckTransactionStateRequestHeader.from_ext(request.ext_fields), message

    def answer(self, decision: int) -> RemotingCommand:
        """Take a check and respond to it."""
        header, message = self.question()
        return self.end_checked(header, message, decision)

    def end_checked(
        self, header: CheckTransactionStateRequestHeader, message: MessageExt, decision: int
    ) -> RemotingCommand:
        return self.wire.ask(
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
        heartbeat = RemotingCommand.request(RequestCode.HEART_BEAT, {}, self._heartbeat())
        promise = self.client.invoke_async(self.wire.address, heartbeat, timeout=20.0)
        promise.add_done_callback(lambda _: handled.set())  # runs after the handler of whatever was sent before
        assert handled.wait(20)
        return [self.question()[1].body for _ in range(self.asked.qsize())]

    def nothing_asked(self) -> bool:
        return not self.asked_about()


def progress(directory: Path) -> dict[str, Any]:
    """Half and op offsets on disk."""
    table = loads_tolerant((directory / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    return {topic: table.get(f"{topic}@{TRANSACTION_GROUP}", {}).get("0") for topic in (HALF, OP)}


def bodies(wire: Wire, topic: str = "Tx", **more: Any) -> list[bytes]:
    return [message.body for message in wire.messages(topic, **{"queue_id": 1, **more})]


def end_of(wire: Wire, topic: str) -> int:
    return int(wire.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=0).ext_fields["offset"])
