"""Everything that runs on Spark, with a broker that advertises an address at which nothing listens (``addressMap``)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_rocket.client import Admin
from spark_rocket.testing import LocalCluster
from tests.kit.addresses import ADVERTISED_HOST, address_map, unreachable_broker


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with unreachable_broker() as running:
        with Admin(running.name_server, address_map=address_map(running)) as admin:
            for topic in ("orders", "paid"):
                admin.create_topic(topic, 2)
        yield running


def test_queries(spark: SparkSession, cluster: LocalCluster, run: Callable[..., list[str]], tmp_path: Path) -> None:
    at = {"nameServer": cluster.name_server, "addressMap": address_map(cluster)}
    bodies = [f"body {number}" for number in range(20)]
    rows = spark.createDataFrame([(body, "orders") for body in bodies], "body string, topic string")
    rows.write.format("rocket").options(**at).mode("append").save()
    found = spark.read.format("rocket").options(**at, subscribe="orders").load()
    assert sorted(row[0] for row in found.selectExpr("cast(body as string)").collect()) == sorted(bodies)
    stream = spark.readStream.format("rocket").options(**at, subscribe="orders", startingOffsets="earliest").load()
    assert sorted(run(stream)) == sorted(bodies)
    sink = {**at, "topic": "paid", "deliveryGuarantee": "exactlyOnce", "checkpointLocation": str(tmp_path)}
    writing = stream.select("body").writeStream.format("rocket").options(**sink).trigger(availableNow=True).start()
    writing.awaitTermination()
    paid = spark.read.format("rocket").options(**at, subscribe="paid").load()
    assert sorted(row[0] for row in paid.selectExpr("cast(body as string)").collect()) == sorted(bodies)
    brokers = spark.read.format("rocket").options(**at, view="brokers").load().collect()
    assert [(row.brokerName, row.error) for row in brokers] == [("broker-a", None)]


def test_without_a_map(spark: SparkSession, cluster: LocalCluster) -> None:
    """The error names the advertised address and the option."""
    at = {"nameServer": cluster.name_server, "subscribe": "orders", "retryTimeout": "0"}
    with pytest.raises(Exception, match=rf"(?s)No connection to {re.escape(ADVERTISED_HOST)}:\d+.*addressMap"):
        spark.read.format("rocket").options(**at).load().count()


@pytest.mark.long
def test_the_probes_of_executors(cluster: LocalCluster) -> None:
    command = [sys.executable, "-m", "spark_rocket.cli", "doctor", "-n", cluster.name_server, "-t", "orders", "--json"]
    command += ["--master", "local[1]", "--address-map", address_map(cluster)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    workers = {each["text"]: each["grade"] for each in found if each["about"].startswith("executor on ")}
    assert {"reaches the name servers and all brokers", "reads the topic"} <= workers.keys(), done
    assert set(workers.values()) == {"ok"}
