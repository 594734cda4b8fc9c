"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): consecutive records of a queue; may be held (long polling).

Store status to response code and next offset:

=========================================  =====================================  ==========================
status                                     code                                   nextBeginOffset
=========================================  =====================================  ==========================
FOUND                                      0                                      after the last examined
NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING   20                                     after the last examined
OFFSET_OVERFLOW_ONE, OFFSET_FOUND_NULL     19, held if the request allows         unchanged; next file
NO_MATCHED_LOGIC_QUEUE, NO_MESSAGE_...     19, held; 21 if the offset was not 0   0
OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY    21                                     min; max
OFFSET_RESET                               21                                     the new offset
=========================================  =====================================  ==========================

Response size: 32 messages and 256 KiB, as Apache's. A request with a larger ``maxMsgBytes`` gets up to
min(maxMsgBytes, ``maxPullBytes``) bytes and min(maxMsgNums, ``maxPullMsgNums``) messages.

A held pull is run again when a message arrives that may match its filter. An SQL92 filter needs the record: arriving
messages are examined at once, and the pull is held again from the next offset on. When its timeout expires, the
response is 20 with that offset.

The response suggests a broker for the next pull: 0, the master, unless ``slaveReadEnable`` is set. Then it is the one
in the group's settings: ``whichBrokerWhenConsumeSlowly`` if the group is further behind the end of the log than what
counts as in memory (``accessMessageInMemoryMaxRatio``), else ``brokerId``. Slaves always respond to pulls. If a slave's
queue ends before the requested offset, it responds with 20 instead of 21 and the same offset, unless
``offsetCheckInSlave`` is set.

sysFlag bits of the request: 1 commit ``commitOffset``, 2 may be held, 4 ``subscription`` is in the request.
Corresponds to org.apache.rocketmq.broker.processor.PullMessageProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spark_rocket.broker.broker_overload import BrokerOverload
from spark_rocket.broker.delivery.filters import ALL, PullFilter, check_expression_type, get_matching, parse_filter
from spark_rocket.broker.delivery.held_requests import (
    MAX_HELD_MS,
    HeldKind,
    HeldPlace,
    HeldRequest,
    HeldRequests,
    HoldResult,
)
from spark_rocket.broker.delivery.in_memory import is_in_memory
from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.protocol.filter.tags import TYPE_SQL92
from spark_rocket.protocol.wire.codes import PERM_READ, SEE_FAQ, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.layout import ENTRY_SIZE
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import GetMessageResult, GetMessageStatus

if TYPE_CHECKING:
    from spark_rocket.broker.tracing import BrokerTracing  # needs OpenTelemetry

_COMMIT = 1
_SUSPEND = 2
_SUBSCRIPTION = 4

_EMPTY = (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)
_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_REQUIRED = (
    "consumerGroup",
    "topic",
    "queueId",
    "queueOffset",
    "maxMsgNums",
    "sysFlag",
    "commitOffset",
    "suspendTimeoutMillis",
    "subVersion",
)
_LONG = 1 << 63
_PHYSICAL_OFFSET = slice(28, 36)  # in a record


@dataclass(slots=True)
class _Pull:
    """A pull request that has passed the checks."""

    group: str
    topic: str
    queue_id: int
    offset: int
    max_msgs: int
    max_bytes: int
    wanted: PullFilter
    passed: bool = False
    """Whether messages that do not match were skipped while it was held."""


@dataclass(eq=False, kw_only=True)
class PullMessageProcessor(Processor):
    """PULL_MESSAGE: responds with records, or holds the request until there are some."""

    config: BrokerConfig
    host: str
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    clients: ClientManager
    stats: BrokerStats
    held_requests: HeldRequests
    overload: BrokerOverload
    tracing: BrokerTracing | None

    @handles(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        if self.overload.pulls is not None:
            self.overload.check_pull()
        ext = request.ext_fields
        try:
            group = ext["consumerGroup"]
            topic = ext["topic"]
            queue_id = int(ext["queueId"])
            offset = int(ext["queueOffset"])
            max_msgs = int(ext["maxMsgNums"])
            sys_flag = int(ext["sysFlag"])
            commit_offset = int(ext["commitOffset"])
            suspend = int(ext["suspendTimeoutMillis"])
            sub_version = int(ext["subVersion"])
            max_bytes = int(ext.get("maxMsgBytes") or 0)
        except (KeyError, ValueError):
            raise _bad_header(ext) from None
        if not (-_LONG <= offset < _LONG and -_LONG <= commit_offset < _LONG):
            raise _bad_header(ext)
        self._check_broker(request)
        settings = self.groups.to_consume(group)
        self.topics.to_read(topic, queue_id, group)
        if sys_flag & _SUBSCRIPTION:
            wanted = parse_filter(
                ext.get("expressionType"), ext.get("subscription"), sql92=self.config.enable_property_filter
            )
        else:
            wanted = self._filter_of_group(group, topic, sub_version, settings.consume_broadcast_enable)
        max_msgs, max_bytes = self._bounds(max_msgs, max_bytes)
        pull = _Pull(group, topic, queue_id, offset, max_msgs, max_bytes, wanted)
        if sys_flag & _COMMIT and not self.offsets.has_reset(group, topic, queue_id):
            self.offsets.commit(group, topic, queue_id, commit_offset)
        held_ms = 0
        if sys_flag & _SUSPEND:
            asked = suspend if self.config.long_polling_enable else self.config.short_polling_time_mills
            held_ms = min(max(asked, 0), MAX_HELD_MS)
        return self._run(channel, request, pull, held_ms)

    # --- checks -------------------------------------------------------------------------------------------------

    def _check_broker(self, request: RemotingCommand) -> None:
        if not self.config.broker_permission & PERM_READ:
            raise RefusedError(f"the broker[{self.host}] pulling message is forbidden", ResponseCode.NO_PERMISSION)
        if request.code == RequestCode.LITE_PULL_MESSAGE and not self.config.lite_pull_message_enable:
            raise RefusedError(
                f"the broker[{self.host}] for lite pull consumer is forbidden",
                ResponseCode.NO_PERMISSION,
            )

    def _filter_of_group(self, group: str, topic: str, sub_version: int, broadcast_enable: bool) -> PullFilter:
        """The filter in the group's subscription, which heartbeats register."""
        live = self.clients.consumers.get(group)
        if live is None:
            raise RefusedError(f"the consumer's group info not exist{SEE_FAQ}", ResponseCode.SUBSCRIPTION_NOT_EXIST)
        if not broadcast_enable and live.message_model == "BROADCASTING":
            raise RefusedError(
                f"the consumer group[{group}] can not consume by broadcast way", ResponseCode.NO_PERMISSION
            )
        subscription = live.subscriptions.get(topic)
        if subscription is None:
            raise RefusedError(f"the consumer's subscription not exist{SEE_FAQ}", ResponseCode.SUBSCRIPTION_NOT_EXIST)
        if subscription.sub_version < sub_version:
            raise RefusedError("the consumer's subscription not latest", ResponseCode.SUBSCRIPTION_NOT_LATEST)
        sql92 = self.config.enable_property_filter
        check_expression_type(subscription.expression_type, sql92=sql92)
        if subscription.class_filter_mode:
            raise RefusedError("class filters are not supported", ResponseCode.SYSTEM_ERROR)
        if subscription.expression_type == TYPE_SQL92:
            try:
                return parse_filter(TYPE_SQL92, subscription.sub_string, sql92=sql92)
            except RefusedError as error:
                raise RefusedError(
                    f"The broker's consumer filter data is not exist!Your expression may be wrong! {error.message}",
                    ResponseCode.FILTER_DATA_NOT_EXIST,
                    remedy=error.remedy,
                ) from None
        return PullFilter(frozenset(subscription.code_set)) if subscription.code_set else ALL

    def _bounds(self, max_msgs: int, max_bytes: int) -> tuple[int, int]:
        config = self.config
        usual = config.max_transfer_bytes_on_message_in_memory
        if max_bytes > usual:
            return min(max(max_msgs, 1), config.max_pull_msg_nums), min(max_bytes, config.max_pull_bytes)
        messages = min(max(max_msgs, 1), config.max_transfer_count_on_message_in_memory)
        return messages, max_bytes if max_bytes > 0 else usual

    # --- responses ----------------------------------------------------------------------------------------------

    def _run(
        self, channel: Channel, request: RemotingCommand, pull: _Pull, held_ms: int | None
    ) -> RemotingCommand | None:
        """Respond, or hold for ``held_ms`` if there are no messages (None: the request was held before)."""
        reset = self.offsets.take_reset(pull.group, pull.topic, pull.queue_id)
        if reset is not None:
            return self._offset_response(request, pull, reset, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        if pull.wanted.matches is None:
            result = self.store.get_message(
                pull.topic, pull.queue_id, pull.offset, pull.max_msgs, pull.max_bytes, pull.wanted.tag_codes
            )
        else:
            result = self._examine(pull)
            if held_ms is None and self._waits_on(channel, request, pull, result):
                return None
        status = result.status
        if status in _EMPTY:
            # A queue whose messages have all expired is also empty, but keeps its end offset.
            at_end = pull.offset in (0, result.max_offset)
            code = ResponseCode.PULL_NOT_FOUND if at_end else ResponseCode.PULL_OFFSET_MOVED
        else:
            code = _CODES[status]
        if code == ResponseCode.PULL_NOT_FOUND and held_ms and self._hold(channel, request, pull, held_ms):
            return None
        suggested = 0
        if self.config.slave_read_enable:
            suggested = self._suggested(pull.group, result)
        if code == ResponseCode.PULL_OFFSET_MOVED and self.config.is_slave and not self.config.offset_check_in_slave:
            code, result.next_begin_offset = ResponseCode.PULL_RETRY_IMMEDIATELY, pull.offset
        if code == ResponseCode.SUCCESS:
            self.stats.pulled(
                pull.group, pull.topic, pull.queue_id, result.count, len(result.records), result.next_begin_offset
            )
            if self.tracing is not None:
                self.tracing.delivered(pull.group, pull.topic, pull.queue_id, result)
        else:
            self.stats.get_misses += 1
        return _response(request, code, status.value, result, suggested)

    def _suggested(self, group: str, result: GetMessageResult) -> int:
        """The id of the broker, among those of this name, that the group should pull from next."""
        settings = self.groups.to_consume(group)
        if result.count:
            # The first record's offset is enough: the others follow within the size of a response.
            begin = int.from_bytes(result.records[_PHYSICAL_OFFSET], "big")
            if not is_in_memory(self.store, self.config, begin):
                return settings.which_broker_when_consume_slowly
        return settings.broker_id

    def _examine(self, pull: _Pull) -> GetMessageResult:
        assert pull.wanted.matches is not None
        most = self.config.store.max_filter_message_size // ENTRY_SIZE
        place = (pull.topic, pull.queue_id, pull.offset, pull.max_msgs, pull.max_bytes)
        result = get_matching(self.store, *place, pull.wanted.matches, most)
        if result.status is GetMessageStatus.OFFSET_OVERFLOW_ONE and pull.passed:
            result.status = GetMessageStatus.NO_MATCHED_MESSAGE
        return result

    def _waits_on(self, channel: Channel, request: RemotingCommand, pull: _Pull, result: GetMessageResult) -> bool:
        """Hold a woken pull again, after the messages that did not match; False if it cannot be held."""
        at_end = result.next_begin_offset == result.max_offset
        if result.status is not GetMessageStatus.NO_MATCHED_MESSAGE or not at_end:
            return False
        pull.offset, pull.passed = result.next_begin_offset, True
        return self._hold(channel, request, pull)

    def _hold(self, channel: Channel, request: RemotingCommand, pull: _Pull, held_ms: int = 0) -> bool:
        """Hold a pull, for its remaining time if it was held before; return whether it is held."""
        place = HeldPlace(pull.topic, "", pull.queue_id, HeldKind.PULL, pull.wanted.tag_codes)
        again = partial(self._again, channel, request, pull)
        held = HeldRequest(channel, request, place, again, partial(self._nothing, request, pull), pull.offset)
        return self.held_requests.hold(held, held_ms) is HoldResult.HELD

    def _again(self, channel: Channel, request: RemotingCommand, pull: _Pull) -> RemotingCommand | None:
        """Run a held pull again. With a tag filter this is the last run."""
        self.topics.to_read(pull.topic, pull.queue_id, pull.group)
        return self._run(channel, request, pull, None)

    def _nothing(self, request: RemotingCommand, pull: _Pull) -> RemotingCommand:
        """A response without messages, after which the client pulls again."""
        remark = GetMessageStatus.NO_MATCHED_MESSAGE.value
        return self._offset_response(request, pull, pull.offset, ResponseCode.PULL_RETRY_IMMEDIATELY, remark)

    def _offset_response(
        self, request: RemotingCommand, pull: _Pull, offset: int, code: int, remark: str
    ) -> RemotingCommand:
        """A response without messages: pull from ``offset``."""
        store = self.store
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(offset),
            "minOffset": str(store.get_min_offset(pull.topic, pull.queue_id)),
            "maxOffset": str(store.get_max_offset(pull.topic, pull.queue_id)),
        }
        return RemotingCommand.response(request, code, remark, ext)


def _response(
    request: RemotingCommand, code: int, remark: str, result: GetMessageResult, suggested: int
) -> RemotingCommand:
    ext = {
        "suggestWhichBrokerId": str(suggested),
        "nextBeginOffset": str(result.next_begin_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
    }
    return RemotingCommand.response(request, code, remark, ext, result.records)


def _bad_header(ext: dict[str, str]) -> ProtocolError:
    missing = [name for name in _REQUIRED if name not in ext]
    if missing:
        return ProtocolError(f"the custom field <{missing[0]}> of the pull request is missing")
    return ProtocolError("invalid number in the pull request")
