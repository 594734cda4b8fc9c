"""Messages: search, dead letters, resending.

Corresponds to DefaultMQAdminExt.{viewMessage, queryMessage, queryConsumeQueue}, and to the message and dead-letter
pages of RocketMQ's dashboard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from heapq import nlargest, nsmallest
from itertools import islice

from spark_rocket.client.admin.base import SUCCESS_OR_NOT_FOUND, AdminBase, Query, if_found, record_failure
from spark_rocket.client.admin.broker_rows import Failures
from spark_rocket.client.admin.message_rows import (
    ConsumeQueueEntry,
    ConsumeQueuePage,
)
from spark_rocket.client.admin.origin import origin_of
from spark_rocket.client.admin.topic_rows import TopicKind, topic_kind
from spark_rocket.client.consume.pull import RETRY_TOPIC, PullStatus, messages_of
from spark_rocket.client.consume.services import DEFAULT_MAX_RECONSUME_TIMES
from spark_rocket.client.send.outgoing import STORED_CODES, Outgoing
from spark_rocket.client.send.producer import Producer
from spark_rocket.common.units import moment_text
from spark_rocket.errors import BrokerError, ClientError, ProtocolError, RocketError, TopicNotFoundError
from spark_rocket.model import (
    BAD_RECORD_PROPERTIES,
    DLQ_PREFIX,
    RETRY_PREFIX,
    TOOLS_PRODUCER_GROUP,
    UNIQ_KEY,
    WAIT,
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
)
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.filter.tags import SUB_ALL, parse_tags
from spark_rocket.protocol.ids import decode_offset_msg_id, retry_topic
from spark_rocket.protocol.record.compression import COMPRESSION_BITS, compress_body
from spark_rocket.protocol.record.messages import UndecodableError, decode_messages
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.wire.bodies.consume_queue import QueryConsumeQueueResponseBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.headers.messages import (
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from spark_rocket.remoting.address import format_address

_NOT_NEWER = 2**63 - 1
_COMPRESS_ABOVE_BYTES = 4096
_MAX_RESENDING = 32
_MAX_RESENDING_BYTES = 4 * 1024 * 1024
_MAX_STEP_MESSAGES = 10_000  # messages per step of a backward search
# Properties set by brokers and clients, or valid for one delivery only: a copy of the message does not have them.
_NOT_COPIED = frozenset((
    "UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "MIN_OFFSET", "MAX_OFFSET", "DELAY",
    "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP",
    "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "__transactionId__", "RETRY_TOPIC", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME",
    "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME",
    "INNER_NUM", "INNER_BASE", "__CRC32#", "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT",
))  # fmt: skip


def check_times(begin_ms: int, end_ms: int | None) -> None:
    """Raise a ClientError for a range of times that ends before it begins: it would find nothing."""
    if end_ms is not None and end_ms < begin_ms:
        raise ClientError(
            f"Invalid range of times: it ends at {moment_text(end_ms)} and begins at {moment_text(begin_ms)}.",
            remedy="Give an end that is not before the beginning.",
        )


class MessageAdmin(AdminBase):
    _producer: Producer | None = None

    # --- search -----------------------------------------------------------------------------------------

    def message(self, topic: str, msg_id: str) -> MessageExt | None:
        """Return the message of a topic with an id: the one set by its sender or the offset id of its broker."""
        try:
            host, _ = decode_offset_msg_id(msg_id)
        except ProtocolError:
            pass
        else:
            # Both ids may have 32 digits: it is an offset id only if it contains the address of a broker.
            if format_address(*host) in self._names_by_address():
                try:
                    found = self.view_message(msg_id)
                except BrokerError:
                    found = None
                if found is not None and found.topic == topic:
                    return found
        hits = self._query(topic, msg_id, 32, 0, None, unique=True)
        return hits[-1] if hits else None

    def view_message(self, offset_msg_id: str) -> MessageExt:
        """Return the message at an offset id (of 32 or 56 hex digits)."""
        try:
            host, offset = decode_offset_msg_id(offset_msg_id)
        except ProtocolError as error:
            remedy = "Search for ids set by senders in their topic: query_messages, rocket message query-id."
            raise ClientError(error.message, remedy=remedy) from None
        address = format_address(*host)
        header = ViewMessageRequestHeader(offset=offset)
        code, what = RequestCode.VIEW_MESSAGE_BY_ID, f"the look-up of message {offset_msg_id}"
        broker = self._names_by_address().get(address, "")
        body = self._ask(address, Query(code, what, lambda response: response.body, header))
        return decode_messages(body, broker, namespace=self._config.namespace)[0]

    def _names_by_address(self) -> dict[str, str]:
        every = self.cluster_info().broker_addr_table.values()
        return {address: data.broker_name for data in every for address in data.broker_addrs.values()}

    def query_messages(
        self,
        topic: str,
        key: str,
        *,
        max_num: int = 32,
        begin_ms: int = 0,
        end_ms: int | None = None,
        failed: Failures | None = None,
    ) -> list[MessageExt]:
        """Return the newest messages of a topic with a key (``KEYS`` or ``UNIQ_KEY``), oldest first."""
        check_times(begin_ms, end_ms)
        return self._query(topic, key, max_num, begin_ms, end_ms, failed=failed)

    def _query(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int | None,
        *,
        unique: bool = False,
        failed: Failures | None = None,
    ) -> list[MessageExt]:
        query = Query(
            RequestCode.QUERY_MESSAGE,
            f"the search for key {key} in topic {topic}",
            if_found(lambda response: response.body),
            QueryMessageRequestHeader(
                topic=topic,
                key=key,
                max_num=max_num,
                begin_timestamp=begin_ms,
                end_timestamp=_NOT_NEWER if end_ms is None else end_ms,
                unique_key_query=unique or None,
            ),
            topic=topic,
            allowed=SUCCESS_OR_NOT_FOUND,
        )
        found: list[MessageExt] = []
        for name, body in self._ask_each(self._topic_brokers(topic), query, failed).items():
            with record_failure(failed, name):
                found += self._decoded(body or b"", topic, name, failed)
        # The index holds hashes of keys: compare the keys themselves.
        hits = [m for m in found if m.topic == topic and (key in (m.keys or "").split() or m.msg_id == key)]
        return sorted(hits, key=lambda message: message.store_timestamp)[-max_num:]

    def _decoded(self, records: Buffer, topic: str, broker: str, failed: Failures | None) -> Iterator[MessageExt]:
        """Yield the messages of a run; ``failed`` gets those that cannot be decoded."""
        while records:
            try:
                messages, following = decode_messages(records, broker, namespace=self._config.namespace), len(records)
            except UndecodableError as damaged:
                messages, following = damaged.messages, damaged.end
                _record_damage(failed, MessageQueue(topic, broker, damaged.queue_id), damaged)
            yield from messages
            records = records[following:]

    def messages_by_time(
        self,
        topic: str,
        begin_ms: int = 0,
        end_ms: int | None = None,
        *,
        queue: MessageQueue | None = None,
        limit: int = 64,
        newest: bool = True,
        tags: str = SUB_ALL,
        sql: str | None = None,
        failed: Failures | None = None,
    ) -> list[MessageExt]:
        """Return at most ``limit`` messages stored between two times, of all queues or of one.

        ``newest``: the last ones, newest first; otherwise the first ones, oldest first. ``tags`` (``a || b``) or
        ``sql``: only messages that match such a subscription.
        """
        check_times(begin_ms, end_ms)
        choose = nlargest if newest else nsmallest
        found: list[MessageExt] = []
        for one, (low, high) in self.offsets(topic, failed=failed).items():
            if low >= high or queue not in (None, one):
                continue
            with record_failure(failed, one.broker_name):
                first = self._reader.offset_for_time(one, begin_ms) if begin_ms > 0 else low
                end = high if end_ms is None else self._reader.offset_for_time(one, end_ms + 1)
                if newest:
                    found += self._last(one, first, end, limit, tags, sql, failed)
                else:
                    every = self.messages_between(one, first, end, tags=tags, sql=sql, failed=failed)
                    found += islice(every, limit)
        return choose(limit, found, key=_age)

    def _last(
        self,
        queue: MessageQueue,
        low: int,
        high: int,
        limit: int,
        tags: str,
        sql: str | None,
        failed: Failures | None,
    ) -> list[MessageExt]:
        """Return at most ``limit`` messages at the end of a range of offsets; the search goes backward in steps."""
        found: list[MessageExt] = []
        step = limit
        while low < high and len(found) < limit:
            first = max(low, high - step)
            every = self.messages_between(queue, first, high, tags=tags, sql=sql, failed=failed)
            found = [*deque(every, limit - len(found)), *found]
            high, step = first, min(step * 2, _MAX_STEP_MESSAGES)
        return found

    def messages_at(self, queue: MessageQueue, offset: int, count: int) -> list[MessageExt]:
        """Return up to ``count`` messages of a queue from an offset on; fewer at its end or where some are deleted."""
        return list(self.messages_between(queue, offset, offset + count))

    def messages_between(
        self,
        queue: MessageQueue,
        start: int,
        end: int,
        *,
        tags: str = SUB_ALL,
        sql: str | None = None,
        failed: Failures | None = None,
    ) -> Iterator[MessageExt]:
        """Yield the messages of a queue from ``start`` to before ``end``; they are pulled lazily.

        ``failed`` gets those that cannot be decoded, by their places; without it, the first one is an error.
        """
        wanted = parse_tags(SUB_ALL if sql is not None else tags)
        while start < end:
            found = self._reader.pull(queue, start, max_msgs=min(end - start, 1000), tags=tags, sql=sql)
            if found.status is PullStatus.FOUND:
                try:
                    messages, damaged = messages_of(found, queue, start, wanted), None
                except UndecodableError as error:
                    messages, damaged = error.messages, error
                yield from (message for message in messages if message.queue_offset < end)
                if damaged is not None and damaged.queue_offset < end:
                    _record_damage(failed, queue, damaged)
                    start = max(start, damaged.queue_offset) + 1
                    continue
            if found.next_offset <= start:
                return
            start = found.next_offset

    def consume_queue(
        self, queue: MessageQueue, offset: int, count: int, *, group: str | None = None
    ) -> ConsumeQueuePage:
        """Return entries of a consume queue; with an online group, also whether they match its subscription."""
        header = QueryConsumeQueueRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, index=offset, count=count, consumer_group=group
        )
        address = self._topic_brokers(queue.topic).get(queue.broker_name) or self._address(queue.broker_name)
        what = f"the entries of queue {queue.queue_id} of topic {queue.topic}"
        code = RequestCode.QUERY_CONSUME_QUEUE
        response = self._ask(address, Query(code, what, lambda response: response, header, topic=queue.topic))
        if not response.body:  # 5.x, when there is nothing at the offset
            low, high = self._reader.min_offset(queue), self._reader.max_offset(queue)
            return ConsumeQueuePage(low, high, [])
        body = QueryConsumeQueueResponseBody.from_json(response.body)
        first = max(offset, body.min_queue_index)
        entries = [
            ConsumeQueueEntry(first + place, entry.physic_offset, entry.physic_size, entry.tags_code, entry.eval)
            for place, entry in enumerate(body.queue_data)
        ]
        return ConsumeQueuePage(body.min_queue_index, body.max_queue_index, entries)

    # --- dead letters -----------------------------------------------------------------------------------------

    def dead_letters(
        self,
        group: str,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
        failed: Failures | None = None,
    ) -> list[MessageExt]:
        """Return a group's dead letters, newest first; an empty list if it never had any."""
        try:
            return self.messages_by_time(DLQ_PREFIX + group, begin_ms, end_ms, limit=limit, failed=failed)
        except TopicNotFoundError:
            return []

    def origin_topic(self, message: MessageExt) -> str:
        """Return the original topic of a retried message or a dead letter; its own topic for any other message."""
        origin = origin_of(message)
        return message.topic if origin is None else origin.topic

    def resend(self, message: MessageExt, *, group: str | None = None) -> SendResult:
        """Send a copy of a message to its origin topic, for every group, or with ``group`` only to that group.

        The latter goes to the group's retry topic, as after a first failure. Keys, tags, properties and body are
        copied; the copy has a new id and is delivered immediately.
        """
        [(_, result)] = self.resend_each([message], group=group)
        if isinstance(result, RocketError):
            raise result
        return result

    def resend_each(
        self, messages: Iterable[MessageExt], *, group: str | None = None
    ) -> Iterator[tuple[MessageExt, SendResult | RocketError]]:
        """Resend messages like ``resend``, several at a time; yield each with its result or its error, in their order.

        Each is sent once, in a request of its own. A failure does not stop the others.
        """
        retry_topics: dict[str, str | RocketError] = {}
        in_flight: deque[tuple[MessageExt, Future[SendResult]]] = deque()
        size = 0  # of the bodies in flight
        for message in messages:
            size += len(message.body)
            while in_flight and (len(in_flight) >= _MAX_RESENDING or size > _MAX_RESENDING_BYTES):
                size -= len(in_flight[0][0].body)
                yield _settled(*in_flight.popleft())
            try:
                sending = self._resend(message, group, retry_topics)
            except RocketError as error:
                sending = Future()
                sending.set_exception(error)
            in_flight.append((message, sending))
        while in_flight:
            yield _settled(*in_flight.popleft())

    def _resend(
        self, message: MessageExt, group: str | None, retry_topics: dict[str, str | RocketError]
    ) -> Future[SendResult]:
        """Start to resend a message. ``retry_topics``: those found so far, or the error, by origin topic."""
        origin = self.origin_topic(message)
        copied = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
        if group is None:
            if (bad := origin_of(message)) is not None and bad.is_bad_record:
                if bad.missing is not None:
                    raise ClientError(
                        f"Dead letter {message.msg_id} of topic {message.topic!r} lacks {bad.missing}.",
                        remedy="Resend the original message, if it is still stored.",
                    )
                copied = {name: value for name, value in copied.items() if name not in BAD_RECORD_PROPERTIES}
            if topic_kind(origin) in (TopicKind.RETRY, TopicKind.DLQ):
                raise ClientError(
                    f"Message {message.msg_id} of topic {message.topic!r} has no record of its original topic.",
                    remedy="Resend it to its group.",
                )
            return self._tools_producer().send_async(Message(origin, message.body, copied, message.flag))
        if origin != message.topic or topic_kind(origin) is TopicKind.USER:
            copied[RETRY_TOPIC] = origin
        if origin not in retry_topics:
            try:
                retry_topics[origin] = self._retry_topic(group, origin)
            except RocketError as error:
                retry_topics[origin] = error
        topic = retry_topics[origin]
        if isinstance(topic, RocketError):
            raise topic
        return self._send_to_retry(topic, message, copied)

    def _send_to_retry(self, topic: str, message: MessageExt, properties: dict[str, str]) -> Future[SendResult]:
        """Send a message as a consumer does after a failure, with its own retry limit: the group's may be 0."""
        instance = self.instance()
        queues = instance.routes.publish_route(topic)
        queue = queues[message.queue_offset % len(queues)]
        key = instance.next_key()
        body, sys_flag = message.body, 0
        if len(body) > _COMPRESS_ABOVE_BYTES:
            body, sys_flag = compress_body(body), COMPRESSION_BITS["zlib"]
        out = Outgoing(
            topic,
            body,
            properties=encode_properties({UNIQ_KEY: key, WAIT: "true"} | properties).decode(),
            msg_id=key,
            flag=message.flag,
            sys_flag=sys_flag,
            code=int(RequestCode.SEND_MESSAGE_V2),
        )
        request = out.request(TOOLS_PRODUCER_GROUP, queue)
        request.ext_fields["l"] = str(DEFAULT_MAX_RECONSUME_TIMES)
        return instance.invoke_async(
            instance.routes.master(queue),
            request,
            f"the copy of {message.msg_id}",
            partial(out.result, queue),
            topic=topic,
            timeout=self._timeout,
            allowed=STORED_CODES,
        )

    def _retry_topic(self, group: str, origin: str) -> str:
        """Return the topic from which a group consumes retries. Groups of POP consumers have one per topic."""
        origin = self.namespace.wrap(origin)  # behind the group, where the first form has no mark
        for topic in (*(retry_topic(origin, group, v2=v2) for v2 in (True, False)), RETRY_PREFIX + group):
            try:
                self.topic_route(topic)
            except TopicNotFoundError:
                continue
            return topic
        raise TopicNotFoundError(
            f"Group {group!r} has no retry topic: it has never been online here.",
            remedy="Start a consumer of the group first, or send the message to its origin topic.",
            response_code=ResponseCode.TOPIC_NOT_EXIST,
        )

    def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        """Send one message, for administrators; programs use a Producer."""
        return self._tools_producer().send(message, queue=queue)

    def _tools_producer(self) -> Producer:
        with self._lock:
            self.instance()  # raises StateError after close
            if self._producer is None:
                self._producer = Producer(
                    TOOLS_PRODUCER_GROUP, name_server=self.name_server, member=False, **self._connecting
                )
                self._clients.append(self._producer)
            producer = self._producer
        producer.start()
        return producer


def _record_damage(failed: Failures | None, queue: MessageQueue, damaged: UndecodableError) -> None:
    with record_failure(failed, f"{queue.name}@{damaged.queue_offset}"):
        raise damaged


def _settled(message: MessageExt, sending: Future[SendResult]) -> tuple[MessageExt, SendResult | RocketError]:
    try:
        return message, sending.result()
    except RocketError as error:
        return message, error


def _age(message: MessageExt) -> tuple[int, str, int, int]:
    return message.store_timestamp, message.broker_name, message.queue_id, message.queue_offset
