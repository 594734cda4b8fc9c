"""The body of REGISTER_BROKER, as JSON or compressed.

Compressed, a zlib stream of: length and JSON of the data version; number of topics, then length and one-line form of
each; length and JSON list of filter servers; from 5.x on the number of static-topic mappings, then length and JSON of
each. All numbers are int32, big endian. Mappings are skipped: static topics are not served here.

Thread-safety: values. Corresponds to remoting.protocol.body.RegisterBrokerBody.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.bodies.base import Body
from spark_rocket.protocol.bodies.config import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from spark_rocket.protocol.compression import decompress_body
from spark_rocket.protocol.fastjson import Buffer, dumps_standard

MAX_UNCOMPRESSED = 64 << 20  # a million topics; a small body may claim more
_INT = struct.Struct(">i")
_REMEDY = 'The body is damaged, or its header\'s "compressed" is wrong: let the broker register again.'


@dataclass(slots=True)
class RegisterBrokerBody(Body):
    """A broker's topics and filter servers."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_server_list: list[str] = field(default_factory=list)

    def encode(self, *, compressed: bool = False) -> bytes:
        """The body to send."""
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
        """The body received, as its request header's ``compressed`` says."""
        if not compressed:
            return cls.from_json(body)
        reader = _Records(decompress_body(body, 0, MAX_UNCOMPRESSED))
        version = DataVersion.from_json(reader.record())
        topics: dict[str, TopicConfig] = {}
        for _ in range(reader.number()):
            topic = TopicConfig.from_line(reader.text())
            topics[topic.topic_name] = topic
        servers = cls.from_json(b'{"filterServerList":%b}' % (reader.record() or b"[]"))
        servers.topic_config_serialize_wrapper = TopicConfigSerializeWrapper(topics, version)
        return servers


def _sized(raw: bytes) -> bytes:
    return _INT.pack(len(raw)) + raw


class _Records:
    """Cuts a decompressed registration."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def number(self) -> int:
        try:
            number: int = _INT.unpack_from(self._raw, self._at)[0]
        except struct.error:
            raise ProtocolError("A broker's registration ends too early.", remedy=_REMEDY) from None
        self._at += _INT.size
        return number

    def record(self) -> bytes:
        size = self.number()
        end = self._at + size
        if size < 0 or end > len(self._raw):
            raise ProtocolError(f"A broker's registration has no room for a record of {size} bytes.", remedy=_REMEDY)
        raw = self._raw[self._at : end]
        self._at = end
        return raw

    def text(self) -> str:
        return str(self.record(), "utf-8", "replace")
