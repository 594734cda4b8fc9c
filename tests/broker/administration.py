"""Requests that create and query topics."""

from __future__ import annotations

from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from tests.broker.wire import Wire


def create(wire: Wire, topic: str, **fields: object) -> tuple[int, str]:
    defaults = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": False,
    }
    answer = wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **{**defaults, **fields})
    return answer.code, answer.remark or ""


def topic_config(wire: Wire, topic: str) -> TopicConfig | None:
    answer = wire.ask(RequestCode.GET_TOPIC_CONFIG, topic=topic)
    return TopicConfig.from_json(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else None
