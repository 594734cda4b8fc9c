"""Reads, writes, streams and views over TLS, with a cluster that enforces TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from spark_rocket.testing import LocalCluster


@pytest.fixture(scope="module")
def secure() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True, tls="enforcing", config={"tls.server.need.client.auth": "require"}) as running:
        running.create_topic("orders", 2)
        yield running


def test_queries_over_tls(spark: SparkSession, secure: LocalCluster, run: Callable[..., list[str]]) -> None:
    tls = secure.tls
    at = {
        "nameServer": secure.name_server,
        "tls": "true",
        "tlsCaFile": tls.client_trust_cert_path,
        "tlsCertFile": tls.client_cert_path,
        "tlsKeyFile": tls.client_key_path,
    }
    bodies = [f"body {number}" for number in range(200)]
    rows = spark.createDataFrame([(body, "orders") for body in bodies], "body string, topic string")
    rows.write.format("rocket").options(**at).mode("append").save()
    found = spark.read.format("rocket").options(**at, subscribe="orders").load()
    assert sorted(row[0] for row in found.selectExpr("cast(body as string)").collect()) == sorted(bodies)
    stream = spark.readStream.format("rocket").options(**at, subscribe="orders", startingOffsets="earliest").load()
    assert sorted(run(stream)) == sorted(bodies)
    topics = spark.read.format("rocket").options(**at, view="topics").load()
    assert "orders" in {row.topic for row in topics.collect()}


def test_without_the_tls_option(spark: SparkSession, secure: LocalCluster) -> None:
    at = {"nameServer": secure.name_server, "subscribe": "orders"}
    with pytest.raises(Exception, match="NAME_SERVER_UNREACHABLE"):
        spark.read.format("rocket").options(**at).load().count()
    with pytest.raises(Exception, match=r"not trusted.*tlsCaFile"):
        spark.read.format("rocket").options(**at, tls="true").load().count()
