"""Filters of batch reads: the rows are those of a read without the option, and little else is read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_rocket.model import Message
from tests.spark.conftest import Rocket
from tests.spark.sessions import ON_CONNECT

SETTING = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(SETTING, "true")
    yield
    spark.conf.unset(SETTING)


@pytest.fixture(scope="module")
def topics(mq: Rocket) -> tuple[str, str]:
    """600 orders in two queues, with tags and keys, and two payments."""
    orders, payments = mq.topic(2), mq.topic(1)
    for queue in (0, 1):
        mq.producer.send(
            [
                Message.of(orders, f"{queue}-{n}", tags="AB"[n % 2], keys=[f"order-{queue}-{n}", f"day-{n % 7}"])
                for n in range(300)
            ],
            queue=mq.queues(orders)[queue],
        )
    mq.send(payments, ["p0", "p1"])
    return orders, payments


def test_filters_decide_what_is_read(mq: Rocket, topics: tuple[str, str], pushdown: None) -> None:
    orders, payments = topics
    both = f"{orders},{payments}"
    where = f"queueId = 1 AND queueOffset BETWEEN 10 AND 19 AND tags IN ('A') AND topic = '{orders}' AND flag = 0"
    rows = mq.read(both, filterPushdown="true").where(where).collect()
    assert sorted(bytes(row.body).decode() for row in rows) == [f"1-{n}" for n in range(10, 20, 2)]
    millis = int(rows[0].storeTimestamp.timestamp() * 1000)
    columns = "topic", "queueId", "queueOffset"
    everything = mq.read(both).select(*columns, "storeTimestamp", "tags", "flag").cache()
    for where in (
        f"storeTimestamp >= timestamp_millis({millis}) AND storeTimestamp < current_timestamp() AND flag IS NOT NULL",
        "tags = 'B' AND queueId <=> 0 AND NOT queueOffset = 7 AND queueOffset IN (1, 2, 7, 249, 9999)",
        f"topic IN ('{payments}', 'elsewhere') OR queueOffset = 3",
    ):
        pushed = mq.read(both, filterPushdown="true").where(where).select(*columns).collect()
        assert pushed
        assert sorted(pushed) == sorted(everything.where(where).select(*columns).collect()), where
    later = mq.read(both, filterPushdown="true").where("storeTimestamp > current_timestamp() + INTERVAL 1 HOUR")
    assert later.count() == 0
    everything.unpersist()


def test_keys_and_ids_are_looked_up(mq: Rocket, topics: tuple[str, str], pushdown: None) -> None:
    orders, _ = topics
    frame = mq.read(orders, filterPushdown="index")
    [row] = frame.where("keys = 'order-1-17 day-3'").collect()
    assert bytes(row.body) == b"1-17"
    looked_up = frame.where(f"msgId = '{row.msgId}'")
    assert [bytes(row.body) for row in looked_up.collect()] == [b"1-17"]
    # Nothing else was read: a task that reads one message of each queue found has no other rows to filter.
    if not ON_CONNECT:  # which has no RDDs
        assert frame.where("keys = 'order-1-17'").rdd.getNumPartitions() <= 1
    assert frame.where("keys = 'order-1-17'").count() == 0  # the text is another
    # 43 messages of each queue have the key, more than a broker gives: everything is read.
    assert frame.where("keys IN ('day-3')").count() == 0
    assert frame.where("keys LIKE '% day-3'").count() == mq.read(orders).where("keys LIKE '% day-3'").count() == 86


def test_the_setting_that_is_missing_is_named(mq: Rocket, topics: tuple[str, str]) -> None:
    with pytest.raises(PySparkException, match=rf"{SETTING}.* is false\. Set it to true"):
        mq.read(topics[0], filterPushdown="true").where("queueId = 1").collect()
    with pytest.raises(PySparkException, match="filterPushdown is 'yes'"):
        mq.read(topics[0], filterPushdown="yes").collect()
