"""Lookups by key and id read only matching rows."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

from spark_rocket.model import Message
from tests.spark.conftest import Rocket
from tests.spark.sessions import ON_CONNECT


@pytest.fixture(scope="module")
def orders(mq: Rocket) -> str:
    """600 orders in two queues, with tags and keys."""
    orders = mq.topic(2)
    for queue in (0, 1):
        mq.producer.send(
            [
                Message.of(orders, f"{queue}-{n}", tags="AB"[n % 2], keys=[f"order-{queue}-{n}", f"day-{n % 7}"])
                for n in range(300)
            ],
            queue=mq.queues(orders)[queue],
        )
    return orders


def _bodies(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def test_keys_and_ids_are_looked_up(mq: Rocket, orders: str) -> None:
    one = mq.read(orders, lookupKeys="order-1-17")
    [row] = one.collect()
    assert (bytes(row.body), row["keys"]) == (b"1-17", "order-1-17 day-3")
    if not ON_CONNECT:  # Spark Connect has no RDDs
        assert one.rdd.getNumPartitions() == 1
        assert mq.read(orders, lookupKeys="missing").rdd.getNumPartitions() == 1  # Spark's own task without rows
    assert _bodies(mq.read(orders, lookupMsgIds=f"{row.msgId},7F00")) == ["1-17"]
    several = mq.read(orders, lookupKeys="order-0-1,order-1-2,order-0-3,missing")
    assert _bodies(several) == ["0-1", "0-3", "1-2"]
    assert _bodies(several.where("queueId = 0 AND queueOffset > 1")) == ["0-3"]
    assert _bodies(mq.read(orders, lookupKeys="order-0-1,order-1-2", tags="A")) == ["1-2"]
    # 43 messages of each queue have the key, more than a broker returns: the queues are read in full.
    of_a_day = mq.read(orders, lookupKeys="day-3")
    assert of_a_day.count() == mq.read(orders).where("keys LIKE '% day-3'").count() == 86


def test_typed_rows_are_looked_up(mq: Rocket) -> None:
    """The key is not a column of the rows, and other bodies are not decoded."""
    topic = mq.topic(1)
    bodies = [b'{"id": 1}', b"not JSON", b'{"id": 3}']
    mq.producer.send([Message.of(topic, body, keys=f"k-{n}") for n, body in enumerate(bodies)])
    options = {"nameServer": mq.name_server, "subscribe": topic, "bodyFormat": "json", "lookupKeys": "k-0,k-2"}
    frame = mq.spark.read.format("rocket").options(**options).schema("id bigint").load()
    assert sorted(row.id for row in frame.collect()) == [1, 3]
