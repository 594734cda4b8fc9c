"""The README's example with a namespace, copied exactly once, beside a connection that sees the full names."""

from __future__ import annotations

from pathlib import Path

from tests.spark.conftest import Rocket

INSTANCE = "MQ_INST_1_a"


def test_the_example_with_a_namespace(mq: Rocket, tmp_path: Path) -> None:
    for topic in ("greetings", "copies"):
        mq.cluster.create_topic(f"{INSTANCE}%{topic}", 1)
    connection = {"nameServer": mq.name_server, "namespace": INSTANCE}
    greetings = mq.spark.createDataFrame([("EU", "first"), ("US", "second")], "tags string, body string")
    greetings.write.format("rocket").options(**connection).option("topic", "greetings").mode("append").save()
    stream = mq.spark.readStream.format("rocket").options(**connection).option("subscribe", "greetings")
    rows = stream.option("startingOffsets", "earliest").load().selectExpr("concat(topic, ' ', tags) AS body")
    sink = rows.writeStream.format("rocket").options(**connection).option("topic", "copies")
    sink = sink.option("deliveryGuarantee", "exactlyOnce").option("checkpointLocation", str(tmp_path))
    assert sink.trigger(availableNow=True).start().awaitTermination(240)
    (queue,) = mq.queues(f"{INSTANCE}%copies")
    found = {message.body for message in mq.reader.messages(queue, 0, max_msgs=32)}
    assert found == {b"greetings EU", b"greetings US"}
    assert mq.end(f"{INSTANCE}%copies") == 2
