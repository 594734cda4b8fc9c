"""Reads queues by offset, without a subscription, a heartbeat or any state at the broker.

Every pull carries its own subscription (sysFlag bit 4), so brokers serve it although they have never heard of the
group. One pull gives at most what the broker is willing to give (32 messages at Apache's defaults, however many are
asked for): go on at ``next_offset``.

What a pull's status means:

==================  =====================  ============================================================================
status              code                   then
==================  =====================  ============================================================================
FOUND               0                      ``records`` is a run of records; tags were compared by hash only, so compare
                                           them again (``decode_records(tags=…)``, ``messages`` does)
NO_NEW_MSG          19                     the queue ends here
NO_MATCHED_MSG      20                     nothing for this tag expression up to ``next_offset``
OFFSET_ILLEGAL      21                     before ``min_offset``: deleted; after ``max_offset``: never written
==================  =====================  ============================================================================

Errors that pass by themselves (no connection, time-out, codes 2 and 14) have ``retriable`` set; waiting is the
caller's business.

Pulls go to a slave while the master cannot be reached; ``from_master`` is then False. What a slave gives is right, but
it may lag behind: where its queue ends, or what it says was never written, is no news about the queue, and the next
pull asks the master again. Every question about offsets is for the master alone, so it fails while that is away.

Thread-safety: all methods. Corresponds to org.apache.rocketmq.client.consumer.DefaultMQPullConsumer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Self, TypeVar

from spark_rocket.client.config import ClientConfig
from spark_rocket.client.instance import Client, ClientInstance
from spark_rocket.errors import ClientError, QueueNotFoundError, RemotingConnectError, RocketError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.bodies import QueryConsumeQueueResponseBody, SubscriptionData, TopicList
from spark_rocket.protocol.codes import RequestCode, ResponseCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from spark_rocket.protocol.record import decode_messages, view_record
from spark_rocket.protocol.subscription import SUB_ALL, TYPE_SQL92, TYPE_TAG, parse_tags
from spark_rocket.remoting.client import RemotingClient
from spark_rocket.remoting.waiters import SyncWaiter

T = TypeVar("T")

DEFAULT_GROUP = "spark_rocket_reader"
DEFAULT_MAX_MSGS = 32
SUSPEND_MARGIN = 10.0  # seconds after a long poll's end in which brokers, who look every 5 s, answer it

BROKER_NAME = "bname"

_FOR_EVER = 3600.0  # seconds: the connection sees to the time-out

_COMMIT = 0x1
_SUSPEND = 0x2
_SUBSCRIPTION = 0x4


class PullStatus(Enum):
    """See the module."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MSG,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MSG,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}
_STATUS_CODES = frozenset(_STATUS)
_FOUND_OR_NOT = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
_TAKEN_OR_UNKNOWN = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)})


@dataclass(frozen=True, slots=True)
class PullResult:
    """A pull's answer; ``records`` is empty unless FOUND."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: memoryview
    from_master: bool = True


class Pending(Generic[T]):
    """An answer that is to come, for the one thread that asked; ``refused``: why nothing was asked."""

    __slots__ = ("_address", "_allowed", "_instance", "_topic", "_value", "_waiter", "_what", "refused")

    def __init__(
        self,
        instance: ClientInstance,
        what: str,
        topic: str,
        allowed: frozenset[int],
        value: Callable[[RemotingCommand], T],
    ) -> None:
        self._instance = instance
        self._what = what
        self._topic = topic
        self._allowed = allowed
        self._value = value
        self._address = ""
        self._waiter = SyncWaiter()
        self.refused: RocketError | None = None

    def send(self, address: str, request: RemotingCommand, timeout: float) -> None:
        self._address = address
        try:
            self._instance.remoting.post(address, request, self._waiter, timeout)
        except RocketError as error:
            self.refused = error

    def result(self) -> T:
        """Wait for it; its time-out is an error like others."""
        waiter = self._waiter
        try:
            if self.refused is not None:
                raise self.refused
            while not waiter.told:
                waiter.wait(_FOR_EVER)
            answer = waiter.result()
        except RemotingConnectError:
            if self._address:
                self._instance.routes.went_away(self._address)
            raise
        return self._value(self._instance.checked(answer, self._address, self._what, self._topic, self._allowed))


class Reader(Client):
    """``with Reader("127.0.0.1:9876") as reader: for queue in reader.queues("topic"): reader.messages(queue, 0)``"""

    def __init__(
        self,
        name_server: str | None = None,
        *,
        group: str = DEFAULT_GROUP,
        request_timeout: float = 3.0,
        instance_name: str = "",
    ) -> None:
        super().__init__(ClientConfig.of(name_server, instance_name=instance_name))
        self.group = group
        self._timeout = request_timeout

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- where things are -------------------------------------------------------------------------------------

    @property
    def remoting(self) -> RemotingClient:
        """The connections beneath, for requests of one's own."""
        return self._instance().remoting

    def address(self, queue: MessageQueue) -> str:
        """The address of the queue's master."""
        return self._instance().routes.master(queue)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues, sorted."""
        return list(self._instance().routes.route(topic).readable)

    def write_queues(self, topic: str) -> list[MessageQueue]:
        """The topic's writable queues, sorted; for a topic that sending would create, those that it would have."""
        return list(self._instance().routes.publish_route(topic))

    def refresh(self, topic: str) -> list[MessageQueue]:
        """``queues``, asked anew: queues may have been added since."""
        return list(self._instance().routes.refresh(topic).readable)

    def check_filter(self, topic: str, sql: str) -> None:
        """SubscriptionRefusedError if the topic's brokers do not choose by SQL92 expressions, or not by this one."""
        data = SubscriptionData.build(topic, sql, 0, TYPE_SQL92)
        self._instance().members.check_filters(self.group, [data])

    def topics(self) -> list[str]:
        """All topics that the name server knows, sorted, but those that are named after clusters and brokers."""
        names = [
            {*TopicList.from_json(self._ask_name_server(code, what).body).topic_list}
            for code, what in (
                (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "the list of topics"),
                (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, "the list of clusters and brokers"),
            )
        ]
        return sorted(names[0] - names[1] - {f"{name}_REPLY_TOPIC" for name in names[1]})

    def _ask_name_server(self, code: RequestCode, what: str) -> RemotingCommand:
        allowed = frozenset({int(ResponseCode.SUCCESS)})
        return self._instance().routes.name_servers.ask(RemotingCommand.request(code), allowed, what)

    # --- offsets ----------------------------------------------------------------------------------------------

    def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that still has a message, or would."""
        return self._ask_for(queue, _min_offset(queue))

    def min_offset_later(self, queue: MessageQueue) -> Pending[int]:
        """For a thread that asks about many queues before it waits for the answers; so are the others like it."""
        return self._ask_for_later(queue, _min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """One past the last message."""
        return self._ask_for(queue, _max_offset(queue))

    def max_offset_later(self, queue: MessageQueue) -> Pending[int]:
        return self._ask_for_later(queue, _max_offset(queue))

    def message_sizes_async(self, queue: MessageQueue, offset: int, count: int) -> Future[list[int]]:
        """Bytes of up to so many records from an offset on, as the consume queue has them."""
        return self._ask_for_async(queue, _message_sizes(queue, offset, count))

    def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """When the queue's first message was stored, in ms; None when it has none."""
        header = GetEarliestMsgStoretimeRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        answer = self._ask(
            queue, RequestCode.GET_EARLIEST_MSG_STORETIME, header.to_ext(), "the question for the first time of"
        )
        timestamp = GetEarliestMsgStoretimeResponseHeader.from_ext(answer.ext_fields).timestamp
        return None if timestamp < 0 else timestamp

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset whose message was stored at ``timestamp_ms`` or later; ``max_offset`` when none was.

        Brokers before 5.1.1 answer with the *closest* message, any one of a run with equal times, and one before the
        end for times after it. So their answer is only where the search begins.
        """
        low, high = self.min_offset(queue), self.max_offset(queue)
        if low >= high:
            return high
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        answer = self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.to_ext(), "the search by time in")
        guess = min(max(SearchOffsetResponseHeader.from_ext(answer.ext_fields).offset, low), high)
        # Invariant: everything before ``low`` is older than the time, and nothing from ``high`` on is.
        step = 1
        while low < high:
            at = min(max(guess, low), high - 1)
            stored = self._store_time(queue, at)
            if stored is None or stored < timestamp_ms:  # None: deleted meanwhile, so older
                low = at + 1
                guess = at + step
            else:
                high = at
                guess = at - step
            step *= 2
            if not low <= guess < high:
                guess = (low + high) // 2
        return low

    def _store_time(self, queue: MessageQueue, offset: int) -> int | None:
        while True:
            found = self.pull(queue, offset, max_msgs=1)
            if found.status is PullStatus.FOUND:
                return view_record(found.records, check_crc=False).store_timestamp
            if not found.from_master:
                raise QueueNotFoundError(
                    f"The slave of broker {queue.broker_name!r} cannot serve {_name(queue)} at {offset}, and its master"
                    " is away.",
                    remedy="Wait until the master is back; a slave may lag behind it.",
                    retriable=True,
                )
            if found.status is not PullStatus.NO_MATCHED_MSG or found.next_offset <= offset:
                return None
            offset = found.next_offset

    def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The next offset that the group has not consumed, as brokers keep it; None when it has none."""
        return self._ask_for(queue, _committed_offset(group, queue))

    def committed_offset_later(self, group: str, queue: MessageQueue) -> Pending[int | None]:
        return self._ask_for_later(queue, _committed_offset(group, queue))

    def commit_offset(self, group: str, queue: MessageQueue, offset: int, *, oneway: bool = False) -> None:
        """Tell the broker that the group has consumed everything before ``offset``.

        A broker of 5.x takes commits only of groups that it knows. It gets to know one by its first pull, if it is set
        to (``autoCreateSubscriptionGroup``, the default): a refused commit is followed by a pull and tried once more.
        """
        if offset < 0:
            raise ClientError(f"{offset} is no offset to commit for {_name(queue)}.", remedy="Offsets begin at 0.")
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        if oneway:
            ext = _of(queue, header.to_ext())
            request = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext, oneway=True)
            self.remoting.invoke_oneway(self.address(queue), request, self._timeout)
            return
        what = f"the offset {offset} of group {group} for"
        ext = header.to_ext()
        answer = self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext, what, _TAKEN_OR_UNKNOWN)
        if answer.code != ResponseCode.SUCCESS:
            _, request, _ = self._pull_request(queue, offset, 1, None, SUB_ALL, 0, None, group=group)
            first = f"the first pull of group {group} for"
            self._ask(queue, RequestCode.PULL_MESSAGE, request.ext_fields, first, _STATUS_CODES)
            self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext, what)

    def commit_offset_async(self, group: str, queue: MessageQueue, offset: int, timeout: float) -> Future[bool]:
        """The same with a future, tried once: False if the broker does not know the group."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        question = _Question(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            header.to_ext(),
            f"the offset {offset} of group {group} for",
            lambda answer: answer.code == ResponseCode.SUCCESS,
            _TAKEN_OR_UNKNOWN,
        )
        return self._ask_for_async(queue, question, timeout)

    # --- messages ---------------------------------------------------------------------------------------------

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_msgs: int = DEFAULT_MAX_MSGS,
        max_bytes: int | None = None,
        tags: str = SUB_ALL,
        sql: str | None = None,
        suspend_ms: int = 0,
        timeout: float | None = None,
    ) -> PullResult:
        """Ask once for messages from ``offset`` on.

        With ``suspend_ms`` the broker waits so long for a message if there is none yet. ``max_bytes`` bounds the
        answer, as far as the broker knows that field. ``timeout`` (seconds) comes on top of the suspension. ``sql``
        has the broker choose by an SQL92 expression instead of tags (enablePropertyFilter).
        """
        (address, from_master), request, seconds = self._pull_request(
            queue, offset, max_msgs, max_bytes, tags, suspend_ms, timeout, sql=sql
        )
        answer = self._instance().invoke(
            address,
            request,
            f"the pull of {_name(queue)} at {offset}",
            topic=queue.topic,
            timeout=seconds,
            allowed=_STATUS_CODES,
        )
        return self._pull_result(answer, queue, from_master)

    def pull_async(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_msgs: int = DEFAULT_MAX_MSGS,
        max_bytes: int | None = None,
        tags: str = SUB_ALL,
        sql: str | None = None,
        commit: int | None = None,
        suspend_ms: int = 0,
        timeout: float | None = None,
    ) -> Future[PullResult]:
        """As ``pull``, with a future: keep the next pull under way while the last one is used.

        ``commit`` tells the broker by the way that this reader's group has consumed everything before that offset.
        """
        try:
            (address, from_master), request, seconds = self._pull_request(
                queue, offset, max_msgs, max_bytes, tags, suspend_ms, timeout, sql=sql, commit=commit
            )
        except RocketError as error:
            failed: Future[PullResult] = Future()
            failed.set_exception(error)
            return failed
        return self._instance().invoke_async(
            address,
            request,
            f"the pull of {_name(queue)} at {offset}",
            lambda answer: self._pull_result(answer, queue, from_master),
            topic=queue.topic,
            timeout=seconds,
            allowed=_STATUS_CODES,
        )

    def pull_later(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_msgs: int = DEFAULT_MAX_MSGS,
        max_bytes: int | None = None,
        tags: str = SUB_ALL,
        sql: str | None = None,
        timeout: float | None = None,
    ) -> Pending[PullResult]:
        """As ``pull_async`` for a thread that has many pulls under way and waits for each: half the work.

        It waits for a connection if there is none.
        """
        what = f"the pull of {_name(queue)} at {offset}"
        from_master = True
        pending = Pending(
            self._instance(),
            what,
            queue.topic,
            _STATUS_CODES,
            lambda answer: self._pull_result(answer, queue, from_master),
        )
        try:
            (address, from_master), request, seconds = self._pull_request(
                queue, offset, max_msgs, max_bytes, tags, 0, timeout, sql=sql
            )
        except RocketError as error:
            pending.refused = error
        else:
            pending.send(address, request, seconds)
        return pending

    def messages(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_msgs: int = DEFAULT_MAX_MSGS,
        max_bytes: int | None = None,
        tags: str = SUB_ALL,
        suspend_ms: int = 0,
        timeout: float | None = None,
    ) -> list[MessageExt]:
        """One pull's messages, decoded and with their tags compared; an empty list when there are none.

        One pull is not the whole queue: call it again with the offset behind the last message.
        """
        found = self.pull(
            queue,
            offset,
            max_msgs=max_msgs,
            max_bytes=max_bytes,
            tags=tags,
            suspend_ms=suspend_ms,
            timeout=timeout,
        )
        wanted = parse_tags(tags)
        every = decode_messages(found.records, queue.broker_name)
        return [message for message in every if message.queue_offset >= offset and wanted.matches(message.tags)]

    # --- the exchange -----------------------------------------------------------------------------------------

    def _pull_request(
        self,
        queue: MessageQueue,
        offset: int,
        max_msgs: int,
        max_bytes: int | None,
        tags: str,
        suspend_ms: int,
        timeout: float | None,
        group: str | None = None,
        sql: str | None = None,
        commit: int | None = None,
    ) -> tuple[tuple[str, bool], RemotingCommand, float]:
        header = PullMessageRequestHeader(
            consumer_group=group or self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_msgs,
            sys_flag=_SUBSCRIPTION | (_SUSPEND if suspend_ms > 0 else 0) | (0 if commit is None else _COMMIT),
            commit_offset=commit or 0,
            suspend_timeout_millis=suspend_ms,
            sub_version=0,
            subscription=sql or tags or SUB_ALL,
            expression_type=TYPE_SQL92 if sql else TYPE_TAG,
            max_msg_bytes=max_bytes,
        )
        seconds = timeout or self._timeout
        if suspend_ms > 0:
            seconds += suspend_ms / 1000 + SUSPEND_MARGIN
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, _of(queue, header.to_ext()))
        return self._instance().routes.reader(queue), request, seconds

    def _ask(
        self,
        queue: MessageQueue,
        code: RequestCode,
        ext: dict[str, str],
        what: str,
        allowed: frozenset[int] = frozenset({int(ResponseCode.SUCCESS)}),
    ) -> RemotingCommand:
        """A question about a queue, for its master: a slave that lags behind would name an end that is none."""
        instance = self._instance()
        return instance.invoke(
            instance.routes.master(queue),
            RemotingCommand.request(code, _of(queue, ext)),
            f"{what} {_name(queue)}",
            topic=queue.topic,
            timeout=self._timeout,
            allowed=allowed,
        )

    def _ask_for(self, queue: MessageQueue, question: _Question[T]) -> T:
        answer = self._ask(queue, question.code, question.ext, question.what, question.allowed)
        return question.value(answer)

    def _ask_for_later(self, queue: MessageQueue, question: _Question[T]) -> Pending[T]:
        instance = self._instance()
        what = f"{question.what} {_name(queue)}"
        pending = Pending(instance, what, queue.topic, question.allowed, question.value)
        try:
            address = instance.routes.master(queue)
        except RocketError as error:
            pending.refused = error
        else:
            pending.send(address, RemotingCommand.request(question.code, question.ext), self._timeout)
        return pending

    def _ask_for_async(self, queue: MessageQueue, question: _Question[T], timeout: float | None = None) -> Future[T]:
        instance = self._instance()
        try:
            return instance.invoke_async(
                instance.routes.master(queue),
                RemotingCommand.request(question.code, _of(queue, question.ext)),
                f"{question.what} {_name(queue)}",
                question.value,
                topic=queue.topic,
                timeout=timeout or self._timeout,
                allowed=question.allowed,
            )
        except RocketError as error:
            failed: Future[T] = Future()
            failed.set_exception(error)
            return failed

    def _pull_result(self, answer: RemotingCommand, queue: MessageQueue, from_master: bool) -> PullResult:
        header = PullMessageResponseHeader.from_ext(answer.ext_fields)
        status = _STATUS[answer.code]
        if not from_master and status is not PullStatus.FOUND:
            self._instance().routes.try_master(queue)
        body = answer.body if status is PullStatus.FOUND else b""
        return PullResult(
            status,
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            body if isinstance(body, memoryview) else memoryview(body),
            from_master,
        )


@dataclass(frozen=True, slots=True)
class _Question(Generic[T]):
    """A question about a queue that is asked in either way, and what its answer says."""

    code: RequestCode
    ext: dict[str, str]
    what: str
    value: Callable[[RemotingCommand], T]
    allowed: frozenset[int] = frozenset({int(ResponseCode.SUCCESS)})


def _min_offset(queue: MessageQueue) -> _Question[int]:
    return _Question(
        RequestCode.GET_MIN_OFFSET,
        GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id).to_ext(),
        "the question for the first offset of",
        lambda answer: GetMinOffsetResponseHeader.from_ext(answer.ext_fields).offset,
    )


def _max_offset(queue: MessageQueue) -> _Question[int]:
    return _Question(
        RequestCode.GET_MAX_OFFSET,
        GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id).to_ext(),
        "the question for the end of",
        lambda answer: GetMaxOffsetResponseHeader.from_ext(answer.ext_fields).offset,
    )


def _message_sizes(queue: MessageQueue, offset: int, count: int) -> _Question[list[int]]:
    header = QueryConsumeQueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id, index=offset, count=count)

    def value(answer: RemotingCommand) -> list[int]:
        if not answer.body:  # 5.x, when there is nothing at the offset
            return []
        body = QueryConsumeQueueResponseBody.from_json(answer.body)
        return [entry.physic_size for entry in body.queue_data or ()]

    return _Question(RequestCode.QUERY_CONSUME_QUEUE, header.to_ext(), "the question for sizes of messages in", value)


def _committed_offset(group: str, queue: MessageQueue) -> _Question[int | None]:
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
    )

    def value(answer: RemotingCommand) -> int | None:
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return QueryConsumerOffsetResponseHeader.from_ext(answer.ext_fields).offset

    what = f"the question for the offset of group {group} in"
    return _Question(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext(), what, value, _FOUND_OR_NOT)


def _of(queue: MessageQueue, ext: dict[str, str]) -> dict[str, str]:
    """Ext fields with the broker's name, by which a proxy passes the request on."""
    ext[BROKER_NAME] = queue.broker_name
    return ext


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
