"""Reads queues by offset, without a subscription, a heartbeat or any state at the broker.

One pull returns at most as many messages as the broker allows (32 with Apache's defaults, even if more are requested),
and may return none before the end of the queue: continue at ``next_offset``. ``messages`` does so until it has some.
The statuses of a pull are documented in pull.py.

Every request about a queue is a query of pull.py, and goes one way: :meth:`Reader.ask` finds the broker at a place, and
returns a promise. The other methods are its forms: blocking ones wait for the promise, those of slaves return None if
none responds.

Temporary errors (no connection, timeout, codes 2 and 14) have ``retriable`` set; the caller decides about retries.

Pulls go to a slave while the master is unavailable, and when the master suggests it for messages that are no longer in
its memory; ``from_master`` is then False. Messages of a slave are correct, but a slave may lag behind. Its end of the
queue and its OFFSET_ILLEGAL are therefore ignored, and the next pull goes to the master again. Queries of offsets go to
the master, and fail while it is unavailable. Exceptions are a group's offsets, which the slave has with a delay up to
ten seconds and also accepts, and ``slave_max_offset``.

Corresponds to org.apache.rocketmq.client.consumer.DefaultMQPullConsumer.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from enum import Enum
from typing import Self, TypeVar, Unpack

from spark_rocket.client.consume import pull as queries
from spark_rocket.client.consume.pull import (
    BrokerQuery,
    PullOptions,
    PullResult,
    PullStatus,
    messages_of,
    pull_result,
    pull_seconds,
)
from spark_rocket.client.core.client_config import ClientConfig, Connecting
from spark_rocket.client.core.lifecycle import Client
from spark_rocket.client.core.routes import ORDER_NAMESPACE, TopicRoute, order_queues
from spark_rocket.common.system import time_left
from spark_rocket.errors import (
    ClientError,
    QueueNotFoundError,
    RemotingConnectError,
    RemotingTimeoutError,
    RocketError,
    TopicNotFoundError,
)
from spark_rocket.model import READER_GROUP, MessageExt, MessageQueue
from spark_rocket.protocol.filter.tags import SUB_ALL, TYPE_SQL92, parse_tags
from spark_rocket.protocol.record.messages import UndecodableError
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.bodies.client import SubscriptionData
from spark_rocket.protocol.wire.bodies.route import MASTER_ID, KVTable, TopicList
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.routes import GetKVListByNamespaceRequestHeader
from spark_rocket.remoting.client.promise import Promise, failed
from spark_rocket.remoting.client.remoting_client import RemotingClient

logger = logging.getLogger(__name__)

T = TypeVar("T")

UNAVAILABLE_ERRORS = (RemotingConnectError, RemotingTimeoutError, QueueNotFoundError)
"""Errors that mean that a master is unavailable, so that its slave is used where possible."""

# A proxy used as a name server does not support this list.
_SUCCESS_OR_UNSUPPORTED = frozenset(
    {int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND), int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)}
)


class Place(Enum):
    """The broker of a queue that a query goes to: its master, or an available slave, which may lag behind it."""

    MASTER = "MASTER"
    SLAVE = "SLAVE"


class Reader(Client):
    """``with Reader("127.0.0.1:9876") as reader: for queue in reader.queues("topic"): reader.messages(queue, 0)``"""

    def __init__(
        self,
        name_server: str | None = None,
        *,
        group: str = READER_GROUP,
        request_timeout: float = 3.0,
        instance_name: str = "",
        **connecting: Unpack[Connecting],
    ) -> None:
        super().__init__(ClientConfig.of(name_server, instance_name=instance_name, **connecting))
        self.group = self.namespace.unwrap(group)
        self._timeout = request_timeout

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- routes -----------------------------------------------------------------------------------------------

    @property
    def remoting(self) -> RemotingClient:
        """The underlying connections, for custom requests."""
        return self.instance().remoting

    def address(self, queue: MessageQueue) -> str:
        """Return the address of the queue's master."""
        return self.instance().routes.master(queue)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted."""
        return list(self.instance().routes.route(topic).readable)

    def write_queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic, sorted; for a missing topic the queues of its automatic creation."""
        return list(self.instance().routes.publish_route(topic))

    def refresh(self, topic: str) -> list[MessageQueue]:
        """Return ``queues`` after a refresh of the route: queues may have been added."""
        return list(self.route(topic).readable)

    def route(self, topic: str) -> TopicRoute:
        """Refresh and return the route of a topic. If that fails, return the cached route."""
        return self.instance().routes.refresh(topic)

    def brokers(self) -> dict[str, dict[int, str]]:
        """Return all brokers of the name server: their addresses by id; 0 is the master."""
        instance = self.instance()
        table = instance.run(instance.name_servers.cluster_info).broker_addr_table
        return {name: broker.broker_addrs for name, broker in table.items()}

    def lacks(self, queue: MessageQueue) -> TopicNotFoundError | QueueNotFoundError | None:
        """Return the master's error if it does not have the topic or the queue; otherwise, or if unavailable, None.

        Responses of name servers and slaves prove nothing: a topic of unavailable brokers has no route, and a slave may
        lag behind. So the master is found by its broker name. It is queried with a pull, because brokers respond to
        other queries about missing queues with 0.
        """
        try:
            master = self.brokers().get(queue.broker_name, {}).get(MASTER_ID)
            if master is not None:
                self._send(master, queries.store_time(self.group, queue, 0), self._timeout).wait()  # a pull
        except (TopicNotFoundError, QueueNotFoundError) as missing:
            return missing
        except RocketError as error:
            logger.info("%s", error)
        return None

    def check_filter(self, topic: str, sql: str) -> None:
        """Raise SubscriptionRefusedError if the topic's brokers do not support the SQL92 expression."""
        data = SubscriptionData.build(topic, sql, 0, TYPE_SQL92)
        self.instance().members.check_filters(self.group, [data])

    def topics(self) -> list[str]:
        """Return all topics of the name server, sorted, without those named after clusters and brokers."""
        names = [
            {*TopicList.from_json(self._ask_name_server(code, what).body).topic_list}
            for code, what in (
                (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "the list of topics"),
                (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, "the list of clusters and brokers"),
            )
        ]
        return sorted(names[0] - names[1] - {f"{name}_REPLY_TOPIC" for name in names[1]})

    def configured_brokers(self) -> dict[str, frozenset[str]]:
        """Return the brokers of each topic in ORDER_TOPIC_CONFIG, whether they are available or not.

        Name servers store it separately from the routes, which may omit it (``orderMessageEnable=false``).
        """
        header = GetKVListByNamespaceRequestHeader(namespace=ORDER_NAMESPACE)
        request = RemotingCommand.request(RequestCode.GET_KVLIST_BY_NAMESPACE, header.to_ext())
        response = self._ask_name_servers(request, _SUCCESS_OR_UNSUPPORTED, f"the entries of {ORDER_NAMESPACE}")
        if response.code != ResponseCode.SUCCESS:
            return {}
        table = KVTable.from_json(response.body).table
        return {topic: frozenset(q.broker_name for q in order_queues(topic, text)) for topic, text in table.items()}

    def _ask_name_server(self, code: RequestCode, what: str) -> RemotingCommand:
        allowed = frozenset({int(ResponseCode.SUCCESS)})
        return self._ask_name_servers(RemotingCommand.request(code), allowed, what)

    def _ask_name_servers(self, request: RemotingCommand, allowed: frozenset[int], what: str) -> RemotingCommand:
        instance = self.instance()
        return instance.run(instance.name_servers.ask, request, allowed, what)

    # --- queries of brokers -----------------------------------------------------------------------------------

    def ask(self, query: BrokerQuery[T], place: Place = Place.MASTER, timeout: float | None = None) -> Promise[T]:
        """Send a query and return the promise of its result. The requests of a thread are written together.

        ``timeout`` covers the search for the address of the broker, whose error the promise has as well.
        """
        queue, routes = query.queue, self.instance().routes
        deadline = time.monotonic() + (timeout or self._timeout)
        try:
            address = routes.master(queue, time_left(deadline)) if place is Place.MASTER else routes.slave(queue)
            if address is None:
                raise QueueNotFoundError(
                    f"Broker {queue.broker_name!r} has no available slave.",
                    remedy="Query the master, or wait until a slave is available.",
                    retriable=True,
                )
        except RocketError as error:
            return failed(error)
        return self._send(address, query, time_left(deadline), is_slave=place is Place.SLAVE)

    def _send(self, address: str, query: BrokerQuery[T], timeout: float, *, is_slave: bool = False) -> Promise[T]:
        return self.instance().invoke_async(
            address,
            query.request(),
            query.what,
            query.value,
            topic=None if is_slave else query.queue.topic,  # a topic that is missing on a slave may exist
            timeout=timeout,
            allowed=query.allowed,
        )

    def _ask_slave(self, query: BrokerQuery[T], timeout: float | None = None) -> T | None:
        """Return the response of a slave of the queue's broker; None if none is available."""
        address = self.instance().routes.slave(query.queue)
        if address is None:
            return None
        try:
            return self._send(address, query, timeout or self._timeout, is_slave=True).wait()
        except RocketError as error:
            logger.info("query of a slave failed: %s", error)
            return None

    # --- offsets ----------------------------------------------------------------------------------------------

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the first available offset; in an empty queue that of the next message."""
        return self.ask(queries.min_offset(queue)).wait()

    def min_offset_later(self, queue: MessageQueue) -> Promise[int]:
        """Like ``min_offset``, for threads that send many queries before they wait; the same holds for ``*_later``."""
        return self.ask(queries.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message."""
        return self.ask(queries.max_offset(queue)).wait()

    def max_offset_later(self, queue: MessageQueue) -> Promise[int]:
        return self.ask(queries.max_offset(queue))

    def slave_max_offset(self, queue: MessageQueue) -> int | None:
        """Return the end of the queue at a slave, which may lag behind the master; None if none is available."""
        return self._ask_slave(queries.max_offset(queue))

    def message_sizes_later(self, queue: MessageQueue, offset: int, count: int) -> Promise[list[int]]:
        """Return the sizes in bytes of up to ``count`` records from an offset on, from the consume queue."""
        return self.ask(queries.message_sizes(queue, offset, count))

    def slave_message_sizes(self, queue: MessageQueue, offset: int, count: int) -> list[int] | None:
        """Like ``message_sizes_later``, from a slave."""
        return self._ask_slave(queries.message_sizes(queue, offset, count))

    def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """Return the store time of the queue's first message in ms; None if empty or not supported (5.x proxies)."""
        return self.ask(queries.earliest_store_time(queue)).wait()

    def earliest_store_time_later(self, queue: MessageQueue) -> Promise[int | None]:
        return self.ask(queries.earliest_store_time(queue))

    def store_time_later(self, queue: MessageQueue, offset: int) -> Promise[int]:
        """Return the store time of the message at an offset in ms; -1 if there is none."""
        return self.ask(queries.store_time(self.group, queue, offset))

    def slave_store_time(self, queue: MessageQueue, offset: int) -> int | None:
        """Like ``store_time_later``, from a slave; None if none is available."""
        return self._ask_slave(queries.store_time(self.group, queue, offset))

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset stored at or after ``timestamp_ms``; ``max_offset`` if there is none.

        Brokers before 5.1.1 return the *closest* message, an arbitrary one of a run with equal times, and one before
        the end for later times. So their response is only the start of the search.
        """
        low, high = self.min_offset(queue), self.max_offset(queue)
        if low >= high:
            return high
        guess = min(max(self.ask(queries.offset_for_time(queue, timestamp_ms)).wait(), low), high)
        # Invariant: messages before ``low`` are older than the time; messages from ``high`` on are not.
        step = 1
        while low < high:
            at = min(max(guess, low), high - 1)
            stored = self.store_time(queue, at)
            if stored is None or stored < timestamp_ms:  # None: deleted in the meantime, so older
                low = at + 1
                guess = at + step
            else:
                high = at
                guess = at - step
            step *= 2
            if not low <= guess < high:
                guess = (low + high) // 2
        return low

    def store_time(self, queue: MessageQueue, offset: int) -> int | None:
        while True:
            found = self.pull(queue, offset, max_msgs=1)
            if found.status is PullStatus.FOUND:
                return view_record(found.records, check_crc=False).store_timestamp
            if not found.from_master:
                raise QueueNotFoundError(
                    f"The slave of broker {queue.broker_name!r} cannot serve {queue.name} at offset {offset},"
                    " and the master is unavailable.",
                    remedy="Wait until the master is back; a slave may lag behind it.",
                    retriable=True,
                )
            if found.status is not PullStatus.NO_MATCHED_MSG or found.next_offset <= offset:
                return None
            offset = found.next_offset

    def committed_offset(self, group: str, queue: MessageQueue, *, or_zero: bool = False) -> int | None:
        """Return the next offset of the group, as committed at the broker; None if it has none.

        ``or_zero``, before consuming: 0 instead of None, if the broker has the queue's first message in memory.
        Brokers of 4.x always do that.
        While the master is unavailable its slave is queried. Without an offset at the slave, the master's error is
        raised.
        """
        query = queries.committed_offset(group, queue, or_zero=or_zero)
        try:
            return self.ask(query).wait()
        except UNAVAILABLE_ERRORS:
            found = self._ask_slave(query)
            if found is None:
                raise
            return found

    def committed_offset_later(self, group: str, queue: MessageQueue) -> Promise[int | None]:
        return self.ask(queries.committed_offset(group, queue))

    def has_offset_later(self, group: str, queue: MessageQueue) -> Promise[bool]:
        """Return whether the group has committed an offset in the queue."""
        return self.ask(queries.has_offset(group, queue))

    def commit_offset(
        self, group: str, queue: MessageQueue, offset: int, *, oneway: bool = False, timeout: float | None = None
    ) -> None:
        """Commit that the group has consumed all messages before ``offset``.

        A 5.x broker accepts commits only of known groups. With ``autoCreateSubscriptionGroup``, the default, a pull
        makes a group known: a rejected commit is followed by a pull and retried once.
        """
        if offset < 0:
            raise ClientError(f"Invalid offset {offset} of {queue.name}.", remedy="Offsets start at 0.")
        query = queries.commit(group, queue, offset)
        deadline = time.monotonic() + (timeout or self._timeout)
        if oneway:
            address = self.instance().routes.master(queue, time_left(deadline))
            self.remoting.invoke_oneway(address, query.request(oneway=True), time_left(deadline))
        elif not self.ask(query, timeout=time_left(deadline)).wait():
            pull = replace(queries.store_time(group, queue, offset), doing=f"the first pull of group {group} for")
            self.ask(pull, timeout=time_left(deadline)).wait()
            self.ask(replace(query, allowed=queries.SUCCESS), timeout=time_left(deadline)).wait()

    def commit_offset_async(self, group: str, queue: MessageQueue, offset: int, timeout: float) -> Promise[bool]:
        """Commit once, with a promise: False if the broker does not know the group."""
        return self.ask(queries.commit(group, queue, offset), timeout=timeout)

    def commit_to_slave(self, group: str, queue: MessageQueue, offset: int, timeout: float | None = None) -> bool:
        """Commit while the master is unavailable; False if no slave accepted it. Commit to the master later as well."""
        return self._ask_slave(queries.commit(group, queue, offset), timeout) is True

    # --- messages ---------------------------------------------------------------------------------------------

    def pull(self, queue: MessageQueue, offset: int, **options: Unpack[PullOptions]) -> PullResult:
        """Pull once from ``offset`` on; see ``PullOptions``."""
        return self.pull_async(queue, offset, **options).wait()

    def pull_async(self, queue: MessageQueue, offset: int, **options: Unpack[PullOptions]) -> Promise[PullResult]:
        """Like ``pull``, with a promise: keep the next pull in flight while processing the last one.

        It goes to the master or to a slave, as the routes say.
        """
        routes = self.instance().routes

        def value(response: RemotingCommand) -> PullResult:
            result = pull_result(response, from_master, self._config.namespace)
            routes.suggested(queue, result.suggested_broker)
            if not from_master and result.status is not PullStatus.FOUND:
                routes.try_master(queue)
            return result

        try:
            query = queries.pull(self.group, queue, offset, options, value)
            address, from_master = routes.reader(queue)
        except RocketError as error:
            return failed(error)
        return self._send(address, query, pull_seconds(options, self._timeout))

    def may_block(self, queue: MessageQueue) -> bool:
        """Whether ``pull_async`` may wait: for the start, the route, or a broker that does not read."""
        shared = self._shared
        route = None if shared is None else shared.routes.cached(queue.topic)
        if shared is None or route is None or not route.brokers.get(queue.broker_name):
            return True
        return shared.remoting.is_paused

    def messages(self, queue: MessageQueue, offset: int, **options: Unpack[PullOptions]) -> list[MessageExt]:
        """Return the next matching messages from ``offset`` on, an empty list only at the end of the queue.

        Not all of them: call it again with the offset after the last message. Deleted messages and those that do not
        match are skipped, with as many pulls as needed. ``PullOptions`` apply to each pull.
        """
        wanted = parse_tags(SUB_ALL if options.get("sql") else options.get("tags", SUB_ALL))
        while True:
            found = self.pull(queue, offset, **options)
            try:
                messages = messages_of(found, queue, offset, wanted)
            except UndecodableError as error:
                if not error.messages:
                    raise
                messages = error.messages
            if messages or not _continues(found, offset):
                return messages
            offset = found.next_offset


def _continues(found: PullResult, offset: int) -> bool:
    """Whether a pull without matching messages was not at the end of the queue."""
    if found.next_offset <= offset or found.status is PullStatus.NO_NEW_MSG:
        return False
    # The first offset of a slave that lags behind is not the queue's.
    return found.status is not PullStatus.OFFSET_ILLEGAL or found.from_master
