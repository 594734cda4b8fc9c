"""The recorded stores: every record decodes to what the original client read, and is written again byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_rocket.model import MessageExt
from spark_rocket.protocol.record.layout import record_size
from spark_rocket.protocol.record.properties import decode_properties, encode_properties, find_property
from spark_rocket.protocol.record.record import RecordView, ScanKind, encode_record, scan_record
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.config import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from tests.golden import StoreName, expected, store_files

NAMES: list[StoreName] = ["clean", "killed"]


def records(name: StoreName) -> Iterator[tuple[bytes, RecordView]]:
    """Bytes and view of every record of a commit log."""
    for path, data in sorted(store_files(name).items()):
        if not path.startswith("commitlog/"):
            continue
        position = 0
        while (found := scan_record(data, position)).kind is ScanKind.GOOD:
            assert found.record is not None
            yield data[position : position + found.size], found.record
            position += found.size
        if found.kind is ScanKind.BLANK:
            assert position + found.size == len(data)
        else:
            assert found.kind is ScanKind.END
            assert not any(data[position:])


def as_expected(message: MessageExt) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.store_size,
        "msgId": message.offset_msg_id,
        "uniqKey": message.properties.get("UNIQ_KEY"),
        "tags": message.tags,
        "keys": message.keys,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bodyCRC": message.body_crc,
        "bornTimestamp": message.born_timestamp,
        "bornHost": "/{}:{}".format(*message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": "/{}:{}".format(*message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
        "body": message.body,
    }


@pytest.mark.parametrize("name", NAMES)
def test_records_are_what_the_original_client_read(name: StoreName) -> None:
    found = {view.physical_offset: as_expected(view.to_message()) for _, view in records(name)}
    wanted = {row["commitLogOffset"]: {key: row[key] for key in row if key != "bodyLen"} for row in expected(name)}
    assert len(found) == {"clean": 1239, "killed": 1299}[name]
    assert found == wanted


@pytest.mark.parametrize("name", NAMES)
def test_records_are_written_again_byte_for_byte(name: StoreName) -> None:
    for raw, view in records(name):
        again = encode_record(
            bytes(view.topic),
            view.queue_id,
            view.body,
            bytes(view.properties),
            queue_offset=view.queue_offset,
            physical_offset=view.physical_offset,
            born_timestamp=view.born_timestamp,
            born_host=view.born_host,
            store_timestamp=view.store_timestamp,
            store_host=view.store_host,
            flag=view.flag,
            sys_flag=view.sys_flag,
            reconsume_times=view.reconsume_times,
            prepared_transaction_offset=view.prepared_transaction_offset,
        )
        assert again == raw
        assert record_size(len(view.body), len(view.topic), len(view.properties)) == len(raw)


def test_properties_are_written_again_byte_for_byte() -> None:
    for _, view in records("clean"):
        raw = bytes(view.properties)
        properties = decode_properties(raw)
        if view.topic == b"GoldenBatch":  # the broker put WAIT at the end of what has it already
            assert raw == encode_properties(properties) + b"\x02WAIT\x01true"
        else:
            assert raw == encode_properties(properties)
        assert {name: find_property(raw, name.encode()) for name in properties} == {
            name: value.encode() for name, value in properties.items()
        }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("topics.json", TopicConfigSerializeWrapper),
        ("consumerOffset.json", ConsumerOffsetSerializeWrapper),
        ("subscriptionGroup.json", SubscriptionGroupWrapper),
        ("delayOffset.json", DelayOffsetSerializeWrapper),
    ],
)
def test_configuration_files(name: StoreName, file: str, kind: type[Body]) -> None:
    raw = store_files(name)[f"config/{file}"]
    config = kind.from_json(raw)
    assert config != kind()
    assert kind.from_json(config.to_json(pretty=True)) == config


def test_consumer_offsets_by_queue() -> None:
    offsets = ConsumerOffsetSerializeWrapper.from_json(store_files("clean")["config/consumerOffset.json"])
    assert offsets.offset_table["GoldenA@GID_golden_a"] == {0: 250, 1: 250, 2: 250, 3: 250}
