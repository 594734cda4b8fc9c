"""Records and their columns, made by hand and by chance, and the result of the single-record codec."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from spark_rocket.model import MessageExt
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.record import encode_record

MAP = pa.map_(pa.string(), pa.string())


def row_of(message: MessageExt) -> dict[str, Any]:
    """What decode_records should say of a message that the single-record codec has decoded."""

    def host(pair: tuple[str, int]) -> str:
        return f"[{pair[0]}]:{pair[1]}" if ":" in pair[0] else f"{pair[0]}:{pair[1]}"

    return {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "body": message.body,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "msgId": message.msg_id,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": host(message.born_host),
        "storeHost": host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
    }


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    for name in ("bornTimestamp", "storeTimestamp"):
        at = batch.schema.get_field_index(name)
        if at >= 0:
            micros = batch.column(at).cast(pa.int64())
            millis = pa.array([None if v is None else v // 1000 for v in micros.to_pylist()], pa.int64())
            batch = batch.set_column(at, name, millis)
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        if "properties" in row:
            pairs = row["properties"]
            row["properties"] = dict(pairs)
            assert len(row["properties"]) == len(pairs), "a name occurs twice"
    return rows


def record(offset: int = 0, body: bytes = b"body", properties: bytes = b"TAGS\x01A", **other: Any) -> bytes:
    values: dict[str, Any] = {
        "queue_offset": offset,
        "physical_offset": offset * 1000,
        "born_timestamp": 1_700_000_000_000,
        "born_host": pack_host(("10.0.0.1", 5000)),
        "store_timestamp": 1_700_000_000_001,
        "store_host": pack_host(("127.0.0.1", 10911)),
    }
    topic = other.pop("topic", b"TopicTest")
    return encode_record(topic, other.pop("queue_id", 0), body, properties, **(values | other))


text = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), max_size=12)
names = st.one_of(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "attribute_number_1", "attribute_number_2"]), text
)
