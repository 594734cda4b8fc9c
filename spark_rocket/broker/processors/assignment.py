"""Queue assignments made by the broker (QUERY_ASSIGNMENT, 400), and whether a group pulls or pops a topic
(SET_MESSAGE_REQUEST_MODE, 401; GET_ALL_MESSAGE_REQUEST_MODE, 402).

The queues are those of the entire cluster: this broker's current ones, and those of other brokers as a name server
reports them (refreshed after 30 seconds; without a response the cached ones are used). The response has no assignment
if the topic, the group's members or the strategy are unknown here; the client keeps its queues then.

==============  ====================================================================================================
mode            a member of the group gets
==============  ====================================================================================================
PULL            its share, by ``AVG`` or ``AVG_BY_CIRCLE``
POP             ``popShareQueueNum`` <= 0, or at least the number of members minus one: queue -1 of each broker, which
                means all its queues; otherwise its share and the shares of that many members after it, or one queue if
                there are more members than queues
==============  ====================================================================================================

Members of broadcasting groups get all queues; with ``serverLoadBalancerEnable=false`` all members do.

The numbers of queues in a route come from any peer of the name server. So the queues are computed from these numbers,
not listed: only the queues of the response are created, and a response has at most ``MAX_ASSIGNED_QUEUES``.
Corresponds to org.apache.rocketmq.broker.processor.QueryAssignmentProcessor and
broker.topic.TopicRouteInfoManager.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_rocket.broker.processors.processor import Processor, handles, handles_in_steps
from spark_rocket.broker.registration import NameServerRegistration
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.broker.state.declared_settings import MessageRequestMode
from spark_rocket.broker.state.message_request_mode_manager import MessageRequestModeManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.state_saver import StateSaver
from spark_rocket.errors import RefusedError, RocketError
from spark_rocket.model import MAX_RETRY_TOPIC_LENGTH, RETRY_PREFIX, MessageQueue, group_problem, topic_problem
from spark_rocket.protocol.requests import STATE_LIMITS, body_of
from spark_rocket.protocol.requests.state import ASSIGNMENT_ROUTES
from spark_rocket.protocol.wire.bodies.assignment import (
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from spark_rocket.protocol.wire.bodies.client import BROADCASTING
from spark_rocket.protocol.wire.bodies.route import QueueData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.server.channel import Channel

_ROUTE_MS = 30_000  # Apache's loadBalancePollNameServerInterval
_NO_ROUTE: tuple[float, Sequence[QueueData]] = (-math.inf, ())  # never requested
_MAX_ROUTES = STATE_LIMITS[ASSIGNMENT_ROUTES].total
_MAX_ROUTE_ENTRIES = 100_000
MAX_ASSIGNED_QUEUES = 16_384  # of one response


@dataclass(eq=False, kw_only=True)
class QueryAssignmentProcessor(Processor):
    """Queue assignments and request modes of groups."""

    config: BrokerConfig
    monotonic: Callable[[], int]
    topics: TopicConfigManager
    clients: ClientManager
    message_request_modes: MessageRequestModeManager
    responses: Responses
    registration: NameServerRegistration
    saver: StateSaver
    _routes: dict[str, tuple[float, Sequence[QueueData]]] = field(init=False, default_factory=dict)
    """Topic -> time of the last request to a name server, and the queues of other brokers."""
    _route_entries: int = field(init=False, default=0)

    # --- modes --------------------------------------------------------------------------------------------------

    @handles(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set_mode(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        mode = body_of(request, SetMessageRequestModeRequestBody)
        if mode.topic.startswith(RETRY_PREFIX):
            raise RefusedError("retry topic is not allowed to set mode", ResponseCode.NO_PERMISSION)
        problem = topic_problem(mode.topic) or group_problem(mode.consumer_group)
        if mode.mode not in MessageRequestMode.__members__:
            problem = problem or f"Invalid mode {mode.mode[:40]!r}: use PULL or POP."
        if problem is not None:
            raise RefusedError(problem, ResponseCode.INVALID_PARAMETER)
        self.message_request_modes.put(mode)
        self.saver.save("modes")
        return self.responses.when_settled(channel, request, files=["modes"])

    @handles_in_steps(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    async def all_modes(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        snapshot = self.message_request_modes.snapshot()
        return RemotingCommand.response(request, body=await asyncio.to_thread(dumps_fastjson, snapshot))

    def _mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        found = self.message_request_modes.get(topic, group)
        if found is not None:
            return found
        config = self.config
        mode = MessageRequestMode.PULL if topic.startswith(RETRY_PREFIX) else config.default_message_request_mode
        return SetMessageRequestModeRequestBody(topic, group, mode.value, config.default_pop_share_queue_num)

    # --- assignments --------------------------------------------------------------------------------------------

    @handles(RequestCode.QUERY_ASSIGNMENT)
    def query_assignment(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        asked = body_of(request, QueryAssignmentRequestBody)
        if len(asked.topic) > MAX_RETRY_TOPIC_LENGTH:  # it would be cached
            raise RefusedError(f"topic {asked.topic[:40]!r}... is too long", ResponseCode.INVALID_PARAMETER)
        asked_at = self._routes.get(asked.topic, _NO_ROUTE)[0]
        if not self.config.name_servers or self.monotonic() - asked_at < _ROUTE_MS:
            return self._assignment(request, asked)

        async def respond() -> RemotingCommand:
            await self._ask_route(asked.topic)
            return self._assignment(request, asked)

        request.body = b""  # the view would keep the complete receive buffer in memory
        self.responses.after(channel, request, respond())
        return None

    async def _ask_route(self, topic: str) -> None:
        before = self._routes.get(topic, _NO_ROUTE)[1]
        try:
            found: Sequence[QueueData] = await self.registration.queues_of(topic)
        except RocketError:  # no name server responds; registration logs that
            found = before
        others = [queues for queues in found if queues.broker_name != self.config.broker_name]
        self._route_entries += len(others) - len(self._routes.get(topic, _NO_ROUTE)[1])
        if len(self._routes) >= _MAX_ROUTES or self._route_entries > _MAX_ROUTE_ENTRIES:
            self._routes.clear()
            self._route_entries = len(others)
        self._routes[topic] = self.monotonic(), others

    def _queues(self, topic: str) -> _Queues:
        """The readable queues of the topic on all brokers, in the order that all clients use."""
        config, own = self.config, self.topics.get(topic)
        datas = list(self._routes.get(topic, _NO_ROUTE)[1])
        if own is not None:
            perm = own.perm & config.broker_permission
            datas.append(QueueData(config.broker_name, own.read_queue_nums, own.write_queue_nums, perm))
        return _Queues(topic, {data.broker_name: data.read_queue_nums for data in datas if data.readable})

    def _assignment(self, request: RemotingCommand, asked: QueryAssignmentRequestBody) -> RemotingCommand:
        mode = self._mode(asked.topic, asked.consumer_group)
        queues = self._assigned(asked, mode)
        assignments = None
        if queues is not None:
            assignments = [MessageQueueAssignment(queue, mode.mode) for queue in sorted(set(queues))]
        body = QueryAssignmentResponseBody(message_queue_assignments=assignments)
        return RemotingCommand.response(request, body=body.to_json())

    def _assigned(
        self, asked: QueryAssignmentRequestBody, mode: SetMessageRequestModeRequestBody
    ) -> Sequence[MessageQueue] | None:
        """The client's queues; None if the topic, the group or the strategy is unknown."""
        queues = self._queues(asked.topic)
        if not queues:
            return None
        if asked.message_model == BROADCASTING or not self.config.server_load_balancer_enable:
            return queues[:]
        group = self.clients.consumers.get(asked.consumer_group)
        strategy = _STRATEGIES.get(asked.strategy_name)
        if group is None or strategy is None:
            return None
        members = group.client_ids()
        if mode.mode == MessageRequestMode.POP.value:
            return _allocate_for_pop(strategy, asked.client_id, queues, members, mode.pop_share_queue_num)
        return _allocate(strategy, asked.client_id, queues, members)


class _Queues:
    """Numbers of queues by broker, as the sequence of these queues by broker and id; slices are lists of queues."""

    def __init__(self, topic: str, counts: Mapping[str, int]) -> None:
        self.topic = topic
        self.brokers = sorted(name for name, count in counts.items() if count > 0)
        self._ends = list(itertools.accumulate(counts[name] for name in self.brokers))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, places: slice) -> list[MessageQueue]:
        return [self._at(place) for place in self.check(range(len(self))[places])]

    def _at(self, place: int) -> MessageQueue:
        broker = bisect.bisect_right(self._ends, place)
        return MessageQueue(self.topic, self.brokers[broker], place - (self._ends[broker - 1] if broker else 0))

    def check(self, places: range) -> range:
        """Return the argument; RefusedError if it has more places than a response may have."""
        if len(places) > MAX_ASSIGNED_QUEUES:
            raise RefusedError(
                f"topic {self.topic} has {len(self):,} queues, and one response assigns at most "
                f"{MAX_ASSIGNED_QUEUES:,}: use a topic with fewer queues.",
                ResponseCode.SYSTEM_ERROR,
            )
        return places


_Strategy = Callable[[int, int, int], slice]


def _average(place: int, queues: int, members: int) -> slice:
    """Assign consecutive queues; the first members get one more if the division has a remainder."""
    share, rest = divmod(queues, members)
    start = place * share + min(place, rest)
    return slice(start, start + share + (place < rest))


def _by_circle(place: int, queues: int, members: int) -> slice:
    return slice(place, None, members)


_STRATEGIES: dict[str, _Strategy] = {"AVG": _average, "AVG_BY_CIRCLE": _by_circle}


def _allocate(strategy: _Strategy, client_id: str, queues: _Queues, members: list[str]) -> Sequence[MessageQueue]:
    """A member's share; empty for a client that is not (yet) a member."""
    return queues[strategy(members.index(client_id), len(queues), len(members))] if client_id in members else ()


def _allocate_for_pop(
    strategy: _Strategy, client_id: str, queues: _Queues, members: list[str], shared: int
) -> Sequence[MessageQueue]:
    if shared <= 0 or shared >= len(members) - 1:
        return [MessageQueue(queues.topic, broker, -1) for broker in queues.brokers]
    if client_id not in members:
        return ()
    place = members.index(client_id)
    if len(members) > len(queues):
        place %= len(queues)
        return queues[place : place + 1]
    queues.check(range((shared + 1) * len(queues) // len(members)))
    found: list[MessageQueue] = []
    for step in range(shared + 1):
        found += queues[strategy((place + step) % len(members), len(queues), len(members))]
    return found
