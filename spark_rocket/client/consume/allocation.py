"""Allocation of a topic's queues among the members of a consumer group.

Every member runs the same strategy over the same sorted lists and uses its own share, so no coordination is needed.
That requires that all members of a group use the same strategy with the same settings.

=========================================  =========================================================================
:class:`AllocateAveragely` (AVG)           consecutive runs of nearly equal length; the default
:class:`AllocateByCircle` (AVG_BY_CIRCLE)   every n-th queue
:class:`AllocateByConfig` (CONFIG)          a fixed list of queues
:class:`AllocateByMachineRoom`              queues of brokers named ``room@…``, of the given rooms only
:class:`AllocateMachineRoomNearby`          within each room by another strategy; rooms without members by all
:class:`AllocateByConsistentHash`           few queues move when a member joins or leaves
=========================================  =========================================================================

``QueueShare`` queries brokers for the members of the group, applies the strategy, and determines the start offset of
the member in a queue. It sends requests, so it may block.

Thread-safety: all. Corresponds to org.apache.rocketmq.client.consumer.rebalance, to the parts of RebalanceImpl that
choose queues and start offsets, and to MQClientInstance.findConsumerIdList.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from spark_rocket.client.consume.listeners import ConsumeFromWhere, MessageQueueListener
from spark_rocket.client.consume.offset_store import OffsetStore
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.common.arguments import checked_class
from spark_rocket.common.logs import errors_logged
from spark_rocket.common.system import now_ms
from spark_rocket.errors import ClientError, RocketError, TopicNotFoundError
from spark_rocket.model import RETRY_PREFIX, MessageQueue
from spark_rocket.protocol.wire.bodies.client import GetConsumerListByGroupResponseBody
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.membership import GetConsumerListByGroupRequestHeader

logger = logging.getLogger(__name__)


class AllocateStrategy(Protocol):
    """``allocate`` returns one member's share of sorted queues; brokers and tools show ``name``."""

    @property
    def name(self) -> str: ...

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]: ...


class _ByPlace:
    """A strategy that depends only on a member's position among the members."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the member's queues; none if the brokers do not (yet) have the member."""
        if client_id not in client_ids:
            return []
        return self._share(client_ids.index(client_id), len(client_ids), queues)

    def _share(self, place: int, members: int, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        raise NotImplementedError


class AllocateAveragely(_ByPlace):
    """Consecutive runs; the first members get one more queue if the numbers do not divide evenly."""

    name = "AVG"

    def _share(self, place: int, members: int, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        share, rest = divmod(len(queues), members)
        start = place * share + min(place, rest)
        return list(queues[start : start + share + (place < rest)])


class AllocateByCircle(_ByPlace):
    """Queue 0 to the first member, 1 to the second, and so on."""

    name = "AVG_BY_CIRCLE"

    def _share(self, place: int, members: int, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        return list(queues[place::members])


@checked_class
class AllocateByConfig:
    """A fixed list of queues, independent of the other members."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = list(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        return [queue for queue in self._queues if queue.topic in topics]


@checked_class
class AllocateByMachineRoom(_ByPlace):
    """Queues of brokers in the given rooms; the room of a broker is the part of its name before ``@``."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = frozenset(rooms)

    def _share(self, place: int, members: int, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        parts = ((queue, queue.broker_name.split("@")) for queue in queues)
        near = [queue for queue, name in parts if len(name) == 2 and name[0] in self._rooms]
        share, rest = divmod(len(near), members)
        mine = near[place * share : (place + 1) * share]
        return mine + near[share * members + place :][:1] if place < rest else mine


@checked_class
class AllocateMachineRoomNearby:
    """Each room's queues among the members in it; queues of rooms without members among all members."""

    def __init__(
        self,
        strategy: AllocateStrategy,
        room_of_queue: Callable[[MessageQueue], str],
        room_of_client: Callable[[str], str],
    ) -> None:
        self._strategy = strategy
        self._room_of_queue = room_of_queue
        self._room_of_client = room_of_client
        self.name = f"MACHINE_ROOM_NEARBY-{strategy.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        rooms: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            rooms.setdefault(self._room_of_queue(queue), []).append(queue)
        members: dict[str, list[str]] = {}
        for member in client_ids:
            members.setdefault(self._room_of_client(member), []).append(member)
        own = self._room_of_client(client_id)
        found = self._strategy.allocate(group, client_id, rooms.pop(own, []), members[own])
        for room, left in rooms.items():
            if room not in members:
                found += self._strategy.allocate(group, client_id, left, client_ids)
        return found


@checked_class
class AllocateByConsistentHash:
    """A ring with ``virtual_nodes`` points per member; a queue belongs to the next point after its own."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = 10) -> None:
        if virtual_nodes < 1:
            raise ClientError(f"virtual_nodes is out of range: {virtual_nodes}.", remedy="Use at least 1.")
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        ring = {_hash(f"{member}-{number}"): member for member in client_ids for number in range(self._virtual_nodes)}
        points = sorted(ring)
        found = []
        for queue in queues:
            # The format of Java's MessageQueue.toString(), so that members in both languages get the same result.
            text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            at = bisect_left(points, _hash(text))
            if ring[points[at % len(points)]] == client_id:
                found.append(queue)
        return found


def _hash(text: str) -> int:
    """Return the first four bytes of the text's MD5 as a number."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


DEFAULT_LOOK_BACK_MS = 30 * 60 * 1000


class GroupMembers:
    """The members of one group, as brokers list them. One rebalance at a time."""

    def __init__(self, group: str, instance: Callable[[], ClientInstance]) -> None:
        self._group = group
        self._instance = instance
        self._last_broker = ""  # that returned the members

    def client_ids(self, topic: str) -> list[str] | None:
        """Return the client ids, sorted, from a broker of the topic; None if none responds."""
        instance = self._instance()
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group)
        brokers = instance.routes.route(topic).brokers.values()
        every = [address for addresses in brokers for address in addresses.values()]
        connected = instance.remoting.is_connected
        # First the broker that responded last, then connected ones: an unavailable broker costs a timeout.
        for address in sorted(every, key=lambda address: (address != self._last_broker, not connected(address))):
            request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.to_ext())
            try:
                response = instance.invoke(address, request, f"the query of the members of {self._group}")
                self._last_broker = address
                return sorted(GetConsumerListByGroupResponseBody.from_json(response.body).consumer_id_list)
            except RocketError as error:
                logger.info("no members of group %s from broker %s: %s", self._group, address, error)
        return None


class QueueShare:
    """The share of one member. ``strategy``: None assigns every queue (broadcasting).

    ``where``: the start of a group without a committed offset; ``timestamp_ms`` None means half an hour ago.
    """

    def __init__(
        self,
        group: str,
        instance: Callable[[], ClientInstance],
        reader: Reader,
        offsets: OffsetStore,
        strategy: AllocateStrategy | None,
        where: ConsumeFromWhere,
        timestamp_ms: int | None = None,
    ) -> None:
        self._group = group
        self._instance = instance
        self._reader = reader
        self._offsets = offsets
        self._strategy = strategy
        self._where = where
        self._timestamp_ms = timestamp_ms
        self._first_queues: dict[str, frozenset[MessageQueue]] = {}  # the queues of topics when the consumer started
        self._consumed_before: dict[str, bool] = {}  # whether the group had offsets in a topic
        self._notified: dict[str, list[MessageQueue]] = {}
        self._group_members = GroupMembers(group, instance)

    def find_routes(self, topics: Iterable[str], *, warn: bool) -> None:
        """Fetch the routes of all topics. A topic that does not exist yet is fetched again later."""
        for topic in topics:
            try:
                self.note(topic, self._instance().routes.route(topic).readable)
            except TopicNotFoundError as error:
                self.note(topic, ())
                if warn and not topic.startswith(RETRY_PREFIX):  # the first heartbeat creates that one
                    logger.warning("waiting for topic %s: %s", topic, error)

    def note(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Record the current queues of a topic; only the first call for a topic counts."""
        self._first_queues.setdefault(topic, frozenset(queues))

    def queues_of(self, topic: str) -> list[MessageQueue] | None:
        """Return the member's current queues; None if no broker returns the members of the group."""
        instance = self._instance()
        queues = sorted(instance.routes.route(topic).readable)
        if self._strategy is None:
            return queues
        members = self._group_members.client_ids(topic)
        if members is not None and instance.client_id not in members:
            instance.members.send_heartbeats()  # a restarted broker has lost this member
            members = self._group_members.client_ids(topic)
        if members is None or instance.client_id not in members:
            logger.warning(
                "topic %s: brokers do not list this consumer as a member of group %s; its queues stay unchanged."
                " If this continues, see the rejected heartbeats in this log, or create the group (brokers may have"
                " autoCreateSubscriptionGroup=false or rejectPullConsumerEnable).",
                topic,
                self._group,
            )
            return None
        return self._strategy.allocate(self._group, instance.client_id, queues, members)

    def first_offset(self, queue: MessageQueue) -> int:
        """Return the committed offset of the group in a queue, or else its start offset.

        A queue that was added while the consumer was running, or while the group was stopped, is read from its first
        message: otherwise the group would miss messages of a topic that it consumes.
        """
        committed = self._offsets.read(queue)
        if committed is not None:
            return committed
        if (
            queue.topic.startswith(RETRY_PREFIX)
            or self._where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
            or self._is_added(queue)
        ):
            return self._reader.min_offset(queue)
        if self._where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
            return self._reader.max_offset(queue)
        moment = now_ms() - DEFAULT_LOOK_BACK_MS if self._timestamp_ms is None else self._timestamp_ms
        return self._reader.offset_for_time(queue, moment)

    def _is_added(self, queue: MessageQueue) -> bool:
        """Whether a queue without an offset was added to a topic that the group has consumed before.

        The group has, if it had an offset in the topic when this consumer found the first queue without one. Later
        offsets may be this consumer's own.
        """
        first = self._first_queues.get(queue.topic)
        if first is None:  # assigned by the application
            return False
        if queue not in first:
            return True
        if queue.topic not in self._consumed_before:
            self._consumed_before[queue.topic] = self._offsets.has_any(first)
        return self._consumed_before[queue.topic]

    def notify(self, listener: MessageQueueListener, topic: str, mine: list[MessageQueue]) -> None:
        """Call the listener if the member's queues of a topic have changed. Its errors are logged."""
        if mine == self._notified.get(topic, []):
            return
        self._notified[topic] = mine
        with errors_logged(logger, "message queue listener failed: topic %s", topic):
            listener(topic, list(self._instance().routes.route(topic).readable), mine)
