"""What is fuzzed: every decoder of bytes or text from outside, what it may raise, and inputs to begin with.

A target takes bytes and returns nothing. Any value is fine, and so are the errors listed, which are those that the
decoder's module promises; anything else is a finding. Some take what they decoded further (encode it again, read the
fields that are decoded late), since that is where a bad value would do its harm.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spark_rocket.broker.acl.rules import AclRules
from spark_rocket.broker.config import BrokerConfig
from spark_rocket.broker.consumer_offsets import ConsumerOffsetManager
from spark_rocket.broker.groups import SubscriptionGroupManager
from spark_rocket.broker.pop.check_points import decode_ack, decode_check_point, encode_ack, encode_check_point
from spark_rocket.broker.pop.order import ConsumerOrderInfoManager
from spark_rocket.broker.pop.receipts import check_receipt
from spark_rocket.broker.request_modes import MessageRequestModeManager
from spark_rocket.broker.topics import TopicConfigManager, alter_attributes, group_problem, topic_problem
from spark_rocket.client.credentials import read_credentials
from spark_rocket.console import bodies as console_bodies
from spark_rocket.datasource import option_parsers as options
from spark_rocket.datasource.offsets import no_duplicates, parse_offsets_option, parse_stream_offset
from spark_rocket.errors import ConfigError, DataSourceError, ProtocolError, RefusedError, StoreCorruptError
from spark_rocket.model import Message
from spark_rocket.namesrv.kv_config import KVConfigManager
from spark_rocket.protocol import acl, bodies, ha, properties, subscription
from spark_rocket.protocol.bodies.base import Body
from spark_rocket.protocol.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.columnar import STORED_SCHEMA, decode_records
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.compression import decompress_body
from spark_rocket.protocol.extra_info import parse_extra_info
from spark_rocket.protocol.fastjson import dumps_fastjson, dumps_standard, loads_tolerant
from spark_rocket.protocol.frame import MAX_FRAME_LENGTH, FrameSplitter
from spark_rocket.protocol.headers import decode_request_header
from spark_rocket.protocol.headers.table import _ONE_LETTER, REQUEST_HEADERS
from spark_rocket.protocol.host import pack_host, parse_host
from spark_rocket.protocol.java_properties import parse_properties, render_properties
from spark_rocket.protocol.message_id import decode_offset_msg_id, encode_offset_msg_id
from spark_rocket.protocol.message_trace import decode_trace_data, encode_trace_data, trace_keys
from spark_rocket.protocol.recall_handle import RecallMessageHandle
from spark_rocket.protocol.record import (
    decode_batch_body,
    decode_messages,
    encode_batch_body,
    encode_record,
    iter_records,
    scan_record,
)
from spark_rocket.protocol.sql92 import parse_sql92
from spark_rocket.proxy import hpack, http2, huffman
from spark_rocket.proxy.context import RpcError
from spark_rocket.proxy.grpc_messages import MessageReader, message_text, timeout_of
from spark_rocket.remoting import http
from spark_rocket.remoting.tls import CONFIG_FILE, TlsSettings
from spark_rocket.store.batch import BatchError, plan_batch
from spark_rocket.store.checkpoint import CHECKPOINT_SIZE, Checkpoint
from spark_rocket.store.consume_queue import ConsumeQueue, MappingCache
from spark_rocket.store.index_file import HEADER_SIZE, IndexFile
from spark_rocket.store.record_scan import parse, walk
from spark_rocket.store.timer_checkpoint import TIMER_CHECKPOINT_SIZE, TimerCheckpoint
from tests.golden import frames, store_files

MOST_INFLATED = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """``run`` takes any bytes and raises nothing but ``errors``."""

    name: str
    run: Callable[[bytes], None]
    errors: tuple[type[BaseException], ...]
    seeds: Callable[[], list[bytes]]
    longest: int = 4096


TARGETS: dict[str, Target] = {}


def target(
    *seeds: bytes | Callable[[], list[bytes]],
    errors: tuple[type[BaseException], ...] = (ProtocolError,),
    longest: int = 4096,
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Put a function into the table under its name."""

    def put(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def every() -> list[bytes]:
            found = [each for seed in seeds for each in ([seed] if isinstance(seed, bytes) else seed())]
            return [each for each in found if len(each) <= longest]

        TARGETS[run.__name__] = Target(run.__name__, run, errors, every, longest)
        return run

    return put


def text_of(raw: bytes) -> str:
    """Any text at all, lone surrogates among it."""
    return raw.decode("utf-8", "surrogateescape")


# --- frames, headers, bodies ------------------------------------------------------------------------------------------


@cache
def some_frames() -> list[bytes]:
    """The first recorded frame of each code, kind and spelling."""
    found = {
        (one.request_code, one.is_request, one.raw[4]): one.raw for one in reversed(frames()) if len(one.raw) <= 2048
    }
    return list(found.values())


def _use(command: RemotingCommand) -> None:
    """What a server does with a command before it looks at any table."""
    repr(command)
    try:
        again = RemotingCommand.decode(command.encode()[4:])
        again.language = command.language  # a number that is no language's becomes OTHER in JSON
        assert again == command
        header = decode_request_header(command)
        if header is not None:
            header.to_ext()
    except ProtocolError:  # a code, language or text that the other spelling has no room for
        pass
    acl.is_signed_by(command, acl.SecretKey("a secret"))


@target(lambda: some_frames()[::4])
def frame(raw: bytes) -> None:
    """A stream of frames, cut where the first byte says."""
    splitter = FrameSplitter()
    cut = raw[0] + 1 if raw else 1
    for start in range(0, len(raw), cut):
        for whole in splitter.feed(raw[start : start + cut]):
            _use(RemotingCommand.decode(whole))
        assert splitter.pending <= MAX_FRAME_LENGTH


@target(lambda: [raw[8 : 8 + int.from_bytes(raw[5:8], "big")] for raw in some_frames() if raw[4] == 0])
def json_header(raw: bytes) -> None:
    _use(RemotingCommand.decode(len(raw).to_bytes(4, "big") + raw))


@target(lambda: [raw[8 : 8 + int.from_bytes(raw[5:8], "big")] for raw in some_frames() if raw[4] == 1])
def binary_header(raw: bytes) -> None:
    _use(RemotingCommand.decode((1 << 24 | len(raw)).to_bytes(4, "big") + raw))


_CODES = (*_ONE_LETTER, *REQUEST_HEADERS)


def _header_seeds() -> list[bytes]:
    commands = [RemotingCommand.decode(raw[4:]) for raw in some_frames()]
    return [
        bytes([_CODES.index(command.code)])
        + "\x02".join(f"{name}\x01{value}" for name, value in command.ext_fields.items()).encode()
        for command in commands
        if not command.is_response and command.code in _CODES
    ]


@target(_header_seeds)
def request_header(raw: bytes) -> None:
    """Typed headers of every request: the first byte is the code, the rest fields."""
    ext = properties.decode_properties(raw[1:].decode("utf-8", "surrogateescape"))
    header = decode_request_header(RemotingCommand(_CODES[raw[0] % len(_CODES)] if raw else 310, ext_fields=ext))
    assert header is not None
    assert type(header).from_ext(header.to_ext()) == header


_BODIES = [
    value
    for name in bodies.__all__
    if isinstance(value := getattr(bodies, name), type) and issubclass(value, Body) and is_dataclass(value)
]
_BODY_SEEDS = [bytes([index]) + cls().to_json() for index, cls in enumerate(_BODIES)]


@target(lambda: _BODY_SEEDS + [bytes([at]) + raw for raw in _json_bodies() for at in range(0, len(_BODIES), 7)])
def body(raw: bytes) -> None:
    """Typed bodies: the first byte is which."""
    cls = _BODIES[raw[0] % len(_BODIES)] if raw else bodies.TopicRouteData
    value = cls.from_request(raw[1:])
    cls.from_json(value.to_json())
    cls.from_json(value.to_json(standard=True))
    value.to_json(pretty=True)


@cache
def _json_bodies() -> list[bytes]:
    commands = [RemotingCommand.decode(raw[4:]) for raw in some_frames()]
    return list(
        {bytes(one.body[:1]) + bytes(one.body[1:]) for one in commands if one.body and one.body[:1] in (b"{", b"[")}
    )


@target(_json_bodies, b'{0:"a",{"b":1,"c":2}:[1.5e3,null,NaN],x:"\\x41\\v\\u00e9"}', longest=2048)
def fastjson(raw: bytes) -> None:
    value = loads_tolerant(raw)
    dumps_standard(value)
    loads_tolerant(dumps_fastjson(value, pretty=True))


def _registrations() -> list[bytes]:
    topics = {name: bodies.TopicConfig(name, 4, 4) for name in ("T", "%RETRY%g")}
    wrapper = bodies.TopicConfigSerializeWrapper(topics, bodies.DataVersion(1, 2))
    return [zlib.decompress(RegisterBrokerBody(wrapper, ["f"]).encode(compressed=True))]


@target(_registrations)
def registration(raw: bytes) -> None:
    RegisterBrokerBody.decode(zlib.compress(raw, 0), compressed=True)


@target(
    b"v1 t b 1 m", b"dj0x", lambda: [RecallMessageHandle("t", "broker-a", "1700000000001", "7F00").encode().encode()]
)
def recall_handle(raw: bytes) -> None:
    handle = RecallMessageHandle.decode(text_of(raw))
    assert RecallMessageHandle.decode(handle.encode()) == handle


@target(
    b"0 1700000000000 60000 0 0 broker-a 3 17",
    b"5 1700000000000 60000 1 1 broker-a 3",
    errors=(ProtocolError, RefusedError),
)
def receipt_handle(raw: bytes) -> None:
    receipt = parse_extra_info(text_of(raw))
    parse_extra_info(receipt.text())
    check_receipt(receipt, receipt.offset, "broker-a", 8, 1_700_000_000_000, 7_200_000)


@target(b"7F00000100002A9F0000000000000064", b"127.0.0.1:10911", b"[::1]:80")
def message_id(raw: bytes) -> None:
    text = text_of(raw)
    try:
        parse_host(text)
    except ProtocolError:
        pass
    assert encode_offset_msg_id(*decode_offset_msg_id(text)) == text.upper()


# --- records ----------------------------------------------------------------------------------------------------------


def _record(
    body: bytes, texts: dict[str, str], *, sys_flag: int = 0, host: str = "10.0.0.1", topic: str = "orders"
) -> bytes:
    return encode_record(
        topic.encode(),
        3,
        body,
        properties.encode_properties(texts),
        queue_offset=7,
        physical_offset=700,
        born_timestamp=1,
        born_host=pack_host((host, 5)),
        store_timestamp=2,
        store_host=pack_host(("127.0.0.1", 10911)),
        sys_flag=sys_flag,
    )


def _records() -> list[bytes]:
    inner = encode_batch_body([Message("orders", b"a", {"TAGS": "x"}), Message("orders", b"bb")])
    plain = _record(b"body", {"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "7F"})
    zipped = [_record(zlib.compress(b"z" * 50), {}, sys_flag=1)]
    return [
        plain,
        plain * 3,
        *zipped,
        plain + zipped[0],
        _record(inner, {"INNER_BASE": "5", "INNER_NUM": "2"}, sys_flag=0xC0),
        _record(b"", {}, host="::1"),
        _record(b"long", {}, topic="t" * 130),
    ]


def _late(raw: bytes, check_crc: bool) -> None:
    for message in decode_messages(raw, "b", check_crc=check_crc):
        message.properties, message.tags, message.offset_msg_id, message.born_host, message.store_timestamp  # noqa: B018
        repr(message)


@target(_records)
def records(raw: bytes) -> None:
    """Records as readers decode them: one by one, and a run at once."""
    scan = scan_record(raw, check_crc=False)
    assert scan.size <= len(raw)
    try:
        _late(raw, check_crc=True)
    except ProtocolError:
        pass
    for view in iter_records(raw):
        assert view.size
    _late(raw, check_crc=False)


@target(_records, longest=2048)
def columnar(raw: bytes) -> None:
    damaged: dict[int, str] = {}
    decode_records(raw, broker_name="b", damaged=damaged)
    decode_records(raw, STORED_SCHEMA.names, broker_name="b", start_offset=1, end_offset=9, tags=frozenset({"a"}))
    decode_records(raw, broker_name="b", check_crc=True)


@target(_records)
def log_scan(raw: bytes) -> None:
    """The commit log at recovery, and what a slave is sent."""
    starts, end, _, _ = walk(raw, len(raw))
    assert end <= len(raw)
    for check_crc in (False, True):
        if starts:
            parse(raw, 700, starts, end, check_crc=check_crc)


@target(
    lambda: [
        encode_batch_body([Message("t", b"a" * size, {"TAGS": "x", "n": str(size)}) for size in sizes])
        for sizes in ((1,), (3, 3), (1, 2, 9))
    ],
    errors=(BatchError,),
)
def batch(raw: bytes) -> None:
    """What a producer sends as a batch: the broker takes a body whole, or refuses it."""
    try:
        taken = [(bytes(body), texts) for _, body, texts in decode_batch_body(raw)]
    except ProtocolError:
        taken = []
    plan = plan_batch(raw, 91, b"INNER\x01y")
    assert plan.count == len(taken) > 0


@target(b"TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x017F", b"a\x01b\x02a\x01c\x02")
def message_properties(raw: bytes) -> None:
    found = properties.decode_properties(raw)
    for name in list(found)[:4]:
        key = name.encode()
        properties.find_property(raw, key)
        assert (
            name not in properties.decode_properties(properties.remove_property(raw, key))
            or b"\xff" in raw
            or "\ufffd" in name
        )
    assert properties.decode_properties(properties.append_property(raw, "mine", "1")).get("mine") == "1"
    assert properties.decode_properties(properties.encode_properties(found)) == found


@target(lambda: [b"\x00" + zlib.compress(b"body" * 9), b"\x01" + _packed("lz4"), b"\x02" + _packed("zstd")])
def compressed_body(raw: bytes) -> None:
    content = decompress_body(raw[1:], (1, 0x101, 0x201, 0x301)[raw[0] % 4] if raw else 1, MOST_INFLATED)
    assert len(content) <= MOST_INFLATED


def _packed(kind: str) -> bytes:
    from spark_rocket.protocol.compression import compress_body

    return compress_body(b"body" * 9, kind=kind)


# --- filters ----------------------------------------------------------------------------------------------------------


@target(
    b"a > 5 AND b BETWEEN 1 AND 2.5 OR NOT c IN ('x', 'it''s')\na\x017\x02b\x012",
    b"(a IS NULL) = TRUE AND b STARTSWITH 'x' OR -1.5E3 < c -- why\na\x01NaN\x02c\x01-1",
    b"a = 9223372036854775807L /* c */ AND b NOT CONTAINS 'y'\nb\x01xy",
    longest=1024,
)
def sql92(raw: bytes) -> None:
    """An expression, and the properties of a message behind the first line break that is meant so."""
    expression, _, texts = text_of(raw).rpartition("\n")
    parsed = parse_sql92(expression)
    assert parsed.matches(properties.decode_properties(texts)) in (True, False)
    parsed.matches({})


@target(b"TagA || TagB", b"*", b" a||| b ")
def tags(raw: bytes) -> None:
    found = subscription.parse_tags(text_of(raw))
    found.matches("TagA"), found.matches_code(subscription.java_hash("TagA"))
    assert subscription.parse_tags(str(found)) == found or found.tags == {"*"}  # a tag of that name, among blanks


# --- files of settings ------------------------------------------------------------------------------------------------


@target(
    b"brokerName=b\nlistenPort=10911\nbrokerRole=SLAVE\nstorePathRootDir=${user.home}/x\nfileReservedTime=72\n",
    b"messageDelayLevel=1s 5s\ndeleteWhen=04;05\ntls.server.mode=enforcing\ndiskMaxUsedSpaceRatio=\\u0039\n",
    errors=(ConfigError,),
    longest=400,
)
def broker_conf(raw: bytes) -> None:
    config = BrokerConfig.from_text(raw.decode("utf-8", "replace"))
    config.to_text()
    config.store_config()
    config.server_tls()
    config.name_servers, config.own_credentials, config.timer_precision  # noqa: B018
    config.check_role()


@target(
    b"maxMessageSize=1024\naclEnable=true\n",
    b"listenPort=1",
    b"tls.server.mode=x",
    b"a=b",
    errors=(ConfigError,),
    longest=200,
)
def broker_conf_update(raw: bytes) -> None:
    """Code 25: an administrator's settings for a running broker."""
    config = BrokerConfig()
    before = config.to_text()
    try:
        config.update(raw.decode("utf-8", "replace"))
    except ConfigError:
        assert config.to_text() == before
        raise


@target(b"a=b\n# c\nd : e\\\n f\n\\u0041=\\ud800\n", errors=(ConfigError,))
def properties_file(raw: bytes) -> None:
    entries = [(name, value) for name, value, _ in parse_properties(raw.decode("utf-8", "replace"))]
    assert [(name, value) for name, value, _ in parse_properties(render_properties(entries))] == entries


@target(
    b"tls.server.mode=permissive\ntls.server.certPath=c\ntls.server.keyPath=k\ntls.enable=true", errors=(ConfigError,)
)
def tls_properties(raw: bytes) -> None:
    entries = parse_properties(raw.decode("utf-8", "replace"))
    given = {name: value for name, value, _ in entries if name != CONFIG_FILE}
    settings = TlsSettings.of(given, {})
    settings.server_mode, settings.checks, settings.properties()


_ACL = b"""globalWhiteRemoteAddresses: [10.0.0.*, "10.0.0.{7,9}"]
accounts:
  - accessKey: billing
    secretKey: "another-long-secret"
    admin: false
    defaultTopicPerm: DENY
    topicPerms: [orders=SUB, invoices=PUB|SUB]
"""


@target(_ACL, b"accounts: []", b"a: &a [*a]", errors=(ConfigError,))
def plain_acl(raw: bytes) -> None:
    AclRules.from_bytes(raw, "plain_acl.yml")


@target(b"MQv2-HMAC-SHA1 Credential=k/r/s, SignedHeaders=x-mq-date-time, Signature=00ff\n20260131T120000Z")
def authorization(raw: bytes) -> None:
    header, _, when = text_of(raw).partition("\n")
    acl.Authorization.parse(header).is_signed_by(acl.SecretKey("s"), when)
    acl.seconds_of(when)


@cache
def _directory() -> Path:
    """A directory of this process; in memory where there is such a file system."""
    memory = Path("/dev/shm")
    found = tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None, prefix="fuzz-")
    _kept.append(found)
    return Path(found.name)


_kept: list[Any] = []


def _file(name: str, raw: bytes) -> Path:
    path = _directory() / name
    path.write_bytes(raw)
    return path


@target(b"accessKey: a\nsecretKey: '12345678'\n", errors=(ConfigError,))
def credentials_file(raw: bytes) -> None:
    read_credentials(_file("tools.yml", raw))


@target(b'{"configTable":{"n":{"k":"v"}}}', errors=(ConfigError,))
def kv_config(raw: bytes) -> None:
    manager = KVConfigManager(_file("kvConfig.json", raw))
    manager.load()
    manager.put("n", "a", "b")


#: As broker/config_files.py takes them for "this file does not fit".
_DOES_NOT_FIT = (ProtocolError, ValueError, TypeError, KeyError, AttributeError)
_CONFIG_SEEDS = (
    b'{"dataVersion":{"counter":3,"timestamp":1},"topicConfigTable":{"T":{"perm":6,"readQueueNums":4,"topicName":"T","attributes":{"a":"b"}}}}',
    b'{"offsetTable":{"T@g":{0:12,1:5}},"savedAt":17}',
    b'{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":16}},"forbiddenTable":{"g":{"T":4}}}',
    b'{"messageRequestModeMap":{"T":{"g":{"mode":"POP","popShareQueueNum":2}}}}',
    b'{"table":{"T@g":{0:{"popTime":1,"i":60000,"o":[1,1],"oc":{1:2},"cm":1}}}}',
)


@target(*_CONFIG_SEEDS, errors=_DOES_NOT_FIT, longest=1024)
def config_json(raw: bytes) -> None:
    """topics.json, consumerOffset.json and so on: the broker's own files, and what a slave is sent by its master."""
    stored = loads_tolerant(raw)
    if not isinstance(stored, dict):
        return
    config = _defaults()
    topics = TopicConfigManager(config, lambda: 1)
    groups = SubscriptionGroupManager(config, lambda: 1)
    offsets = ConsumerOffsetManager()
    order = ConsumerOrderInfoManager.__new__(ConsumerOrderInfoManager)
    order._texts = {}
    modes = MessageRequestModeManager()
    managers = (topics, groups, offsets, modes, order)
    refused: BaseException | None = None
    for manager in managers:
        for take in (manager.load, getattr(manager, "replace", manager.load)):
            try:
                take(stored)
            except _DOES_NOT_FIT as error:
                refused = error
            else:
                if manager is not order:
                    dumps_fastjson(manager.snapshot(), pretty=True)  # type: ignore[attr-defined]
    if refused is not None:
        raise refused


@cache
def _defaults() -> BrokerConfig:
    return BrokerConfig()


@target(b"+message.type=FIFO,+cleanup.policy=DELETE", b"-a", b"%RETRY%g", errors=(ValueError,))
def names(raw: bytes) -> None:
    """Names of topics and groups, and a topic's attributes."""
    text = text_of(raw)
    for problem in (topic_problem(text), group_problem(text)):
        assert problem is not None or ("/" not in text and "\0" not in text and ".." not in text and len(text) < 256)
    alter_attributes({}, text, create=True)


# --- Spark's options and checkpoints ----------------------------------------------------------------------------------

_OFFSETS = b'{"T":{"broker-a":{"0":123,"1":-2}}}'


@target(
    _OFFSETS,
    b"earliest",
    b'{"T":{"b":{"0":"2024-01-01T00:00:00"}}}',
    b"2024-01-01 00:00:00",
    b"1h",
    errors=(DataSourceError,),
)
def offsets_option(raw: bytes) -> None:
    """startingOffsets, startingTimestamp, tags, topics and the rest of what users write into options."""
    text = text_of(raw)
    refused: DataSourceError | None = None
    for take in (parse_offsets_option,):
        try:
            take(text, "startingOffsets")
        except DataSourceError as error:
            refused = error
    for parser in (options.positions(*options.Start), *_PARSERS):
        try:
            parser("option", text)
        except DataSourceError as error:
            refused = error
    if refused is not None:
        raise refused


_PARSERS: tuple[Callable[[str, str], object], ...] = (
    options.timestamp,
    options.timestamps,
    options.tag_expression,
    options.sql_expression,
    options.topic_names,
    options.assigned_queues,
    options.group_name,
    options.name_servers,
    options.view_name,
    options.writable_topic,
    options.boolean,
    options.number(0, 100),
    options.duration(0, 1 << 40),
)


@target(
    b'{"offsets":' + _OFFSETS.replace(b"-2", b"7") + b',"version":1}',
    b'{"initial":true,"version":1}',
    errors=(DataSourceError, ValueError),
)
def checkpoint_offsets(raw: bytes) -> None:
    """The offsets in a stream's checkpoint; what is no JSON is Spark's to refuse."""
    try:
        value = json.loads(raw, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError):
        return
    found = parse_stream_offset(value)
    if found is not None:
        assert parse_stream_offset(found.to_json()) == found


# --- between brokers, POP, trace --------------------------------------------------------------------------------------


@target(struct.pack(">qi", 100, 4) + b"data" + struct.pack(">qi", 104, 0), struct.pack(">q", 7) * 3)
def ha_frames(raw: bytes) -> None:
    reports = ha.ReportDecoder()
    transfers = ha.TransferDecoder()
    cut = raw[-1] % 32 + 1 if raw else 1
    pieces = [raw[at : at + cut] for at in range(0, len(raw), cut)]
    try:
        for piece in pieces:
            assert all(offset >= 0 for offset in reports.feed(piece))
            assert reports.pending < ha.REPORT_SIZE
    except ProtocolError:
        pass
    for piece in pieces:
        transfers.feed(piece)
        assert 0 <= transfers.pending <= ha.MAX_TRANSFER_SIZE


@target(
    b'{"bm":0,"bn":"b","c":"g","d":[0,1],"it":60000,"n":2,"pt":17,"q":0,"ro":0,"so":5,"t":"T"}',
    b'{"ao":5,"bn":"b","c":"g","pt":17,"q":0,"so":5,"t":"T"}',
    b'{"ao":-1,"aol":[5,6],"bn":"b","c":"g","pt":17,"q":0,"so":5,"t":"T"}',
    longest=1024,
)
def revive_log(raw: bytes) -> None:
    """POP's check points and acks."""
    try:
        ack = decode_ack(raw, "b")
        encode_ack(*ack)
    except ProtocolError:
        pass
    point = decode_check_point(raw, "b")
    point.ack(point.key[3])
    point.open_offsets()
    assert decode_check_point(encode_check_point(point), "b").key == point.key


@target(
    b"Pub\x011\x01r\x01g\x01T\x01id\x01tag\x01key\x01host\x015\x016\x010\x01oid\x01true\x02",
    b"SubBefore\x011\x01r\x01g\x01q\x01id\x010\x01k\x02SubAfter\x01q\x01id\x013\x01true\x01k\x010\x011\x01g\x02",
    b"EndTransaction\x011\x01r\x01g\x01T\x01id\x01t\x01k\x01h\x012\x01x\x01COMMIT\x01false\x02Recall\x011\x01r\x01g\x01T\x01id\x01true\x02",
    errors=(),
)
def message_trace(raw: bytes) -> None:
    for context in decode_trace_data(raw):
        encode_trace_data(context)
        trace_keys(context)


# --- gRPC and HTTP ----------------------------------------------------------------------------------------------------

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">I", 0)[1:] + b"\x04\x00" + b"\0\0\0\0"
_REQUEST = hpack.literal(
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"x"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def _h2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


@target(
    _GREETING + _h2(1, 4, 1, _REQUEST) + _h2(0, 1, 1, b"\0\0\0\0\1x"),
    _GREETING + _h2(1, 0, 1, _REQUEST[:20]) + _h2(9, 4, 1, _REQUEST[20:]) + _h2(3, 0, 1, b"\0\0\0\x08"),
    _GREETING
    + _h2(8, 0, 0, b"\0\0\1\0")
    + _h2(6, 0, 0, b"12345678")
    + _h2(7, 0, 0, b"\0" * 8)
    + _h2(4, 0, 0, b"\0\4\0\0\1\0"),
    _GREETING + _h2(1, 0x2D, 1, b"\1\0\0\0\0\x10" + _REQUEST + b"\0") + _h2(2, 0, 3, b"\0" * 5),
    errors=(),
)
def http2_session(raw: bytes) -> None:
    session = http2.Session(lambda: 0.0)
    cut = raw[-1] + 1 if raw else 1
    for at in range(0, len(raw), cut):
        session.receive(raw[at : at + cut])
    assert len(session._buffer) <= len(raw)


@target(
    _REQUEST,
    b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
    b"\x3f\xe1\x1f\x40\x01a\x01b\xbe\xbe",
)
def hpack_block(raw: bytes) -> None:
    decoder = hpack.Decoder()
    half = len(raw) // 2
    assert len(decoder.decode(raw[:half])) <= half
    decoder.decode(raw[half:])
    assert decoder.size <= 4096


@target(b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff")
def huffman_text(raw: bytes) -> None:
    assert len(huffman.decode(raw)) <= 2 * len(raw)


@target(
    b"\0\0\0\0\1x\0\0\0\0\0",
    lambda: [b"\1" + len(packed := zlib.compress(b"a" * 100)).to_bytes(4, "big") + packed],
    errors=(RpcError,),
)
def grpc_message(raw: bytes) -> None:
    """Length-prefixed messages; compressed ones within the limit."""
    try:
        timeout_of(raw[:9])
    except RpcError:
        pass
    message_text(text_of(raw[:300]))
    for encoding in (None, b"deflate", b"gzip"):
        reader = MessageReader(encoding, limit=1 << 16)
        cut = raw[-1] % 64 + 1 if raw else 1
        for at in range(0, len(raw), cut):
            assert all(len(message) <= 1 << 16 for message in reader.feed(raw[at : at + cut]))


@target(
    b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
    b"HEAD / HTTP/1.0\r\n\r\n",
    errors=(http._BadRequestError,),
)
def http_request(raw: bytes) -> None:
    """The port of metrics and health."""
    _, path, headers = http._parse(raw.removesuffix(b"\r\n\r\n") + b"\r\n\r\n")
    assert path.startswith("/")
    http._is_host(headers.get("host", ""))
    http.is_loopback(headers.get("host", ""))


_AVRO_SCHEMA = (
    b'{"type":"record","name":"R","fields":[{"name":"a","type":"long"},{"name":"b","type":["null","string"]}]}'
)


@target(
    b'{"a":[1,{"b":null}],"c":"\\u00e9"}',
    "täxt".encode(),
    b'Obj\x01\x02\x16avro.schema\x0e"long"\0' + b"s" * 16 + b"\x02\x02\x02" + b"s" * 16,
    b"\x02\x02\x04ab",
)
def console_body(raw: bytes) -> None:
    """A message's body as the console shows it."""
    for schema in (None, _AVRO_SCHEMA.decode(), text_of(raw).encode("utf-8", "replace").decode()):
        shown = console_bodies.show(raw, schema)
        json.dumps(shown).encode()
    console_bodies.preview(raw)


# --- files of a store -------------------------------------------------------------------------------------------------

_STORE_ERRORS = (StoreCorruptError,)


@target(
    lambda: [store_files("clean")["checkpoint"][:64]],
    b"\0" * 56,
    struct.pack(">7q", 1, 2, 3, 4, 5, 6, 7),
    errors=_STORE_ERRORS,
    longest=64,
)
def checkpoints(raw: bytes) -> None:
    """The store's checkpoint and the timer's; a slave is sent the latter."""
    store = Checkpoint(_file("checkpoint", raw.ljust(CHECKPOINT_SIZE, b"\0") if len(raw) > 40 else raw))
    store.load()
    store.correct(1 << 40)
    timer = TimerCheckpoint(_directory())
    timer.take_over(raw, "a master")
    assert len(timer.encode()) <= TIMER_CHECKPOINT_SIZE


@target(
    struct.pack(">qiq", 0, 100, 7) * 3,
    struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * 2 + struct.pack(">qiq", 500, 100, 7),
    errors=_STORE_ERRORS,
    longest=200,
)
def consume_queue(raw: bytes) -> None:
    directory = _directory() / "queue"
    directory.mkdir(exist_ok=True)
    (directory / f"{0:020}").write_bytes(raw.ljust(200, b"\0")[:200])
    queue = ConsumeQueue(directory, "T", 0, 200, MappingCache(4))
    try:
        queue.load()
        assert 0 <= queue.min_offset <= queue.max_offset <= 10
        queue.correct_min_offset(300)
        queue.read(queue.min_offset, 32)
        queue.cut(500)
    finally:
        queue.close()


def _index_seeds() -> list[bytes]:
    head = struct.pack(">4q2i", 1, 2, 3, 4, 1, 3)
    return [
        head + struct.pack(">4i", 0, 2, 0, 0) + struct.pack(">iqii", 1, 100, 0, 0) + struct.pack(">iqii", 1, 200, 0, 1)
    ]


@target(_index_seeds, errors=_STORE_ERRORS, longest=200)
def index_file(raw: bytes) -> None:
    size = HEADER_SIZE + 4 * 4 + 20 * 7
    index = IndexFile(_file("20240101000000000", raw.ljust(size, b"\0")[:size]), 4, 7)
    try:
        for key in (0, 1, 2, 5):
            found = index.find(key, 0, 1 << 62)
            assert len(list(_at_most(found, 1000))) < 1000
    finally:
        index.close()


def _at_most(found: Iterator[Any], count: int) -> Iterator[Any]:
    for number, each in enumerate(found):
        if number >= count:
            return
        yield each
