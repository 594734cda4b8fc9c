"""``tags`` and ``sqlFilter``: filters at the broker, in batches and streams."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException

from spark_rocket.model import Message
from tests.spark.conftest import Rocket


def test_brokers_filter_by_tags_and_by_sql(mq: Rocket, run: Callable[..., list[str]]) -> None:
    topic = mq.topic(2)
    for queue in (0, 1):
        messages = [
            Message.of(topic, f"{queue}-{n}", tags=("AaAa", "BBBB", "c")[n % 3], properties={"price": str(n)})
            for n in range(300)
        ]
        mq.producer.send(messages, queue=mq.queues(topic)[queue])
    every = [f"{queue}-{n}" for queue in (0, 1) for n in range(300)]
    tagged = [body for body in every if int(body[2:]) % 3 != 1]
    assert sorted(mq.bodies(topic, tags="AaAa || c")) == sorted(tagged), "BBBB has the hash of AaAa"
    assert mq.bodies(topic, tags="missing") == []
    assert sorted(mq.bodies(topic, tags="*")) == sorted(every)
    dear = [body for body in every if int(body[2:]) > 290]
    assert sorted(mq.bodies(topic, sqlFilter="price > 290", minPartitions=5)) == sorted(dear)

    stream = mq.stream(topic, tags="c", startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert sorted(run(stream, limited=True)) == sorted(body for body in every if int(body[2:]) % 3 == 2)
    mq.producer.send(Message.of(topic, "x", tags="c"), queue=mq.queues(topic)[0])
    mq.producer.send(Message.of(topic, "y", tags="AaAa"), queue=mq.queues(topic)[0])
    assert run(stream, limited=True) == ["x"], "the checkpoint counts all messages, chosen or not"


def test_an_invalid_filter_fails_before_the_first_task(mq: Rocket) -> None:
    topic = mq.topic(1)
    for options, text in (
        ({"sqlFilter": "price >"}, "option sqlFilter is 'price >'"),
        ({"sqlFilter": "a = 1", "tags": "b"}, "option sqlFilter cannot be combined with tags"),
    ):
        with pytest.raises(PySparkException, match=text):
            mq.read(topic, **options).count()
