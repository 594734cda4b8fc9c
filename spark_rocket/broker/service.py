"""The broker's operations, independent of the protocol; shared by the Remoting processors.

Refusals are :class:`RefusedError` with the response code of Apache's broker in the same case. Their messages are the
remarks that clients display.

Thread-safety: used on the event loop only. Writes of config files and requests to name servers run behind futures.
Corresponds to the operations of org.apache.rocketmq.broker.BrokerController and its managers.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING

from spark_rocket.broker.delivery.delayed import Waiting
from spark_rocket.broker.parts import BrokerContext, BrokerParts
from spark_rocket.broker.replication.slave import ReplicationSlave
from spark_rocket.broker.saving import StateSaver
from spark_rocket.broker.state.stats import TopicCounts
from spark_rocket.broker.state.topics import SIMPLE_QUEUES
from spark_rocket.errors import RefusedError
from spark_rocket.model import (
    DLQ_PREFIX,
    HALF_TOPIC,
    NOT_ALLOWED_SEND,
    RETRY_PREFIX,
    topic_problem,
)
from spark_rocket.protocol.ids import encode_offset_msg_id, retry_topic
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from spark_rocket.protocol.wire.codes import PERM_READ, PERM_WRITE, SEE_FAQ, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel

if TYPE_CHECKING:
    from spark_rocket.broker.acl.control import AccessControl
    from spark_rocket.broker.tracing import BrokerTracing

# Maximum time that the response to a change waits for the name servers.
REGISTER_TIMEOUT_S = 1.0


class SendTarget:
    """A topic that has passed all checks that do not depend on the message."""

    __slots__ = ("counts", "is_retry", "queue_limit", "topic", "write_queues")

    def __init__(self, config: TopicConfig, counts: TopicCounts) -> None:
        self.counts = counts
        self.topic = config.topic_name
        self.is_retry = config.topic_name.startswith(RETRY_PREFIX)
        self.write_queues = config.write_queue_nums
        self.queue_limit = max(config.write_queue_nums, config.read_queue_nums)


class BrokerService(BrokerParts):
    """Operations that involve several parts of the broker."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self.saving = StateSaver(self)
        self.slave: ReplicationSlave | None = None
        """Copies the master's log, if this broker is a slave."""
        self.tracing: BrokerTracing | None = None
        """Creates OpenTelemetry spans; None without ``openTelemetryEnable``."""
        self.access_control: AccessControl | None = None
        """Checks every request; None without ``aclEnable``."""
        self.message_id_prefix = encode_offset_msg_id(self.store_host, 0)[:-16]
        #: Cache of topics that have passed all checks, for the fast path of sends.
        self.targets: dict[str, SendTarget] = {}
        #: Topics whose last change is not yet on disk and registered. If their messages were acknowledged earlier,
        #: the topic could be unknown after a kill.
        self.settling: dict[str, asyncio.Future[str]] = {}
        #: Topics whose last change could not be written: their messages are refused until it is.
        self._unsaved: set[str] = set()
        self._turn: asyncio.Future[str] | None = None
        self._changed: set[str] = set()
        #: Called with the name of each group whose settings change.
        self.group_listeners: list[Callable[[str], None]] = []
        self.topics.on_change = self._topic_changed
        self.groups.on_change = self._group_changed
        self.saving.on_written = self._file_written
        if self.pop is not None:
            self.pop.first_is_in_memory = self.first_is_in_memory

    def sample(self) -> None:
        """Sample the counters from which rates are computed; called every ``SAMPLE_SECONDS``."""
        if self.timer is None:
            self.stats.sample()
        else:
            self.stats.sample(self.timer.enqueued, self.timer.delivered)
        self.store.sample()

    # --- after a change -----------------------------------------------------------------------------------------

    def _topic_changed(self, topic: str) -> None:
        self.targets.pop(topic, None)
        if self._turn is None:  # one future for all changes in this iteration of the loop
            self._turn = self.loop.create_future()
            self.loop.call_soon(self._settle)
        self._changed.add(topic)
        self.settling[topic] = self._turn

    def _settle(self) -> None:
        settled, self._turn = self._turn, None
        changed, self._changed = self._changed, set()
        deleted = any(topic not in self.topics.table for topic in changed)
        saved = self.saving.save("topics")
        registered = self.registration.register(None if deleted else changed)

        async def wait() -> None:
            problem = await saved
            if problem:
                self._unsaved |= changed
                for topic in changed:
                    self.targets.pop(topic, None)
            else:
                await asyncio.wait([registered], timeout=REGISTER_TIMEOUT_S)
            for topic in changed:
                if self.settling.get(topic) is settled:
                    del self.settling[topic]
            if settled is not None:
                settled.set_result(problem)

        self.spawn(wait())

    def _file_written(self, name: str) -> None:
        if name == "topics":
            self._unsaved.clear()

    def _group_changed(self, group: str) -> None:
        self.saving.save("groups")
        for notify in self.group_listeners:
            notify(group)

    def when_settled(
        self,
        channel: Channel,
        answer: RemotingCommand,
        topics: Collection[str] = (),
        *,
        files: Sequence[str] = (),
        must_be_saved: bool = True,
    ) -> RemotingCommand | None:
        """Delay a response until changes of these topics are on disk and registered, and these files are written.

        Returns the response if there is nothing to wait for, otherwise None: it is sent later. If a change could not be
        written and ``must_be_saved``, it becomes SYSTEM_ERROR.
        """
        waiting: list[Awaitable[str]] = [self.settling[topic] for topic in topics if topic in self.settling]
        if not self._unsaved.isdisjoint(topics):
            waiting.append(self.saving.saved("topics"))
        if files:
            waiting.append(self.saving.saved(*files))
        if not waiting:
            return answer

        async def write() -> None:
            problem = next(filter(None, [await one for one in waiting]), "")
            channel.write(_unsaved(answer, problem) if problem and must_be_saved else answer)

        self.spawn(write())
        return None

    async def saved(self, answer: RemotingCommand, file: str) -> RemotingCommand:
        """Wait until a file has all changes; return the response, or SYSTEM_ERROR if it could not be written."""
        problem = await self.saving.saved(file)
        return _unsaved(answer, problem) if problem else answer

    def refuse_unsaved(self, topic: str) -> None:
        """Raise RefusedError for a topic whose last change could not be written, before a message is stored in it."""
        if topic in self._unsaved:
            raise RefusedError(
                f"{self.saving.problem('topics') or 'topics.json could not be written'}.",
                ResponseCode.SYSTEM_ERROR,
                remedy=f"The broker retries the write; topic {topic} accepts messages once it has succeeded.",
            )

    def settings_changed(self) -> None:
        """Apply changed settings to everything that has cached them."""
        self.targets.clear()
        self.overload.settings_changed()
        self.store.retention.config = self.config.store_config()
        self.registration.register()

    # --- sending ------------------------------------------------------------------------------------------------

    def send_target(self, topic: str, default_topic: str, wanted_queues: int) -> SendTarget:
        """The topic to store into, created if allowed; RefusedError in the same cases and order as Apache's broker."""
        target = self.targets.get(topic)
        if target is not None:
            return target
        config = self.config
        if self.clock() < config.start_accept_send_request_time_stamp:
            raise RefusedError(
                f"broker unable to service, until {_human_time(config.start_accept_send_request_time_stamp)}",
                ResponseCode.SYSTEM_ERROR,
            )
        known = self.topics.get(topic)
        if not config.broker_permission & PERM_WRITE and known is not None and known.order:
            raise RefusedError(
                f"the broker[{self.store_host[0]}] sending message is forbidden", ResponseCode.NO_PERMISSION
            )
        problem = topic_problem(topic)
        if problem is not None:
            raise RefusedError(problem, ResponseCode.INVALID_PARAMETER)
        if topic in NOT_ALLOWED_SEND:
            raise RefusedError(f"Sending message to topic[{topic}] is forbidden.", ResponseCode.NO_PERMISSION)
        if known is None and topic.startswith(RETRY_PREFIX):  # no topic for a group that is not created
            self.group_that_retries(self._group_of_retry_topic(topic[len(RETRY_PREFIX) :]))
        found = known or self.topics.auto_create(topic, default_topic, wanted_queues)
        if found is None:
            raise RefusedError(f"topic[{topic}] not exist, apply first please!{SEE_FAQ}", ResponseCode.TOPIC_NOT_EXIST)
        if found.attributes.get("queue.type", SIMPLE_QUEUES) != SIMPLE_QUEUES:  # in a topics.json of RocketMQ 5
            raise RefusedError(
                f"topic[{topic}] has queue.type={found.attributes['queue.type']}, which is not supported.",
                ResponseCode.NO_PERMISSION,
            )
        self.refuse_unsaved(found.topic_name)
        target = SendTarget(found, self.stats.topic(found.topic_name))
        # Not cached if a check depends on the clock or on a dynamic setting.
        if config.start_accept_send_request_time_stamp == 0 and not found.order:
            self.targets[topic] = target
        return target

    def check_size(self, body: bytes | bytearray | memoryview) -> None:
        """Raise RefusedError for a message body that is too large."""
        if len(body) > self.config.max_message_size:
            raise RefusedError(
                "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
                f"{self.config.max_message_size}B, msg properties length limit 32KB.",
                ResponseCode.MESSAGE_ILLEGAL,
            )

    def choose_queue(self, target: SendTarget, queue_id: int) -> int:
        """The requested queue, or a random one if that is negative; RefusedError for an invalid queue."""
        if queue_id >= target.queue_limit:
            raise RefusedError(
                f"request queueId[{queue_id}] is illegal, topic:[{target.topic}] has {target.queue_limit} queues",
                ResponseCode.INVALID_PARAMETER,
            )
        if queue_id < 0:
            if not target.write_queues:
                raise RefusedError(
                    f"topic:[{target.topic}] has no queue to write to, its writeQueueNums is 0",
                    ResponseCode.INVALID_PARAMETER,
                )
            return random.randrange(target.write_queues)
        return queue_id

    def redirect_retry(self, topic: str, reconsume_times: int, max_reconsume_times: int | None) -> SendTarget | None:
        """The dead-letter topic for a message that has used up its retries; otherwise None."""
        group = self._group_of_retry_topic(topic[len(RETRY_PREFIX) :])
        settings = self.group_that_retries(group)
        limit = settings.retry_max_times if max_reconsume_times is None else max_reconsume_times
        if reconsume_times < limit:
            return None
        self.stats.group(group, topic).dead_letters += 1
        dead = self.topics.ensure(DLQ_PREFIX + group)
        self.refuse_unsaved(dead.topic_name)
        return SendTarget(dead, self.stats.topic(dead.topic_name))

    def group_that_retries(self, group: str) -> SubscriptionGroupConfig:
        """The settings of a group that sends messages back; RefusedError if it does not exist."""
        settings = self.groups.find(group)
        if settings is None:
            raise RefusedError(
                f"subscription group not exist, {group} {self._why_no_group()}{SEE_FAQ}",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        return settings

    def _why_no_group(self) -> str:
        full = self.groups.full if self.config.auto_create_subscription_group else ""
        return f"and is not created: {full}. " if full else ""

    def _group_of_retry_topic(self, name: str) -> str:
        """The group of a retry topic: the name is the group, or for POP ``group_topic`` or ``group+topic``.

        Apache's broker uses the latter as a group name, too, and creates such a group.
        """
        groups, topics = self.groups.table, self.topics.table
        if name not in groups:
            for at, character in enumerate(name):
                if character in "_+" and name[:at] in groups and name[at + 1 :] in topics:
                    return name[:at]
        return name

    def message_waits(self, waiting: Waiting) -> None:
        """Schedule the delivery of a stored delayed message."""
        driver = self.drivers.get(waiting.topic)
        if driver is not None:
            driver.expect(waiting.due)

    # --- consuming ----------------------------------------------------------------------------------------------

    def group_to_consume(self, group: str) -> SubscriptionGroupConfig:
        settings = self.groups.find(group)
        if settings is None:
            raise RefusedError(
                f"subscription group [{group}] does not exist, {self._why_no_group()}{SEE_FAQ}",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        if not settings.consume_enable:
            raise RefusedError(f"subscription group no permission, {group}", ResponseCode.NO_PERMISSION)
        return settings

    def topic_to_read(self, topic: str, queue_id: int, group: str) -> TopicConfig:
        config = self.known_topic(topic)
        if not config.perm & PERM_READ:
            raise RefusedError(f"the topic[{topic}] pulling message is forbidden", ResponseCode.NO_PERMISSION)
        if not 0 <= queue_id < config.read_queue_nums:
            raise illegal_queue(config, queue_id, group)
        return config

    def known_topic(self, topic: str, remark: str | None = None) -> TopicConfig:
        """The topic; RefusedError if it does not exist, with ``remark`` or Apache's remark for readers."""
        config = self.topics.get(topic)
        if config is None:
            remark = remark or f"topic[{topic}] not exist, apply first please! {SEE_FAQ}"
            raise RefusedError(remark, ResponseCode.TOPIC_NOT_EXIST)
        return config

    def is_in_memory(self, physical_offset: int) -> bool:
        """Whether a message is close enough to the end of the log to be considered in memory."""
        memory = _PHYSICAL_MEMORY * self.config.access_message_in_memory_max_ratio // 100
        return self.store.max_physical_offset - physical_offset <= memory

    def first_is_in_memory(self, topic: str, queue_id: int) -> bool:
        """Whether message 0 of a queue is in memory; True for a queue that never had a message."""
        first = self.store.get_entries(topic, queue_id, 0, 1)
        return not first or self.is_in_memory(first[0][0])

    def topic_at(self, physical_offset: int) -> str | None:
        """The topic of the message at an offset of the log, for a half message its real topic; None if there is none.

        RefusedError if the offset is inside a message: a body may contain bytes that look like a message.
        """
        record = self.store.look_message_by_offset(physical_offset)
        if record is None:
            return None
        view = view_record(record)
        topic = str(view.topic, "utf-8", "replace")
        if not self.store.is_message(topic, view.queue_id, view.queue_offset, physical_offset):
            raise RefusedError(f"no message begins at offset {physical_offset} of the log", ResponseCode.NO_PERMISSION)
        if topic != HALF_TOPIC:
            return topic
        return str(find_property(bytes(view.properties), b"REAL_TOPIC") or view.topic, "utf-8", "replace")

    # --- administration -----------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """Delete a topic: settings, queues, offsets, and the retry topics of popped messages.

        RefusedError if the deletion cannot be written to disk; then the topic is unchanged.
        """
        for group in self.offsets.groups_of(topic):
            for v2 in (False, True):
                retry = retry_topic(topic, group, v2=v2)
                if retry in self.topics.table:
                    self.delete_topic(retry)
        try:
            self.store.delete_topic(topic)
        except OSError as error:
            raise RefusedError(
                f"topic {topic} cannot be deleted: {error.strerror or error}", ResponseCode.SYSTEM_ERROR
            ) from error
        self.topics.delete(topic)
        self.offsets.remove_topic(topic)
        self.order.remove_topic(topic)
        self.stats.forget_topic(topic)
        self.held.wake_topic(topic)
        self.waiting.wake_topic(topic)

    def offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        """The offset for a reset to a time; the end of the queue for negative times."""
        if timestamp < 0:
            return self.store.get_max_offset(topic, queue_id)
        return self.store.get_offset_by_time(topic, queue_id, timestamp)


def _unsaved(answer: RemotingCommand, problem: str) -> RemotingCommand:
    """Make a response report that the change could not be written."""
    answer.code = ResponseCode.SYSTEM_ERROR
    answer.remark = f"{problem}. The change is in effect until the broker stops; the write is retried."
    answer.ext_fields, answer.body = {}, b""
    return answer


def illegal_queue(
    config: TopicConfig, queue_id: int, group: str, code: ResponseCode = ResponseCode.INVALID_PARAMETER
) -> RefusedError:
    """Create the error for a queue that the topic does not have."""
    return RefusedError(
        f"queueId[{queue_id}] is illegal, topic:[{config.topic_name}] topicConfig.readQueueNums:"
        f"[{config.read_queue_nums}] consumer:[{group}]",
        code,
    )


def _human_time(timestamp_ms: int) -> str:
    """Local time with milliseconds, in Apache's format."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(timestamp_ms / 1000))},{timestamp_ms % 1000:03}"


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 << 30


_PHYSICAL_MEMORY = _physical_memory()
