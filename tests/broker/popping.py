"""A consumer that pops over the wire."""

from __future__ import annotations

import time
from concurrent.futures import Future

from spark_rocket.model import MessageExt
from spark_rocket.protocol.ids import ExtraInfo
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.broker.wire import Wire, messages_of

INVISIBLE = 60_000
SOME, NONE = {"hasMsg": "true", "pollingFull": "false"}, {"hasMsg": "false", "pollingFull": "false"}
Taken = list[tuple[MessageExt, str]]


class Popper:
    """One consumer of a group; ``more``: fields of all its pops."""

    def __init__(self, wire: Wire, group: str, topic: str, **more: object) -> None:
        self.wire = wire
        self.group = group
        self.topic = topic
        self.more = more

    def send(self, *texts: bytes, queue_id: int = 0, properties: dict[str, str] | None = None) -> None:
        for text in texts:
            assert self.wire.send(self.topic, text, properties, queue_id=queue_id).code == ResponseCode.SUCCESS

    def _pop_fields(self, fields: dict[str, object]) -> dict[str, object]:
        """A ``bornTime`` of 0 is now by the broker's clock, however long the request takes."""
        asked = {"consumerGroup": self.group, "topic": self.topic, "queueId": -1, "maxMsgNums": 32, "initMode": 0}
        return {**asked, "invisibleTime": INVISIBLE, "pollTime": 0, "bornTime": 0, **self.more, **fields}

    def pop(self, **fields: object) -> RemotingCommand:
        return self.wire.ask(RequestCode.POP_MESSAGE, **self._pop_fields(fields))

    def pop_later(self, **fields: object) -> Future[RemotingCommand]:
        return self.wire.ask_later(RequestCode.POP_MESSAGE, **self._pop_fields({"pollTime": 60_000, **fields}))

    def take(self, **fields: object) -> Taken:
        return taken(self.pop(**fields))

    def take_bodies(self, **fields: object) -> list[bytes]:
        return [message.body for message, _ in self.take(**fields)]

    def ack(self, message: MessageExt, receipt: str, **fields: object) -> RemotingCommand:
        return self.wire.ask(RequestCode.ACK_MESSAGE, **{**self._place(message, receipt), **fields})

    def ack_all(self, popped: Taken) -> None:
        for message, receipt in popped:
            assert self.ack(message, receipt).code == ResponseCode.SUCCESS

    def change(self, message: MessageExt, receipt: str, invisible: int) -> RemotingCommand:
        fields = {**self._place(message, receipt), "invisibleTime": invisible}
        return self.wire.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields)

    def _place(self, message: MessageExt, receipt: str) -> dict[str, object]:
        place = {"topic": self.topic, "queueId": message.queue_id, "offset": message.queue_offset}
        return {"consumerGroup": self.group, "extraInfo": receipt, **place}

    def notification(self, **fields: object) -> dict[str, str]:
        return self.notification_later(**{"pollTime": 0, **fields}).result(30).ext_fields

    def notification_later(self, **fields: object) -> Future[RemotingCommand]:
        asked = {"consumerGroup": self.group, "topic": self.topic, "queueId": -1, "pollTime": 60_000}
        return self.wire.ask_later(RequestCode.NOTIFICATION, **{**asked, "bornTime": now(), **fields})

    def polling_num(self, queue_id: int = -1) -> str:
        answer = self.wire.ask(RequestCode.POLLING_INFO, consumerGroup=self.group, topic=self.topic, queueId=queue_id)
        return answer.ext_fields["pollingNum"]

    def peek(self, **fields: object) -> RemotingCommand:
        asked = {"consumerGroup": self.group, "topic": self.topic, "queueId": -1, "maxMsgNums": 32}
        return self.wire.ask(RequestCode.PEEK_MESSAGE, **{**asked, **fields})


def now() -> int:
    return int(time.time() * 1000)


def taken(answer: RemotingCommand) -> Taken:
    """Messages with their receipts, built from the response like Java clients do."""
    if answer.code != ResponseCode.SUCCESS:
        assert answer.code == ResponseCode.POLLING_TIMEOUT, answer
        return []
    ext, receipts = answer.ext_fields, []
    pop_time, invisible, revive = (int(ext[name]) for name in ("popTime", "invisibleTime", "reviveQid"))
    starts = dict(entry.rsplit(" ", 1) for entry in ext["startOffsetInfo"].split(";"))
    for entry in ext["msgOffsetInfo"].split(";"):
        place, offsets = entry.rsplit(" ", 1)
        flag, queue_id = place.split(" ")
        for offset in offsets.split(","):
            start = int(starts[place])
            info = ExtraInfo(start, pop_time, invisible, revive, flag, "broker-a", int(queue_id), int(offset))
            receipts.append(info.text())
    return list(zip(messages_of(answer), receipts, strict=True))
