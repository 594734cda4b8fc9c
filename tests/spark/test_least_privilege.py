"""A batch read and an exactly-once stream on Spark with exactly the permissions that the guides declare.

``tests/permissions`` has all pipelines without Spark, and each permission removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_rocket.client import Producer, Reader
from spark_rocket.model import Message
from spark_rocket.protocol.requests import pipelines
from spark_rocket.testing import LocalCluster
from tests.permissions.pipelines import READERS, RUNS
from tests.permissions.test_least_privilege import permissions

ROOT: dict[str, Any] = {"access_key": "root-key", "secret_key": "r00t-s3cr3t"}


@pytest.mark.parametrize("acl", ["1.0", "2.0"])
def test_a_pipeline_with_exactly_the_declared_permissions(acl: str, spark: SparkSession, tmp_path: Path) -> None:
    with LocalCluster(in_process=True, acl=acl, **ROOT) as cluster:
        for topic in ("orders", "results", "ROCKET_SINK_STAGING", "ROCKET_SINK_LEDGER"):
            cluster.create_topic(topic, 1)
        for group in (READERS, "ROCKET_SINK_LEDGER"):
            cluster.create_group(group)
        with Producer("shop", name_server=cluster.name_server, **ROOT) as producer:
            producer.send([Message.of("orders", str(number)) for number in range(3)])
        needed: dict[str, set[str]] = {}
        for run in RUNS:
            if run.pipeline in (pipelines.READ, pipelines.STREAM, pipelines.EXACTLY_ONCE_STREAM):
                for resource, action in permissions(run, acl):
                    needed.setdefault(resource, set()).add(action.capitalize())
        account = cluster.set_account("pipeline-key", "pipel1ne-s3cr3t", needed)
        options = {"nameServer": cluster.name_server, "accessKey": account.access_key, "secretKey": account.secret_key}
        reading = {**options, "subscribe": "orders", "consumerGroup": READERS, "startingOffsets": "earliest"}
        assert spark.read.format("rocket").options(**reading).load().count() == 3
        rows = spark.readStream.format("rocket").options(**reading).load().select("body")
        sink = rows.writeStream.format("rocket").options(**options, topic="results", deliveryGuarantee="exactlyOnce")
        query = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        with Reader(cluster.name_server, **ROOT) as reader:
            (queue,) = reader.queues("results")
            assert sorted(message.body for message in reader.messages(queue, 0)) == [b"0", b"1", b"2"]
