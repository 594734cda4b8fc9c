"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320).

The single send is the broker's hottest path: the fields of 310 are read by their one-letter names, everything that
depends only on the topic is one cached lookup, and the fields of the response are written straight into a dict.

A message with a delay level or a delivery time is stored in a system topic until it is due (``DelayRules``). The
response has the requested queue, the offset in the system topic and, for a delivery time, a recall handle.

A transactional message (TRAN_MSG) is stored in the half topic until it is decided (``TransactionalMessageService``).
The response has the requested queue and the offset in the half topic. Retried messages are not transactional, even if
they have TRAN_MSG.

Some requests are refused with MESSAGE_ILLEGAL (13) because their messages could not be delivered correctly: delayed or
transactional messages in a batch, the transaction bits of sysFlag without TRAN_MSG, and inner batches (sysFlag 0xC0).

Three properties of the broker, MSG_REGION, TRACE_ON and CLUSTER, are appended to the properties of every message. In a
batch this happens without decoding them. WAIT is stored as it was sent. Apache's broker does the same since 5.0; 4.9
stores only CLUSTER and drops WAIT=true.

With SYNC_FLUSH the response is delayed, without blocking, until the message is on disk, with SYNC_MASTER until a slave
has it (broker/responses.py). Messages with WAIT=false are exempt.
Corresponds to org.apache.rocketmq.broker.processor.SendMessageProcessor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from spark_rocket.broker.broker_overload import BrokerOverload
from spark_rocket.broker.delivery.delay_rules import DelayRules, PendingPlace, delay_level, is_timed
from spark_rocket.broker.delivery.delivery_timers import DeliveryTimers
from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.send_targets import SendTarget, SendTargets, check_size
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import DELAY, FIFO, NORMAL, TRANSACTION, BrokerStats
from spark_rocket.broker.transactions.transactional_message_service import TransactionalMessageService
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.model import HALF_TOPIC, SHARDING_KEY
from spark_rocket.protocol.ids import RecallMessageHandle, UniqKeyGenerator, encode_offset_msg_id, pack_host
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.properties import decode_properties, find_property, join_text
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.batch_plan import BatchPlan
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutResult, PutStatus

_V2_LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
}
_REQUIRED = "abcdefgh"
_NAMES = {letter: name for name, letter in _V2_LETTERS.items()}

_TRANSACTION_BITS = 0xC
_INNER_BATCH_BITS = 0xC0
_HOST_BITS = 0x30
_UNUSUAL_BITS = _TRANSACTION_BITS | _INNER_BATCH_BITS | _HOST_BITS
_MIN_INT, _MAX_INT = -(1 << 31), (1 << 31) - 1
_MIN_LONG, _MAX_LONG = -(1 << 63), (1 << 63) - 1
# Members of enumerations for comparisons in the hot path, looked up once.
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_SUCCESS = int(ResponseCode.SUCCESS)
_PUT_OK = PutStatus.PUT_OK

_HEX = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)

_CODES: dict[PutStatus, int] = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}


@dataclass(eq=False, slots=True)
class _Send:
    """One request, with the values that its checks and the settings lead to."""

    channel: Channel
    request: RemotingCommand
    target: SendTarget
    queue_id: int
    is_batch: bool
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    properties: str
    """As they were sent, but for a dead letter's delay level."""
    unique_key: str | None = None
    """None for a batch."""
    waiting: PendingPlace | None = None
    """Where the message is pending; None if it is not."""


@dataclass(eq=False, kw_only=True)
class SendMessageProcessor(Processor):
    """SEND_MESSAGE and its variants: stores the messages of producers."""

    config: BrokerConfig
    clock: Callable[[], int]
    store_host: tuple[str, int]
    store: MessageStore
    stats: BrokerStats
    responses: Responses
    targets: SendTargets
    delay_rules: DelayRules
    transactions: TransactionalMessageService
    delivery_timers: DeliveryTimers
    overload: BrokerOverload

    def __post_init__(self) -> None:
        self._cached_targets = self.targets.cached
        self._message_id_prefix = encode_offset_msg_id(self.store_host, 0)[:-16]
        self._unique_key = UniqKeyGenerator(self.store_host[0], os.getpid(), self.clock, seed=self.store_host[1]).next

    @handles(RequestCode.SEND_MESSAGE)
    def send(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Code 10: the same fields with their long names."""
        ext = request.ext_fields
        request.ext_fields = {_V2_LETTERS.get(name, name): value for name, value in ext.items()}
        return self.send_v2(channel, request)

    @handles(RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    def send_v2(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        if self.overload.sends is not None:
            self.overload.check_send()
        if self.responses.waits:
            self.overload.check_put(self.responses.waiting)
        sent = self._read(channel, request)
        result = self._put_batch(sent) if sent.is_batch else self._put_message(sent)
        took = self.clock() - result.store_timestamp
        if took > self.config.os_page_cache_busy_time_out_mills and result.store_timestamp:
            self.overload.append_took(took)
        code = _SUCCESS if result.status is _PUT_OK else _CODES[result.status]
        if code != _SUCCESS and code != ResponseCode.FLUSH_DISK_TIMEOUT:
            return RemotingCommand.response(request, code, result.reason or result.status.value)
        self.stats.puts += result.count
        size = result.end_physical_offset - result.physical_offset
        sent.target.counts.add(_message_type(sent), result.count, size)
        if sent.waiting is not None:
            self.delivery_timers.expect(sent.waiting.topic, sent.waiting.due)
        return self._respond(sent, code, result)

    def _read(self, channel: Channel, request: RemotingCommand) -> _Send:
        ext = request.ext_fields
        try:
            topic = ext["b"]
            queue_id = int(ext["e"])
            sys_flag = int(ext["f"])
            born = int(ext["g"])
            flag = int(ext["h"])
            reconsume_times = int(ext.get("j") or 0)
            target = self._cached_targets.get(topic)
            if target is None:
                target = self.targets.find(topic, ext["c"], int(ext["d"]))
        except (KeyError, ValueError):
            raise _bad_header(ext) from None
        _check_ranges(ext, born, flag, sys_flag, reconsume_times)
        is_batch = request.code == _SEND_BATCH or ext.get("m") == "true"
        if queue_id < 0 or queue_id >= target.queue_limit:
            queue_id = target.choose_queue(queue_id)
        if target.is_retry:
            target, queue_id = self._redirected(target, queue_id, ext, is_batch)
        check_size(self.config, request.body)
        properties = ext.get("i") or ""
        if sys_flag & _UNUSUAL_BITS:
            sys_flag = _usual_sys_flag(sys_flag, properties)
        host = channel.attributes.get("born_host") or _born_host(channel)
        return _Send(
            channel, request, target, queue_id, is_batch, flag, sys_flag, born, host, reconsume_times, properties
        )

    def _put_message(self, sent: _Send) -> PutResult:
        stored = self._properties_to_store(sent)
        waiting = sent.waiting
        return self.store.put_message(
            sent.target.topic if waiting is None else waiting.topic,
            sent.queue_id if waiting is None else waiting.queue_id,
            sent.request.body,
            stored.encode(),
            flag=sent.flag,
            sys_flag=sent.sys_flag,
            born_timestamp=sent.born_timestamp,
            born_host=sent.born_host,
            reconsume_times=sent.reconsume_times,
        )

    def _respond(self, sent: _Send, code: int, result: PutResult) -> RemotingCommand | None:
        channel, request, topic, unique_key = sent.channel, sent.request, sent.target.topic, sent.unique_key
        if request.is_oneway:
            return None  # one-way: no response to delay for the disk or the name servers
        config, prefix = self.config, self._message_id_prefix
        ext = {
            "msgId": f"{prefix}{result.physical_offset:016X}"
            if unique_key is not None
            else message_ids(prefix, result.physical_offsets),
            "queueId": str(sent.queue_id),
            "queueOffset": str(result.queue_offset),
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
        }
        if unique_key is not None:
            ext["transactionId"] = unique_key
            if sent.waiting is not None and sent.waiting.recall_time is not None:
                handle = RecallMessageHandle(topic, config.broker_name, str(sent.waiting.recall_time), unique_key)
                with suppress(ProtocolError):  # a sender's own key with blanks cannot be encoded in a handle
                    ext["recallHandle"] = handle.encode()
        response = RemotingCommand.response(request, code, None, ext)
        responses = self.responses
        if responses.waits and not _asks_not_to_wait(sent.properties):
            return responses.when_stored(channel, request, result.end_physical_offset, (topic,), response=response)
        if responses.settling:
            return responses.when_settled(channel, request, (topic,), response=response)
        return response

    def _properties_to_store(self, sent: _Send) -> str:
        """The properties with UNIQ_KEY and those of the broker; sets ``unique_key`` and ``waiting``."""
        properties = sent.properties
        if (
            "DELAY\x01" in properties
            or "TIMER_DEL" in properties
            or "TRAN_MSG\x01" in properties
            or "POP_CK\x01" in properties
            or _has_broker_properties(properties)
        ):
            properties = self._unusual(sent)
        unique_key = find_property(properties, "UNIQ_KEY")
        if unique_key is None:
            unique_key = self._unique_key()
            properties += ("\x02" if properties and properties[-1] != "\x02" else "") + f"UNIQ_KEY\x01{unique_key}"
        sent.unique_key = unique_key
        separator = "\x02" if properties and properties[-1] != "\x02" else ""
        return f"{properties}{separator}{self._broker_properties()}"

    def _broker_properties(self) -> str:
        """The properties that this broker adds to every message. Consumers use the region in their trace records."""
        config = self.config
        trace_on = "true" if config.trace_on else "false"
        return f"MSG_REGION\x01{config.region_id}\x02TRACE_ON\x01{trace_on}\x02CLUSTER\x01{config.broker_cluster_name}"

    def _unusual(self, sent: _Send) -> str:
        """Process special properties: refuse or drop them as Apache's broker does, or make the message pending."""
        values = _without_broker_properties(decode_properties(sent.properties))
        values.pop("POP_CK", None)
        topic, queue_id = sent.target.topic, sent.queue_id
        if not sent.reconsume_times and _is_transactional(values):
            if not values.get("UNIQ_KEY"):
                values["UNIQ_KEY"] = self._unique_key()
            sent.waiting = self.transactions.prepare(values, topic, queue_id, self.clock())
        else:
            sent.waiting = self.delay_rules.apply(values, topic, queue_id)
        return join_text(values)

    def _put_batch(self, sent: _Send) -> PutResult:
        properties = sent.properties
        if "DELAY\x01" in properties or "TIMER_DEL" in properties or "TRAN_MSG\x01" in properties:
            _refuse_in_batch(decode_properties(properties))
        # Apache's broker appends the batch's own properties to those of each message in it.
        if _has_broker_properties(properties):
            properties = join_text(_without_broker_properties(decode_properties(properties)))
        shared = f"{self._broker_properties()}\x02{properties}" if properties else self._broker_properties()
        return self.store.put_batch(
            sent.target.topic,
            sent.queue_id,
            sent.request.body,
            batch_properties=shared.encode(),
            flag=sent.flag,
            sys_flag=sent.sys_flag,
            born_timestamp=sent.born_timestamp,
            born_host=sent.born_host,
            reconsume_times=sent.reconsume_times,
            check=_check_batch,
        )

    def _redirected(
        self, target: SendTarget, queue_id: int, ext: dict[str, str], batch: bool
    ) -> tuple[SendTarget, int]:
        """The destination of a message to a retry topic: itself or the dead-letter topic."""
        if batch:
            raise RefusedError(
                f"batch request does not support retry group {target.topic}", ResponseCode.MESSAGE_ILLEGAL
            )
        most = ext.get("l")
        try:
            limit = int(most) if most else None
        except ValueError:
            raise _bad_header(ext) from None
        dead = self.targets.dead_letters(target.topic, int(ext.get("j") or 0), limit)
        if dead is None:
            return target, queue_id
        values = decode_properties(ext.get("i") or "")
        if "DELAY" in values:  # dead letters are not delayed, as in Apache's broker
            ext["i"] = join_text(values | {"DELAY": "-1"})
        return dead, 0


@cache
def _id_type(prefix: int) -> np.dtype[np.void]:
    return np.dtype([("prefix", f"V{prefix}"), ("offset", "V16")])


def message_ids(prefix: str, offsets: npt.ArrayLike) -> str:
    """The offset ids of a batch, joined with commas."""
    places = np.asarray(offsets, ">i8")
    text = np.empty(len(places), _id_type(len(prefix) + 1))
    text["prefix"] = np.frombuffer(f",{prefix}".encode(), text["prefix"].dtype)
    text["offset"] = _HEX.take(places.view(np.uint8)).view("V16")
    return text.tobytes()[1:].decode()


def _has_broker_properties(properties: str) -> bool:
    """Whether a message may have properties that the broker sets, for example because it was received before."""
    return "CLUSTER\x01" in properties or "MSG_REGION\x01" in properties or "TRACE_ON\x01" in properties


def _without_broker_properties(values: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name not in ("MSG_REGION", "TRACE_ON", "CLUSTER")}


def _message_type(sent: _Send) -> int:
    properties, waiting = sent.properties, sent.waiting
    if waiting is not None and waiting.topic == HALF_TOPIC:
        return TRANSACTION
    if SHARDING_KEY in properties and SHARDING_KEY in decode_properties(properties):
        return FIFO
    return NORMAL if waiting is None else DELAY


def _is_transactional(values: dict[str, str]) -> bool:
    return values.get("TRAN_MSG", "").lower() == "true"


def _refuse_in_batch(values: dict[str, str]) -> None:
    if delay_level(values) > 0 or is_timed(values):
        raise RefusedError("delayed messages cannot be sent in a batch", ResponseCode.MESSAGE_ILLEGAL)
    if _is_transactional(values):
        raise RefusedError("transactional messages cannot be sent in a batch", ResponseCode.MESSAGE_ILLEGAL)


def _usual_sys_flag(sys_flag: int, properties: str) -> int:
    """Refuse unsupported bits; drop the bits that the broker sets itself (transaction state, address types)."""
    if sys_flag & _TRANSACTION_BITS and not _is_transactional(decode_properties(properties)):
        raise RefusedError(
            "the sysFlag of a transaction (4, 8) requires the property TRAN_MSG=true",
            ResponseCode.MESSAGE_ILLEGAL,
        )
    if sys_flag & _INNER_BATCH_BITS:
        raise RefusedError(
            "inner batches (sysFlag 0x40, 0x80) are not supported by this broker; send a batch with code 320",
            ResponseCode.MESSAGE_ILLEGAL,
        )
    return sys_flag & ~(_TRANSACTION_BITS | _HOST_BITS)


def _asks_not_to_wait(properties: str) -> bool:
    return "WAIT\x01false" in properties and decode_properties(properties).get("WAIT") == "false"


def _check_batch(plan: BatchPlan) -> None:
    """Refuse a batch with a message that would be refused alone."""
    if not plan.may_have(b"DELAY\x01", b"TIMER_DEL", b"TRAN_MSG\x01"):
        return
    for _, _, properties in decode_batch_body(plan.raw):
        _refuse_in_batch(decode_properties(properties))


def _born_host(channel: Channel) -> bytes:
    """The client's address in the format of records, cached for the connection."""
    host = channel.attributes["born_host"] = pack_host(parse_address(channel.remote_addr))
    return host


def _check_ranges(ext: dict[str, str], born: int, *ints: int) -> None:
    """ProtocolError unless ``born`` fits a Java long and the others a Java int."""
    if not _MIN_LONG <= born <= _MAX_LONG or min(ints) < _MIN_INT or max(ints) > _MAX_INT:
        raise _bad_header(ext)


def _bad_header(ext: dict[str, str]) -> ProtocolError:
    missing = [_NAMES[letter] for letter in _REQUIRED if letter not in ext]
    if missing:
        return ProtocolError(f"the custom field <{missing[0]}> of the send request is missing")
    return ProtocolError("invalid or out-of-range number in the send request")
