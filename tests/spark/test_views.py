"""Views through Spark: valid schemas and errors."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA
from spark_rocket.model import Message
from tests.spark.conftest import Rocket


def test_views_are_data_frames(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic(2)
    mq.producer.send([Message.of(topic, str(n), keys=[f"view-{n}"]) for n in range(20)], queue=mq.queues(topic)[0])
    mq.reader.commit_offset("viewers", mq.queues(topic)[0], 5)
    mq.frame(view="lag", consumerGroup="viewers").createOrReplaceTempView("lag")
    mq.frame(view="brokers").createOrReplaceTempView("brokers")
    joined = spark.sql(
        "SELECT l.topic, sum(l.lag) AS behind, first(b.version) AS version, count(b.error) AS errors "
        "FROM lag l JOIN brokers b USING (brokerName) GROUP BY l.topic"
    )
    assert [(row.topic, row.behind, row.version, row.errors) for row in joined.collect()] == [(topic, 15, "V5_3_3", 0)]
    found = mq.frame(view="messages", subscribe=topic, key="view-7")
    assert found.schema == SOURCE_SCHEMA
    [row] = found.collect()
    assert bytes(row.body) == b"7"
    assert row.asDict() == mq.read(topic).where("queueOffset = 7").collect()[0].asDict()
    with pytest.raises(PySparkException, match="option key cannot be combined with view=lag"):
        mq.frame(view="lag", key="k").collect()
    with pytest.raises(PySparkException, match="Topic 'no-such-topic' does not exist") as failed:
        mq.frame(view="queues", subscribe="no-such-topic").collect()
    assert "view_rows.py" not in str(failed.value)  # the error names the remedy, so its traceback is only logged
