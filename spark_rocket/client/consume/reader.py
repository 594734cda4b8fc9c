"""Reads queues by offset, without a subscription, a heartbeat or any state at the broker.

One pull gives at most what the broker is willing to give (32 messages at Apache's defaults, however many are
asked for): go on at ``next_offset``.

pull.py says what a pull's status means.

Errors that pass by themselves (no connection, time-out, codes 2 and 14) have ``retriable`` set; waiting is the
caller's business.

Pulls go to a slave while the master cannot be reached, and when the master suggests it for what is not in its memory
any more; ``from_master`` is then False. What a slave gives is right, but
it may lag behind: where its queue ends, or what it says was never written, is no news about the queue, and the next
pull asks the master again. Every question about offsets is for the master, and fails while that is away, but for a
group's offsets, which its slave knows to within ten seconds and takes as well, and for ``slave_max_offset``.

Thread-safety: all methods. Corresponds to org.apache.rocketmq.client.consumer.DefaultMQPullConsumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar, Unpack

from spark_rocket.client.consume import pull as queries
from spark_rocket.client.consume.pull import (
    STATUS_CODES,
    BrokerQuery,
    PullOptions,
    PullResult,
    PullStatus,
    messages_of,
    pull_request,
    pull_result,
    pull_seconds,
    queue_name,
    with_broker,
)
from spark_rocket.client.core.config import ClientConfig, Connecting
from spark_rocket.client.core.instance import Client
from spark_rocket.client.core.routes import ORDER_NAMESPACE, TopicRoute, order_queues
from spark_rocket.errors import (
    ClientError,
    QueueNotFoundError,
    RemotingConnectError,
    RemotingTimeoutError,
    RocketError,
    TopicNotFoundError,
)
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.filter.tags import SUB_ALL, TYPE_SQL92, parse_tags
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.bodies import MASTER_ID, ClusterInfo, KVTable, SubscriptionData, TopicList
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import GetKVListByNamespaceRequestHeader
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.remoting.client.promise import Promise, failed

logger = logging.getLogger(__name__)

T = TypeVar("T")

AWAY = (RemotingConnectError, RemotingTimeoutError, QueueNotFoundError)
"""Errors by which a master is taken to be away, and its slave is asked what it can say."""

DEFAULT_GROUP = "spark_rocket_reader"
# A proxy in a name server's place has no such list.
_LIST_OR_NONE = frozenset(
    {int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND), int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)}
)


@dataclass(frozen=True, slots=True)
class _Exchange(Generic[T]):
    """A query about a queue, and the broker that it is for.

    ``topic``: None for slaves. That a slave does not have the topic says nothing about the topic.
    """

    address: str
    queue: MessageQueue
    query: BrokerQuery[T]
    timeout: float
    topic: str | None

    @property
    def what(self) -> str:
        return f"{self.query.what} {queue_name(self.queue)}"

    def request(self) -> RemotingCommand:
        return RemotingCommand.request(self.query.code, with_broker(self.queue, self.query.ext))


class Reader(Client):
    """``with Reader("127.0.0.1:9876") as reader: for queue in reader.queues("topic"): reader.messages(queue, 0)``"""

    def __init__(
        self,
        name_server: str | None = None,
        *,
        group: str = DEFAULT_GROUP,
        request_timeout: float = 3.0,
        instance_name: str = "",
        **connecting: Unpack[Connecting],
    ) -> None:
        super().__init__(ClientConfig.of(name_server, instance_name=instance_name, **connecting))
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
        return self.instance().remoting

    def address(self, queue: MessageQueue) -> str:
        """The address of the queue's master."""
        return self.instance().routes.master(queue)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues, sorted."""
        return list(self.instance().routes.route(topic).readable)

    def write_queues(self, topic: str) -> list[MessageQueue]:
        """The topic's writable queues, sorted; for a topic that sending would create, those that it would have."""
        return list(self.instance().routes.publish_route(topic))

    def refresh(self, topic: str) -> list[MessageQueue]:
        """``queues``, asked anew: queues may have been added since."""
        return list(self.route(topic).readable)

    def route(self, topic: str) -> TopicRoute:
        """The topic's brokers and queues, asked anew. What was known stays when no name server knows better."""
        return self.instance().routes.refresh(topic)

    def brokers(self) -> dict[str, dict[int, str]]:
        """The brokers that the name server knows, whatever topics they have: their addresses by id, 0 the master's."""
        answer = self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, "the list of brokers")
        table = ClusterInfo.from_json(answer.body).broker_addr_table
        return {name: broker.broker_addrs for name, broker in table.items()}

    def lacks(self, queue: MessageQueue) -> TopicNotFoundError | QueueNotFoundError | None:
        """The master's word that it does not have the topic or the queue; None if it has, or if it gives no answer.

        What name servers and slaves say is no proof: a topic of brokers that are away has no route, a slave may lag. So
        the master is found by its broker's name. It is asked with a pull: brokers answer other questions about queues
        that they do not have with 0.
        """
        try:
            master = self.brokers().get(queue.broker_name, {}).get(MASTER_ID)
            if master is not None:
                query = queries.store_time(self.group, queue, 0)  # a pull
                self._now(_Exchange(master, queue, query, self._timeout, queue.topic))
        except (TopicNotFoundError, QueueNotFoundError) as said:
            return said
        except RocketError as error:
            logger.info("%s", error)
        return None

    def check_filter(self, topic: str, sql: str) -> None:
        """SubscriptionRefusedError if the topic's brokers do not choose by SQL92 expressions, or not by this one."""
        data = SubscriptionData.build(topic, sql, 0, TYPE_SQL92)
        self.instance().members.check_filters(self.group, [data])

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

    def configured_brokers(self) -> dict[str, frozenset[str]]:
        """The brokers that ORDER_TOPIC_CONFIG gives each of its topics to, whether they are there or not.

        Name servers keep it apart from the routes, which they give out without it (``orderMessageEnable=false``).
        """
        header = GetKVListByNamespaceRequestHeader(namespace=ORDER_NAMESPACE)
        request = RemotingCommand.request(RequestCode.GET_KVLIST_BY_NAMESPACE, header.to_ext())
        answer = self.instance().routes.name_servers.ask(request, _LIST_OR_NONE, f"the entries of {ORDER_NAMESPACE}")
        if answer.code != ResponseCode.SUCCESS:
            return {}
        table = KVTable.from_json(answer.body).table
        return {topic: frozenset(q.broker_name for q in order_queues(topic, text)) for topic, text in table.items()}

    def _ask_name_server(self, code: RequestCode, what: str) -> RemotingCommand:
        allowed = frozenset({int(ResponseCode.SUCCESS)})
        return self.instance().routes.name_servers.ask(RemotingCommand.request(code), allowed, what)

    # --- offsets ----------------------------------------------------------------------------------------------

    def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that still has a message, or would."""
        return self._ask(queue, queries.min_offset(queue))

    def min_offset_later(self, queue: MessageQueue) -> Promise[int]:
        """For a thread that asks about many queues before it waits for the answers; so are the others like it."""
        return self._later(queue, lambda: self._of_master(queue, queries.min_offset(queue)))

    def max_offset(self, queue: MessageQueue) -> int:
        """One past the last message."""
        return self._ask(queue, queries.max_offset(queue))

    def max_offset_later(self, queue: MessageQueue) -> Promise[int]:
        return self._later(queue, lambda: self._of_master(queue, queries.max_offset(queue)))

    def message_sizes_async(self, queue: MessageQueue, offset: int, count: int) -> Future[list[int]]:
        """Bytes of up to so many records from an offset on, as the consume queue has them."""
        return self._async(queue, lambda: self._of_master(queue, queries.message_sizes(queue, offset, count)))

    def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """When the queue's first message was stored, in ms; None when it has none, or its server cannot say (the
        proxies of RocketMQ 5 do not know the question)."""
        return self._ask(queue, queries.earliest_store_time(queue))

    def earliest_store_time_later(self, queue: MessageQueue) -> Promise[int | None]:
        return self._later(queue, lambda: self._of_master(queue, queries.earliest_store_time(queue)))

    def store_time_later(self, queue: MessageQueue, offset: int) -> Promise[int]:
        """When the message at an offset was stored, in ms; -1 if there is none at it."""
        return self._later(queue, lambda: self._of_master(queue, queries.store_time(self.group, queue, offset)))

    def slave_store_time(self, queue: MessageQueue, offset: int) -> int | None:
        """As ``store_time_later``, of a slave; None if none answers."""
        return self._ask_slave(queue, queries.store_time(self.group, queue, offset))

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset whose message was stored at ``timestamp_ms`` or later; ``max_offset`` when none was.

        Brokers before 5.1.1 answer with the *closest* message, any one of a run with equal times, and one before the
        end for times after it. So their answer is only where the search begins.
        """
        low, high = self.min_offset(queue), self.max_offset(queue)
        if low >= high:
            return high
        guess = min(max(self._ask(queue, queries.offset_for_time(queue, timestamp_ms)), low), high)
        # Invariant: everything before ``low`` is older than the time, and nothing from ``high`` on is.
        step = 1
        while low < high:
            at = min(max(guess, low), high - 1)
            stored = self.store_time(queue, at)
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

    def store_time(self, queue: MessageQueue, offset: int) -> int | None:
        while True:
            found = self.pull(queue, offset, max_msgs=1)
            if found.status is PullStatus.FOUND:
                return view_record(found.records, check_crc=False).store_timestamp
            if not found.from_master:
                raise QueueNotFoundError(
                    f"The slave of broker {queue.broker_name!r} cannot serve {queue_name(queue)} at {offset}, and its"
                    " master is away.",
                    remedy="Wait until the master is back; a slave may lag behind it.",
                    retriable=True,
                )
            if found.status is not PullStatus.NO_MATCHED_MSG or found.next_offset <= offset:
                return None
            offset = found.next_offset

    def committed_offset(self, group: str, queue: MessageQueue, *, or_zero: bool = False) -> int | None:
        """The next offset that the group has not consumed, as brokers keep it; None when it has none.

        ``or_zero``, for who is about to consume: 0 instead, if the queue's first message is still in the broker's
        memory. Brokers of 4.x always say so.
        While the master is away its slave is asked; what that has not heard of, the master may know.
        """
        question = queries.committed_offset(group, queue, or_zero=or_zero)
        try:
            return self._ask(queue, question)
        except AWAY:
            found = self._ask_slave(queue, question)
            if found is None:
                raise
            return found

    def committed_offset_later(self, group: str, queue: MessageQueue) -> Promise[int | None]:
        return self._later(queue, lambda: self._of_master(queue, queries.committed_offset(group, queue)))

    def commit_offset(self, group: str, queue: MessageQueue, offset: int, *, oneway: bool = False) -> None:
        """Tell the broker that the group has consumed everything before ``offset``.

        A broker of 5.x takes commits only of groups that it knows. It gets to know one by its first pull, if it is set
        to (``autoCreateSubscriptionGroup``, the default): a refused commit is followed by a pull and tried once more.
        """
        if offset < 0:
            raise ClientError(f"{offset} is no offset to commit for {queue_name(queue)}.", remedy="Offsets begin at 0.")
        question = queries.commit(group, queue, offset)
        if oneway:
            request = RemotingCommand.request(question.code, with_broker(queue, question.ext), oneway=True)
            self.remoting.invoke_oneway(self.address(queue), request, self._timeout)
        elif not self._ask(queue, question):
            pull = queries.store_time(group, queue, offset)
            self._ask(queue, replace(pull, what=f"the first pull of group {group} for"))
            self._ask(queue, replace(question, allowed=queries.SUCCESS))

    def commit_offset_async(self, group: str, queue: MessageQueue, offset: int, timeout: float) -> Future[bool]:
        """The same with a future, tried once: False if the broker does not know the group."""
        return self._async(queue, lambda: self._of_master(queue, queries.commit(group, queue, offset), timeout))

    def commit_to_slave(self, group: str, queue: MessageQueue, offset: int) -> bool:
        """For while the master is away; False if no slave took it. The master has to be told when it is back."""
        taken = self._ask_slave(queue, queries.commit(group, queue, offset))
        return taken is True

    def slave_max_offset(self, queue: MessageQueue) -> int | None:
        """Where the queue ends at its broker's slave, or None if none answers: before its end at the master, maybe."""
        return self._ask_slave(queue, queries.max_offset(queue))

    def slave_message_sizes(self, queue: MessageQueue, offset: int, count: int) -> list[int] | None:
        """As ``message_sizes_async``, of a slave."""
        return self._ask_slave(queue, queries.message_sizes(queue, offset, count))

    # --- messages ---------------------------------------------------------------------------------------------

    def pull(self, queue: MessageQueue, offset: int, **options: Unpack[PullOptions]) -> PullResult:
        """Ask once for messages from ``offset`` on; ``PullOptions`` says what else can be said."""
        return self._now(self._pull_of(queue, offset, options))

    def pull_async(self, queue: MessageQueue, offset: int, **options: Unpack[PullOptions]) -> Future[PullResult]:
        """As ``pull``, with a future: keep the next pull in flight while the last one is used."""
        return self._async(queue, lambda: self._pull_of(queue, offset, options))

    def pull_later(self, queue: MessageQueue, offset: int, **options: Unpack[PullOptions]) -> Promise[PullResult]:
        """As ``pull_async`` for a thread that has many pulls in flight and bounds them: written together."""
        return self._later(queue, lambda: self._pull_of(queue, offset, options))

    def messages(self, queue: MessageQueue, offset: int, **options: Unpack[PullOptions]) -> list[MessageExt]:
        """One pull's messages, decoded and with their tags compared; an empty list when there are none.

        One pull is not the whole queue: call it again with the offset behind the last message.
        """
        wanted = parse_tags(SUB_ALL if options.get("sql") else options.get("tags", SUB_ALL))
        return messages_of(self.pull(queue, offset, **options), queue, offset, wanted)

    # --- the exchange -----------------------------------------------------------------------------------------

    def _pull_of(self, queue: MessageQueue, offset: int, options: PullOptions) -> _Exchange[PullResult]:
        """A pull from the broker that routes choose: the master, or a slave."""
        routes = self.instance().routes
        address, from_master = routes.reader(queue)

        def value(answer: RemotingCommand) -> PullResult:
            result = pull_result(answer, from_master)
            routes.suggested(queue, result.suggested_broker)
            if not from_master and result.status is not PullStatus.FOUND:
                routes.try_master(queue)
            return result

        request = pull_request(self.group, queue, offset, options)
        query = BrokerQuery(
            RequestCode.PULL_MESSAGE, request.ext_fields, f"the pull at {offset} of", value, STATUS_CODES
        )
        return _Exchange(address, queue, query, pull_seconds(options, self._timeout), queue.topic)

    def _of_master(self, queue: MessageQueue, query: BrokerQuery[T], timeout: float | None = None) -> _Exchange[T]:
        """A query about a queue for its master: a slave that lags behind would give an end that is too low."""
        return _Exchange(self.address(queue), queue, query, timeout or self._timeout, queue.topic)

    def _ask(self, queue: MessageQueue, query: BrokerQuery[T]) -> T:
        return self._now(self._of_master(queue, query))

    def _ask_slave(self, queue: MessageQueue, query: BrokerQuery[T]) -> T | None:
        """The answer of a slave of the queue's broker; None if none answers."""
        address = self.instance().routes.slave(queue)
        if address is None:
            return None
        try:
            return self._now(_Exchange(address, queue, query, self._timeout, topic=None))
        except RocketError as error:
            logger.info("from a slave: %s", error)
            return None

    def _now(self, one: _Exchange[T]) -> T:
        answer = self.instance().invoke(
            one.address, one.request(), one.what, topic=one.topic, timeout=one.timeout, allowed=one.query.allowed
        )
        return one.query.value(answer)

    def _async(self, queue: MessageQueue, find: Callable[[], _Exchange[T]], *, batch: bool = False) -> Promise[T]:
        """A promise, which has the error if ``find`` raises one. ``batch``: written together with others."""
        instance = self.instance()
        try:
            one = find()
        except RocketError as error:
            return failed(error)
        return instance.invoke_async(
            one.address,
            one.request(),
            one.what,
            one.query.value,
            topic=queue.topic,
            timeout=one.timeout,
            allowed=one.query.allowed,
            batch=batch,
        )

    def _later(self, queue: MessageQueue, find: Callable[[], _Exchange[T]]) -> Promise[T]:
        """For a thread that sends many queries before it waits for the answers."""
        return self._async(queue, find, batch=True)
