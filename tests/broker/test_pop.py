"""POP over the wire: codes 200050, 200051, 200151, 200053 and their answers."""

from __future__ import annotations

import base64
import time

import pytest

from spark_rocket.broker.service import BrokerService
from spark_rocket.model import MessageExt
from spark_rocket.protocol.bodies import dumps_fastjson
from spark_rocket.protocol.codes import RequestCode, ResponseCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.extra_info import ExtraInfo
from spark_rocket.protocol.record import decode_messages
from tests.broker.wire import Wire

INVISIBLE = 60_000


class Popper:
    """One consumer of a group."""

    def __init__(self, wire: Wire, group: str, topic: str) -> None:
        self.wire = wire
        self.group = group
        self.topic = topic

    def pop(self, **fields: object) -> RemotingCommand:
        ask: dict[str, object] = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": INVISIBLE,
            "pollTime": 0,
            "bornTime": int(time.time() * 1000),
            "initMode": 0,
        }
        return self.wire.ask(RequestCode.POP_MESSAGE, **{**ask, **fields})

    def take(self, **fields: object) -> list[tuple[MessageExt, str]]:
        """Messages with their receipts, made of the answer as Java clients make them."""
        answer = self.pop(**fields)
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code == ResponseCode.POLLING_TIMEOUT, answer
            return []
        return list(zip(decode_messages(bytes(answer.body)), receipts(answer), strict=True))

    def ack(self, message: MessageExt, receipt: str, **fields: object) -> RemotingCommand:
        ask: dict[str, object] = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": message.queue_id,
            "extraInfo": receipt,
            "offset": message.queue_offset,
        }
        return self.wire.ask(RequestCode.ACK_MESSAGE, **{**ask, **fields})

    def change(self, message: MessageExt, receipt: str, invisible: int) -> RemotingCommand:
        return self.wire.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            consumerGroup=self.group,
            topic=self.topic,
            queueId=message.queue_id,
            extraInfo=receipt,
            offset=message.queue_offset,
            invisibleTime=invisible,
        )


def receipts(answer: RemotingCommand) -> list[str]:
    ext = answer.ext_fields
    starts = dict(entry.rsplit(" ", 1) for entry in ext["startOffsetInfo"].split(";"))
    found = []
    for entry in ext["msgOffsetInfo"].split(";"):
        place, offsets = entry.rsplit(" ", 1)
        flag, queue_id = place.split(" ")
        for offset in offsets.split(","):
            info = ExtraInfo(
                int(starts[place]),
                int(ext["popTime"]),
                int(ext["invisibleTime"]),
                int(ext["reviveQid"]),
                flag,
                "broker-a",
                int(queue_id),
                int(offset),
            )
            found.append(info.text())
    return found


@pytest.fixture
def popper(wire: Wire, group: str, topic: str) -> Popper:
    return Popper(wire, group, topic)


def test_a_pop_gives_what_is_there_once(popper: Popper) -> None:
    for number in range(3):
        popper.wire.send(popper.topic, b"%d" % number, queue_id=1)
    answer = popper.pop(maxMsgNums=2)
    assert answer.code == ResponseCode.SUCCESS
    assert [message.body for message in decode_messages(bytes(answer.body))] == [b"0", b"1"]
    ext = answer.ext_fields
    assert (ext["startOffsetInfo"], ext["msgOffsetInfo"], ext["restNum"]) == ("0 1 0", "0 1 0,1", "1")
    assert ext["invisibleTime"] == str(INVISIBLE)
    assert 0 <= int(ext["reviveQid"]) < 8
    assert [message.body for message, _ in popper.take()] == [b"2"]
    answer = popper.pop()
    assert (answer.code, answer.ext_fields["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "0")
