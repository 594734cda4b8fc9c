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
Corresponds to org.apache.rocketmq.broker.processor.QueryAssignmentProcessor and
broker.topic.TopicRouteInfoManager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.broker.service import BrokerService
from spark_rocket.broker.state.config import MessageRequestMode
from spark_rocket.errors import RefusedError, RocketError
from spark_rocket.model import RETRY_PREFIX, MessageQueue, group_problem, topic_problem
from spark_rocket.protocol.wire.bodies import (
    BROADCASTING,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    QueueData,
    SetMessageRequestModeRequestBody,
    dumps_fastjson,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel

_ROUTE_MS = 30_000  # Apache's loadBalancePollNameServerInterval
_NO_ROUTE: tuple[float, Sequence[QueueData]] = (-math.inf, ())  # never requested
_MAX_ROUTES = 10_000


class QueryAssignmentProcessor(Processor):
    """Queue assignments and request modes of groups."""

    def __init__(self, service: BrokerService) -> None:
        super().__init__(service)
        #: Topic -> time of the last request to a name server, and the queues of other brokers.
        self._routes: dict[str, tuple[float, Sequence[QueueData]]] = {}

    # --- modes --------------------------------------------------------------------------------------------------

    @answers(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set_mode(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        mode = SetMessageRequestModeRequestBody.from_request(request.body)
        if mode.topic.startswith(RETRY_PREFIX):
            raise RefusedError("retry topic is not allowed to set mode", ResponseCode.NO_PERMISSION)
        problem = topic_problem(mode.topic) or group_problem(mode.consumer_group)
        if mode.mode not in MessageRequestMode.__members__:
            problem = problem or f"Invalid mode {mode.mode[:40]!r}: use PULL or POP."
        if problem is not None:
            raise RefusedError(problem, ResponseCode.INVALID_PARAMETER)
        service = self._service
        service.request_modes.put(mode)
        service.saving.save("modes")
        if request.is_oneway:
            return None
        return service.when_settled(channel, RemotingCommand.response(request), files=["modes"])

    @answers(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    def all_modes(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=dumps_fastjson(self._service.request_modes.snapshot()))

    def _mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        found = self._service.request_modes.get(topic, group)
        if found is not None:
            return found
        config = self._service.config
        mode = MessageRequestMode.PULL if topic.startswith(RETRY_PREFIX) else config.default_message_request_mode
        return SetMessageRequestModeRequestBody(topic, group, mode.value, config.default_pop_share_queue_num)

    # --- assignments --------------------------------------------------------------------------------------------

    @answers(RequestCode.QUERY_ASSIGNMENT)
    def query_assignment(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        asked = QueryAssignmentRequestBody.from_request(request.body)
        asked_at = self._routes.get(asked.topic, _NO_ROUTE)[0]
        service = self._service
        if not service.config.name_servers or service.monotonic() - asked_at < _ROUTE_MS:
            return self._answer(request, asked)

        async def answer() -> RemotingCommand:
            await self._ask_route(asked.topic)
            return self._answer(request, asked)

        request.body = b""  # the view would keep the complete receive buffer in memory
        self.answer_later(channel, request, answer())
        return None

    async def _ask_route(self, topic: str) -> None:
        service = self._service
        before = self._routes.get(topic, _NO_ROUTE)[1]
        try:
            found: Sequence[QueueData] = await service.registration.queues_of(topic)
        except RocketError:  # no name server responds; registration logs that
            found = before
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        others = [queues for queues in found if queues.broker_name != service.config.broker_name]
        self._routes[topic] = service.monotonic(), others

    def _queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of the topic on all brokers, in the order that all clients use."""
        config, own = self._service.config, self._service.topics.get(topic)
        datas = list(self._routes.get(topic, _NO_ROUTE)[1])
        if own is not None:
            perm = own.perm & config.broker_permission
            datas.append(QueueData(config.broker_name, own.read_queue_nums, own.write_queue_nums, perm))
        return sorted(
            MessageQueue(topic, data.broker_name, queue)
            for data in datas
            if data.readable
            for queue in range(data.read_queue_nums)
        )

    def _answer(self, request: RemotingCommand, asked: QueryAssignmentRequestBody) -> RemotingCommand:
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
        if asked.message_model == BROADCASTING or not self._service.config.server_load_balancer_enable:
            return queues
        group = self._service.clients.consumers.get(asked.consumer_group)
        strategy = _STRATEGIES.get(asked.strategy_name)
        if group is None or strategy is None:
            return None
        members = group.client_ids()
        if mode.mode == MessageRequestMode.POP.value:
            return _allocate_for_pop(strategy, asked.client_id, queues, members, mode.pop_share_queue_num)
        return _allocate(strategy, asked.client_id, queues, members)


_Strategy = Callable[[int, Sequence[MessageQueue], int], Sequence[MessageQueue]]


def _average(place: int, queues: Sequence[MessageQueue], members: int) -> Sequence[MessageQueue]:
    """Assign consecutive queues; the first members get one more if the division has a remainder."""
    share, rest = divmod(len(queues), members)
    start = place * share + min(place, rest)
    return queues[start : start + share + (place < rest)]


def _by_circle(place: int, queues: Sequence[MessageQueue], members: int) -> Sequence[MessageQueue]:
    return queues[place::members]


_STRATEGIES: dict[str, _Strategy] = {"AVG": _average, "AVG_BY_CIRCLE": _by_circle}


def _allocate(
    strategy: _Strategy, client_id: str, queues: Sequence[MessageQueue], members: list[str]
) -> Sequence[MessageQueue]:
    """A member's share; empty for a client that is not (yet) a member."""
    return strategy(members.index(client_id), queues, len(members)) if client_id in members else ()


def _allocate_for_pop(
    strategy: _Strategy, client_id: str, queues: Sequence[MessageQueue], members: list[str], shared: int
) -> Sequence[MessageQueue]:
    if shared <= 0 or shared >= len(members) - 1:
        return [replace(queue, queue_id=-1) for queue in queues]
    if client_id not in members:
        return ()
    place = members.index(client_id)
    if len(members) > len(queues):
        return [queues[place % len(queues)]]
    found: list[MessageQueue] = []
    for step in range(shared + 1):
        found += strategy((place + step) % len(members), queues, len(members))
    return found
