"""Topics as SQL tables and views; and the names of the old Scala connector."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_rocket.datasource.capabilities import HAS_STREAM_ARROW_WRITER
from tests.spark.conftest import Rocket
from tests.spark.sessions import needs


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[list[str]]:
    """Names of tables that are dropped at the end. Topics stay."""
    made = ["readable", "writable", "both", "twin", "columned"]
    yield made
    for name in made:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


@needs(HAS_STREAM_ARROW_WRITER, "4.1", "INSERT into some of the columns")
def test_tables(mq: Rocket, spark: SparkSession, run: Callable[..., list[str]], tables: list[str]) -> None:
    topic, other = mq.topic(), mq.topic()

    def create(name: str, **options: str) -> None:
        given = ", ".join(f"{key} '{text}'" for key, text in {"nameServer": mq.name_server, **options}.items())
        spark.sql(f"CREATE TABLE {name} USING rocket OPTIONS ({given})")

    def bodies(query: str) -> list[str]:
        return sorted(bytes(row.body).decode() for row in spark.sql(query).collect())

    create("readable", subscribe=topic)
    create("writable", topic=topic)
    create("both", subscribe=topic, topic=topic, startingOffsets="earliest", sendBatchSize="10")
    create("twin", subscribe=other, topic=other)
    spark.sql("INSERT INTO writable VALUES (X'61', 'ta', 'ka kb', map('p', 'v'), null, 1, null)")
    spark.sql("INSERT INTO writable (body, tags) SELECT CAST('b' AS BINARY), 'tb'")
    spark.sql("INSERT INTO both (body) VALUES (X'63')")
    mine = spark.createDataFrame([(b"d", "td")], "body binary, tags string")
    mine.writeTo("writable").append()
    mine.writeTo("both").append()
    with pytest.raises(PySparkException, match=r"BAD_ROW.*storeTimestamp is read-only but has a value"):
        spark.sql("INSERT INTO both (body, storeTimestamp) SELECT X'65', current_timestamp()")
    assert bodies("SELECT body FROM readable") == bodies("SELECT body FROM both") == ["a", "b", "c", "d", "d"]
    row = spark.sql("SELECT * FROM readable WHERE tags = 'ta'").first()
    assert row is not None
    assert (row.topic, row.queueId, row["keys"], row.properties["p"]) == (topic, 1, "ka kb", "v")

    # Rows of a table carry its options; they are still written to the named table.
    spark.sql("INSERT INTO twin (body, tags) SELECT body, tags FROM both WHERE tags = 'tb'")
    with pytest.raises(PySparkException, match="WHICH_TABLE"):
        spark.sql("INSERT INTO twin SELECT * FROM both")
    assert bodies("SELECT body FROM twin") == ["b"]
    assert mq.end(topic) == 5
    assert bodies("SELECT body FROM readable WITH (tags = 'td')") == ["d", "d"]
    chosen = spark.table("both").selectExpr("tags", "queueOffset AS number")
    given = {"nameServer": mq.name_server, "topic": other, "bodyFormat": "json"}
    chosen.where("tags = 'ta'").write.format("rocket").options(**given).mode("append").save()
    assert bodies("SELECT body FROM twin WITH (tags = 'ta')") == ['{"number":0}']

    # A stream of a table.
    assert sorted(run(spark.readStream.option("startingOffsets", "earliest").table("twin")))[0] == "b"

    with pytest.raises(AnalysisException, match="Did you mean subscribe"):
        create("wrong", subscrib=topic)
    spark.sql(f"CREATE TABLE columned (body BINARY) USING rocket OPTIONS (subscribe '{topic}')")
    with pytest.raises(AnalysisException, match=r"without a list of columns.*CREATE TEMPORARY VIEW"):
        spark.sql("SELECT * FROM columned").collect()
    with pytest.raises(AnalysisException, match=r"bodyFormat=json needs a schema.*CREATE TEMPORARY VIEW"):
        create("wrong", subscribe=topic, bodyFormat="json")


@needs(HAS_STREAM_ARROW_WRITER, "4.1", "INSERT into some of the columns")
def test_temporary_views(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic()
    options = f"nameServer '{mq.name_server}', subscribe '{topic}', topic '{topic}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING rocket OPTIONS ({options})")
    spark.sql("INSERT INTO seen (body, tags) VALUES (X'61', 't')")
    spark.sql("INSERT INTO seen (body, tags) SELECT body, tags FROM seen")
    with pytest.raises(PySparkException, match=r"BAD_ROW.*brokerName is read-only but has a value"):
        spark.sql("INSERT INTO seen SELECT * FROM seen")
    assert mq.bodies(topic) == ["a", "a"]
    # A view, like a data frame, is planned only once, with its first query.
    assert [bytes(row.body) for row in spark.sql("SELECT body FROM seen").collect()] == [b"a"]
    spark.catalog.dropTempView("seen")


@needs(HAS_STREAM_ARROW_WRITER, "4.1", "INSERT into some of the columns")
def test_a_temporary_view_of_typed_rows(mq: Rocket, spark: SparkSession) -> None:
    topic = mq.topic()
    options = f"nameServer '{mq.name_server}', subscribe '{topic}', topic '{topic}', bodyFormat 'json'"
    options += ", metadataColumns 'tags, queueOffset'"
    columns = "id bigint, item string, tags string, queueOffset bigint"
    spark.sql(f"CREATE TEMPORARY VIEW typed ({columns}) USING rocket OPTIONS ({options})")
    try:
        spark.sql("INSERT INTO typed (id, item, tags) VALUES (1, 'tea', 'paid')")
        assert mq.bodies(topic) == ['{"id":1,"item":"tea"}']
        assert spark.sql("SELECT * FROM typed").collect() == [(1, "tea", "paid", 0)]
    finally:
        spark.catalog.dropTempView("typed")


def test_the_name_and_the_options_of_the_scala_connector(
    mq: Rocket, spark: SparkSession, run: Callable[..., list[str]]
) -> None:
    topic = mq.topic()
    old = {"nameServer": mq.name_server, "topic": topic, "group": "scala"}
    rows: DataFrame = spark.createDataFrame([("a", "t1"), ("b", "t2")], "body string, tags string")
    rows.write.format("rocketmq").options(**old).mode("append").save()
    frame = spark.read.format("rocketmq").options(**old, subExpression="t2", pullTimeoutMs="3000").load()
    assert [bytes(row.body) for row in frame.collect()] == [b"b"]
    stream = spark.readStream.format("rocketmq").options(**old, startingOffsets="earliest", subExpression="*")
    assert sorted(run(stream.load())) == ["a", "b"]
