"""The body of REGISTER_BROKER, as JSON or compressed.

The compressed form is a zlib stream of: length and JSON of the data version; number of topics, then length and one-line
form of each; length and JSON list of filter servers; from 5.x on the number of static-topic mappings, then length and
JSON of each. All numbers are int32, big endian. Mappings are skipped: static topics are not supported.

A registration comes from an unverified peer, and a kilobyte may decompress to a megabyte. So the decompressed body,
each record in it, its topics and its values are limited.

Corresponds to remoting.protocol.body.RegisterBrokerBody.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.record.compression import decompress_body, inflates_within
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.config import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from spark_rocket.protocol.wire.json import TextLimits, check_values, dumps_standard, loads_tolerant

MAX_UNPACKED_BYTES = 16 << 20  # bytes: the limit of an uncompressed body, which must fit into a frame
MAX_TOPICS = 100_000
MAX_FILTER_SERVERS = 8  # they are repeated in every route of the broker
_MAX_RECORD_BYTES = 256 * 1024  # bytes of a topic's line or a data version
_MAX_VALUES = 1_500_000  # a topic has ten as JSON, and one for each of its attributes
_JSON_LIMITS = TextLimits(max_values=_MAX_VALUES, max_odd_values=_MAX_VALUES, max_odd_bytes=MAX_UNPACKED_BYTES)
_INT = struct.Struct(">i")
_REMEDY = 'The body is damaged, or its header\'s "compressed" is wrong: let the broker register again.'


@dataclass(slots=True, eq=False, repr=False)
class RegisterBrokerBody(Body):
    """A broker's topics and filter servers."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_server_list: list[str] = field(default_factory=list)

    def encode(self, *, compressed: bool = False) -> bytes:
        """Return the body to send."""
        if not compressed:
            return self.to_json()
        wrapper = self.topic_config_serialize_wrapper
        lines = [topic.to_line().encode() for topic in wrapper.topic_config_table.values()]
        pieces = [_sized(wrapper.data_version.to_json()), _INT.pack(len(lines))]
        pieces += map(_sized, lines)
        pieces += [_sized(dumps_standard(self.filter_server_list)), _INT.pack(0)]
        return zlib.compress(b"".join(pieces), zlib.Z_BEST_COMPRESSION)

    @classmethod
    def decode(cls, body: Buffer, *, compressed: bool = False) -> RegisterBrokerBody:
        """Decode the received body; ``compressed`` is that of the request header."""
        if not compressed:
            value = loads_tolerant(body, _JSON_LIMITS)
            _check_counts(value)
            return cls.from_value(value)
        reader = _Records(decompress_body(body, 0, MAX_UNPACKED_BYTES))
        version = DataVersion.from_request(reader.record())
        count = reader.number()
        _check_count("topics", count, MAX_TOPICS)
        topics: dict[str, TopicConfig] = {}
        for _ in range(count):
            topic = TopicConfig.from_line(reader.text())
            topics[topic.topic_name] = topic
        servers = loads_tolerant(reader.record() or b"[]", _JSON_LIMITS)
        value = {"filterServerList": servers}
        _check_counts(value)
        registration = cls.from_value(value)
        registration.topic_config_serialize_wrapper = TopicConfigSerializeWrapper(topics, version)
        return registration

    @staticmethod
    def is_short(body: Buffer, *, compressed: bool, most: int) -> bool:
        """Whether the decompressed body has at most ``most`` bytes; ProtocolError for invalid zlib data."""
        return inflates_within(body, most) if compressed else len(body) <= most


def _check_counts(value: object) -> None:
    """Check the limits before the values of a registration are created."""
    if isinstance(value, dict):
        wrapper = value.get("topicConfigSerializeWrapper")
        topics = wrapper.get("topicConfigTable") if isinstance(wrapper, dict) else None
        _check_count("topics", len(topics) if isinstance(topics, dict) else 0, MAX_TOPICS)
        servers = value.get("filterServerList")
        _check_count("filter servers", len(servers) if isinstance(servers, list) else 0, MAX_FILTER_SERVERS)


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise ProtocolError(
            f"A broker's registration has {count:,} {what}, at most {most:,} are allowed.",
            remedy="Distribute them over several brokers.",
        )


def _sized(raw: bytes) -> bytes:
    return _INT.pack(len(raw)) + raw


class _Records:
    """Splits a decompressed registration."""

    def __init__(self, raw: bytes) -> None:
        check_values(raw, _MAX_VALUES)
        self._raw = raw
        self._at = 0

    def number(self) -> int:
        try:
            number: int = _INT.unpack_from(self._raw, self._at)[0]
        except struct.error:
            raise ProtocolError("A broker's registration is truncated.", remedy=_REMEDY) from None
        self._at += _INT.size
        return number

    def record(self) -> bytes:
        size = self.number()
        end = self._at + size
        if size < 0 or end > len(self._raw):
            raise ProtocolError(f"A broker's registration is too short for a record of {size} bytes.", remedy=_REMEDY)
        if size > _MAX_RECORD_BYTES:
            raise ProtocolError(
                f"A broker's registration has a record of {size:,} bytes, at most {_MAX_RECORD_BYTES:,} are allowed.",
                remedy=_REMEDY,
            )
        raw = self._raw[self._at : end]
        self._at = end
        return raw

    def text(self) -> str:
        return str(self.record(), "utf-8", "replace")
