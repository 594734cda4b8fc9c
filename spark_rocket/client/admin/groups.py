"""Consumer groups and producers: members, progress, and changes of groups.

Corresponds to DefaultMQAdminExt's methods of groups, and to mqadmin's consumerProgress, consumerConnection,
producerConnection, updateSubGroup, deleteSubGroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from spark_rocket.client.admin.base import (
    SUCCESS_OR_OFFLINE,
    AdminBase,
    KeyedQuery,
    PagedTable,
    Query,
    decoded,
    done,
    if_found,
)
from spark_rocket.client.admin.broker_rows import Failures
from spark_rocket.client.admin.group_rows import ClientConnection, GroupInfo, GroupState, Member, QueueProgress
from spark_rocket.errors import BrokerError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.bodies.client import SubscriptionData
from spark_rocket.protocol.wire.bodies.config import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper
from spark_rocket.protocol.wire.bodies.consumer import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from spark_rocket.protocol.wire.bodies.stats import (
    ConsumerConnection,
    ConsumeStats,
    ProducerConnection,
    ProducerTableInfo,
    QueryConsumeTimeSpanBody,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode, version_name
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from spark_rocket.remoting.address import format_address

_RELAY_SECONDS = 15.0  # a broker waits 10 s for the response of a consumer
_MAX_DELAY_MS = 10 * 365 * 86_400_000  # larger values mean unknown in Apache's responses
_SUCCESS_OR_NO_PRODUCERS = SUCCESS_OR_OFFLINE | {int(ResponseCode.SYSTEM_ERROR)}  # Apache's brokers respond with 1
_ALLOWED_CODES = frozenset(
    {int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)}
)


def _entries(response: RemotingCommand) -> tuple[dict[str, SubscriptionGroupConfig], DataVersion]:
    body = SubscriptionGroupWrapper.from_json(response.body)
    return body.subscription_group_table, body.data_version


_GROUPS = PagedTable(
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    "the query of groups",
    _entries,
    GetAllSubscriptionGroupRequestHeader,
    position="group_seq",
    size="max_group_num",
    count_field="totalGroupNum",
)


class GroupAdmin(AdminBase):
    # --- what there is ----------------------------------------------------------------------------------------

    def groups(self, *, failed: Failures | None = None) -> list[GroupInfo]:
        """Return all consumer groups, including those of brokers, with their settings per broker, sorted by name."""
        found: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for broker, table in self._tables(self._every_broker(), _GROUPS, failed).items():
            for name, config in table.items():
                found.setdefault(name, {})[broker] = config
        return [GroupInfo(name, configs) for name, configs in sorted(found.items())]

    def subscription_groups(self, broker: str) -> dict[str, SubscriptionGroupConfig]:
        """Return all consumer groups that a broker (its name or address) has."""
        return self._tables({broker: self._any_address(broker)}, _GROUPS, None)[broker]

    def group_state(self, group: str, *, topic: str | None = None, failed: Failures | None = None) -> GroupState:
        """Return the members and the progress of a group, in all its topics or in one; empty for an unknown group."""
        return self.group_states([group], topic=topic, failed=failed)[group]

    def group_states(
        self,
        groups: Iterable[str],
        *,
        topic: str | None = None,
        delays: bool = True,
        progress: bool = True,
        failed: Failures | None = None,
    ) -> dict[str, GroupState]:
        """Return the states of many groups at once.

        ``delays`` needs one more request for each topic with lag; without it ``delay_ms`` is 0. ``progress``: without
        it there are no ``queues``.
        """
        names = list(dict.fromkeys(groups))
        addresses = self._every_broker()
        connections = self._ask_all(
            [
                KeyedQuery((group, broker), broker, address, connection_query(group))
                for group in names
                for broker, address in addresses.items()
                if broker not in (failed or {})
            ],
            failed,
        )
        stats = self._ask_all(
            [
                KeyedQuery((group, broker), broker, address, _stats_query(group, topic))
                for group in (names if progress else ())
                for broker, address in addresses.items()
                if broker not in (failed or {})
            ],
            failed,
        )
        waited = self._delays(stats, addresses, failed) if delays else {}
        online: dict[str, list[tuple[str, ConsumerConnection]]] = {group: [] for group in names}
        consumed: dict[str, list[ConsumeStats]] = {group: [] for group in names}
        for (group, broker), connection in connections:
            if connection is not None:
                online[group].append((broker, connection))
        for (group, _), found in stats:
            if found is not None:
                consumed[group].append(found)
        return {group: _state(group, online[group], consumed[group], waited.get(group, {})) for group in names}

    def _delays(
        self,
        stats: Sequence[tuple[tuple[str, str], ConsumeStats | None]],
        addresses: dict[str, str],
        failed: Failures | None,
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the age of each queue's next message, by group; requested only where messages are pending."""
        behind = {
            (group, broker, queue.topic)
            for (group, broker), body in stats
            if body is not None
            for queue, offsets in body.offset_table.items()
            if offsets.broker_offset > offsets.consumer_offset
        }
        asked = [
            KeyedQuery(group, broker, addresses[broker], _time_span_query(group, topic))
            for group, broker, topic in sorted(behind)
        ]
        found: dict[str, dict[MessageQueue, int]] = {}
        for group, body in self._ask_all(asked, failed):
            of_group = found.setdefault(group, {})
            for span in body.consume_time_span_set if body is not None else ():
                if span.message_queue is not None and 0 < span.delay_time < _MAX_DELAY_MS:
                    of_group[span.message_queue] = span.delay_time
        return found

    def consume_stats(self, group: str, *, broker: str, topic: str | None = None) -> ConsumeStats:
        """Return the progress of a group on a broker, in all its topics or in one."""
        query = Query(
            RequestCode.GET_CONSUME_STATS,
            f"the query of the progress of group {group}",
            decoded(ConsumeStats),
            GetConsumeStatsRequestHeader(consumer_group=group, topic=topic),
        )
        return self._ask(self._any_address(broker), query)

    # --- members -----------------------------------------------------------------------------------------

    def consumers(self, group: str, topic: str) -> list[str]:
        """Return the client ids of the group's online consumers at the brokers of the topic, sorted."""
        return client_ids(self._ask_each(self._topic_masters(topic), connection_query(group), None).values())

    def producers(self, group: str, *, failed: Failures | None = None) -> list[Member]:
        """Return the connected producers of a group, sorted by client id."""
        found = self._ask_each(self._every_broker(), _producer_query(group), failed)
        return _members(_connections(found.items()))

    def producer_groups(self, *, failed: Failures | None = None) -> dict[str, list[Member]]:
        """Return all connected producers, by group. Brokers of 4.x do not support this: they are in ``failed``."""
        query = Query(RequestCode.GET_ALL_PRODUCER_INFO, "the query of producers", decoded(ProducerTableInfo))
        found: dict[str, list[ClientConnection]] = {}
        for broker, body in self._ask_each(self._every_broker(), query, failed).items():
            for group, producers in body.data.items():
                found.setdefault(group, []).extend(
                    ClientConnection(broker, p.client_id, p.remote_ip, p.language, p.version, p.last_update_timestamp)
                    for p in producers
                )
        return {group: _members(connections) for group, connections in sorted(found.items())}

    # --- requests to consumers -----------------------------------------------------------------------------

    def consumer_running_info(self, group: str, client_id: str, *, stacks: bool = False) -> ConsumerRunningInfo:
        """Return the state of a consumer: settings, assigned queues, rates, and the ``stacks`` of its threads."""
        return self._ask(self._broker_of(group, client_id), _running_info_query(group, client_id, stacks))

    def queue_holders(self, state: GroupState, *, failed: Failures | None = None) -> dict[MessageQueue, str]:
        """Return the member that holds each queue, as client ids; every member is queried."""
        addresses = self._every_broker()
        asked = [
            KeyedQuery(
                member.client_id,
                member.client_id,
                addresses[broker],
                _running_info_query(state.group, member.client_id),
            )
            for member in state.members
            for broker in member.brokers[:1]
        ]
        return {queue: client_id for client_id, info in self._ask_all(asked, failed) for queue in info.mq_table}

    def consume_directly(self, group: str, client_id: str, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Have one consumer consume one message again immediately, outside its queue; return the result.

        The message must be a result of an Admin. The consumer must be connected to the broker that stores it.
        """
        query = Query(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            f"the consumption of {message.msg_id} by {client_id}",
            decoded(ConsumeMessageDirectlyResult),
            ConsumeMessageDirectlyResultRequestHeader(
                consumer_group=group, client_id=client_id, msg_id=message.offset_msg_id, topic=message.topic
            ),
            timeout=_RELAY_SECONDS,
        )
        return self._ask(format_address(*message.store_host), query)

    def _broker_of(self, group: str, client_id: str) -> str:
        """Return the address of a broker that the client is connected to, even if others do not respond."""
        failed: Failures = {}
        online: set[str] = set()
        addresses = self._every_broker()
        for broker, connection in self._ask_each(addresses, connection_query(group), failed).items():
            clients = {member.client_id for member in connection.connection_set} if connection is not None else set()
            if client_id in clients:
                return addresses[broker]
            online |= clients
        if failed:
            raise next(iter(failed.values()))
        known = ", ".join(sorted(online)) or "none"
        raise BrokerError(
            f"Group {group!r} has no consumer {client_id!r} online.",
            remedy=f"Online consumers: {known}.",
            response_code=ResponseCode.CONSUMER_NOT_ONLINE,
        )

    # --- changes ----------------------------------------------------------------------------------------------

    def create_group(
        self,
        group: str,
        *,
        ordered: bool | None = None,
        retry_max_times: int | None = None,
        retry_policy: dict[str, object] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create or change a consumer group on one broker, on the masters of a cluster or on all known masters.

        Arguments that are None stay unchanged; a new group is unordered and has 16 retries. ``ordered`` applies to POP
        consumers, including RocketMQ 5's own clients: messages of a queue or of a message group are delivered one
        after the other. A message that failed ``retry_max_times`` + 1 times becomes a dead letter.
        ``retry_policy``: the delays between retries in ms, for clients that get them from the proxy, in Apache's form:
        ``{"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 60000, "multiplier": 2}}`` or
        ``{"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}}``.
        """
        given = {
            "consume_message_orderly": ordered,
            "retry_max_times": retry_max_times,
            "group_retry_policy": retry_policy,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        for address in self._masters(broker, cluster).values():
            known = self.subscription_groups(address).get(group, SubscriptionGroupConfig(group_name=group))
            body = replace(known, attributes={}, **changes).to_json()  # empty attributes: change none of them
            code, what = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, f"the creation of group {group}"
            self._ask(address, Query(code, what, done, body=body))


def connection_query(group: str) -> Query[ConsumerConnection | None]:
    def value(response: RemotingCommand) -> ConsumerConnection | None:
        found = response.code == ResponseCode.SUCCESS and response.body
        return ConsumerConnection.from_json(response.body) if found else None

    header = GetConsumerConnectionListRequestHeader(consumer_group=group)
    code, what = RequestCode.GET_CONSUMER_CONNECTION_LIST, f"the consumers of group {group}"
    return Query(code, what, value, header, allowed=SUCCESS_OR_OFFLINE)


def client_ids(of_brokers: Iterable[ConsumerConnection | None]) -> list[str]:
    """Return the clients connected to any of the brokers, sorted."""
    return sorted({one.client_id for body in of_brokers if body is not None for one in body.connection_set})


def _producer_query(group: str) -> Query[ProducerConnection | None]:
    value = if_found(decoded(ProducerConnection))
    header = GetProducerConnectionListRequestHeader(producer_group=group)
    code, what = RequestCode.GET_PRODUCER_CONNECTION_LIST, f"the producers of group {group}"
    return Query(code, what, value, header, allowed=_SUCCESS_OR_NO_PRODUCERS)


def _stats_query(group: str, topic: str | None) -> Query[ConsumeStats | None]:
    value = if_found(decoded(ConsumeStats))
    header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
    code, what = RequestCode.GET_CONSUME_STATS, f"the query of the progress of group {group}"
    return Query(code, what, value, header, allowed=_ALLOWED_CODES)


def _time_span_query(group: str, topic: str) -> Query[QueryConsumeTimeSpanBody | None]:
    value = if_found(decoded(QueryConsumeTimeSpanBody))
    header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
    # The lag is known even if a broker rejects this request.
    allowed = frozenset({int(code) for code in ResponseCode})
    return Query(RequestCode.QUERY_CONSUME_TIME_SPAN, "the query of delays", value, header, allowed=allowed)


def _running_info_query(group: str, client_id: str, stacks: bool = False) -> Query[ConsumerRunningInfo]:
    header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id, jstack_enable=stacks)
    code, what = RequestCode.GET_CONSUMER_RUNNING_INFO, f"the query of the state of {client_id}"
    return Query(code, what, decoded(ConsumerRunningInfo), header, timeout=_RELAY_SECONDS)


def _connections(
    of_brokers: Iterable[tuple[str, ConsumerConnection | ProducerConnection | None]],
) -> Iterator[ClientConnection]:
    for broker, body in of_brokers:
        for one in body.connection_set if body is not None else ():
            yield ClientConnection(broker, one.client_id, one.client_addr, one.language, one.version)


def _members(connections: Iterable[ClientConnection]) -> list[Member]:
    """Return the clients, sorted by id, each with its connections."""
    clients: dict[str, list[ClientConnection]] = {}
    for one in connections:
        clients.setdefault(one.client_id, []).append(one)
    return [
        Member(
            client_id,
            found[0].address,
            found[0].language,
            version_name(found[0].version),
            list(dict.fromkeys(one.broker_name for one in found)),
            max(one.last_heartbeat_ms or 0 for one in found) or None,
            found,
        )
        for client_id, found in sorted(clients.items())
    ]


def _state(
    group: str,
    connections: Sequence[tuple[str, ConsumerConnection]],
    stats: Sequence[ConsumeStats],
    delays: dict[MessageQueue, int],
) -> GroupState:
    subscriptions: dict[str, SubscriptionData] = {}
    for _, body in connections:
        subscriptions |= body.subscription_table
    first = connections[0][1] if connections else ConsumerConnection()
    queues = [
        QueueProgress(
            queue, at.broker_offset, at.consumer_offset, at.pull_offset, at.last_timestamp, delays.get(queue, 0)
        )
        for body in stats
        for queue, at in body.offset_table.items()
    ]
    return GroupState(
        group,
        _members(_connections(connections)),
        subscriptions,
        first.consume_type,
        first.message_model,
        first.consume_from_where,
        sorted(queues, key=lambda progress: progress.queue),
        sum(body.consume_tps for body in stats),
    )
