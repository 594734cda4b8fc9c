"""What an operator asks and changes: topics, offsets and lag, brokers' state, name servers' configuration.

Every question goes to the servers at once and nothing is remembered. Topics are created on brokers, which register
them; they are deleted on brokers and on name servers, as RocketMQ's own tools do.

Thread-safety: all methods. Corresponds to org.apache.rocketmq.tools.admin.DefaultMQAdminExt.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

from spark_rocket.client.config import ClientConfig
from spark_rocket.client.instance import Client
from spark_rocket.client.reader import DEFAULT_GROUP, Reader
from spark_rocket.client.routes import AUTO_CREATE_TOPIC, TopicRoute
from spark_rocket.errors import BrokerError, ClientError, ProtocolError, TopicNotFoundError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.bodies import (
    MASTER_ID,
    ClusterInfo,
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    KVTable,
    ProducerConnection,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from spark_rocket.protocol.codes import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    CreateTopicRequestHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicStatsInfoRequestHeader,
    PutKVConfigRequestHeader,
    QueryMessageRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ViewMessageRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from spark_rocket.protocol.headers.base import Header
from spark_rocket.protocol.message_id import decode_offset_msg_id
from spark_rocket.protocol.record import decode_messages
from spark_rocket.remoting.address import format_address

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
ROUTE_WAIT = 5.0  # seconds in which a broker has told the name servers of a new topic
BROKER_WAIT = 1.0
_FOUND_OR_NOT = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
_ONLINE_OR_NOT = frozenset(
    {int(ResponseCode.SUCCESS), int(ResponseCode.CONSUMER_NOT_ONLINE), int(ResponseCode.SYSTEM_ERROR)}
)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind in one queue. ``committed`` is None when it has consumed nothing yet."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed: int | None

    @property
    def lag(self) -> int:
        """Messages that are there and not consumed."""
        return max(0, self.max_offset - max(self.committed or 0, self.min_offset))


class Admin(Client):
    """``with Admin("127.0.0.1:9876") as admin: admin.create_topic("orders", queues=8)``"""

    def __init__(self, name_server: str | None = None, *, request_timeout: float = 5.0) -> None:
        super().__init__(ClientConfig.of(name_server))
        self._timeout = request_timeout
        self._reader = Reader(name_server, group=DEFAULT_GROUP, request_timeout=request_timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        super().close()

    # --- topics -----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        queues: int = 8,
        perm: int = PERM_READ | PERM_WRITE,
        *,
        write_queues: int | None = None,
        broker: str | None = None,
        cluster: str | None = None,
        order: bool = False,
        message_type: str | None = None,
        attributes: str | None = None,
    ) -> None:
        """Create a topic, or change it to these numbers, on one broker, on a cluster's or on every known master.

        ``message_type``: what RocketMQ 5's own clients may send to it, NORMAL, FIFO, DELAY, TRANSACTION, or MIXED for
        all of them. ``attributes``: that and others as text, ``"+message.type=FIFO,+reserve.time=3600000"``. Returns
        when the name server knows the topic.

        To take queues away from a topic in use, let fewer be written first (``write_queues``; as many as are read, if
        not given), and when groups have read what is in the others, let fewer be read.
        """
        write_queues = queues if write_queues is None else write_queues
        if message_type is not None:
            attributes = ",".join(filter(None, (attributes, f"+message.type={message_type}")))
        masters = self._masters(broker, cluster)
        for address in masters.values():
            header = CreateTopicRequestHeader(
                topic=topic,
                default_topic=AUTO_CREATE_TOPIC,
                read_queue_nums=queues,
                write_queue_nums=write_queues,
                perm=perm,
                topic_filter_type="SINGLE_TAG",
                topic_sys_flag=0,
                order=order,
                attributes=attributes,
            )
            self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, f"the creation of topic {topic}")
        if order:
            text = ";".join(f"{name}:{write_queues}" for name in sorted(masters))
            self.put_kv_config(ORDER_NAMESPACE, topic, text)
        self._instance().routes.forget(topic)
        self._wait_for_route(topic, masters, (queues, write_queues))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic and its messages on all brokers (of the cluster), and its route on all name servers."""
        for address in self._masters(None, cluster).values():
            self._ask(
                address,
                RequestCode.DELETE_TOPIC_IN_BROKER,
                DeleteTopicRequestHeader(topic=topic),
                f"the deletion of topic {topic}",
            )
        self._tell_name_servers(
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster),
            f"the deletion of topic {topic}",
        )
        if self.get_kv_config(ORDER_NAMESPACE, topic) is not None:
            self.delete_kv_config(ORDER_NAMESPACE, topic)
        self._instance().routes.forget(topic)

    def topics(self) -> list[str]:
        """All topics that the name server knows, brokers' own among them, sorted."""
        answer = self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, "the list of topics")
        return sorted(TopicList.from_json(answer.body).topic_list)

    def topic_route(self, topic: str) -> TopicRouteData:
        """The name server's own words. Raises TopicNotFoundError."""
        return self._instance().routes.fetch(topic)

    def topic_configs(self, broker: str) -> dict[str, TopicConfig]:
        """All topics of a broker (its name or address), the system's among them."""
        code, header = RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequestHeader()
        answer = self._ask(self._address(broker), code, header, "the question for topics")
        return TopicConfigSerializeWrapper.from_json(answer.body).topic_config_table

    def topic_stats(self, topic: str, *, broker: str | None = None) -> TopicStatsTable:
        """First and last offset of every queue on every broker, or on one, and when it last got a message."""
        whole = TopicStatsTable()
        addresses = self._topic_masters(topic).values() if broker is None else [self._address(broker)]
        for address in addresses:
            answer = self._ask(
                address,
                RequestCode.GET_TOPIC_STATS_INFO,
                GetTopicStatsInfoRequestHeader(topic=topic),
                f"the statistics of topic {topic}",
                topic=topic,
            )
            part = TopicStatsTable.from_json(answer.body)
            whole.offset_table.update(part.offset_table)
            if part.topic_put_tps is not None:
                whole.topic_put_tps = (whole.topic_put_tps or 0.0) + part.topic_put_tps
        return whole

    # --- offsets ----------------------------------------------------------------------------------------------

    def offsets(self, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """First offset and end of every readable queue."""
        return {queue: (self._reader.min_offset(queue), self._reader.max_offset(queue)) for queue in self._fresh(topic)}

    def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """The group's next offsets, None where it has none."""
        return {queue: self._reader.committed_offset(group, queue) for queue in self._fresh(topic)}

    def consumer_lag(self, group: str, topic: str) -> list[QueueLag]:
        """How far a group is behind, queue by queue."""
        return [
            QueueLag(
                queue,
                self._reader.min_offset(queue),
                self._reader.max_offset(queue),
                self._reader.committed_offset(group, queue),
            )
            for queue in self._fresh(topic)
        ]

    def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Set a group to the first messages stored at or after a time, -1 being the end. The group must be offline.

        A running consumer keeps offsets of its own and would write over these.
        """
        if self.consumers(group, topic):
            raise BrokerError(
                f"Group {group!r} has consumers online, which would undo a reset of its offsets.",
                remedy="Stop them first.",
                response_code=ResponseCode.ILLEGAL_OPERATION,
            )
        found = {}
        for queue in self._fresh(topic):
            end = timestamp_ms < 0
            found[queue] = self._reader.max_offset(queue) if end else self._reader.offset_for_time(queue, timestamp_ms)
        for queue, offset in found.items():
            self._reader.commit_offset(group, queue, offset)
        return found

    # --- groups -----------------------------------------------------------------------------------------------

    def groups_of(self, topic: str) -> list[str]:
        """Groups that consume a topic, as its brokers know them, sorted."""
        groups: set[str] = set()
        for address in self._topic_masters(topic).values():
            header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
            answer = self._ask(
                address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header, f"the groups of topic {topic}", topic=topic
            )
            groups.update(GroupList.from_json(answer.body).group_list)
        return sorted(groups)

    def consumers(self, group: str, topic: str) -> list[str]:
        """Client ids of the group's consumers that are online at the topic's brokers, sorted."""
        clients: set[str] = set()
        for address in self._topic_masters(topic).values():
            header = GetConsumerConnectionListRequestHeader(consumer_group=group)
            answer = self._ask(
                address,
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                header,
                f"the consumers of group {group}",
                allowed=_ONLINE_OR_NOT,
            )
            if answer.code == ResponseCode.SUCCESS and answer.body:
                clients.update(c.client_id for c in ConsumerConnection.from_json(answer.body).connection_set)
        return sorted(clients)

    def subscription_groups(self, broker: str) -> dict[str, SubscriptionGroupConfig]:
        """All consumer groups that a broker (its name or address) knows."""
        code, header = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GetAllSubscriptionGroupRequestHeader()
        answer = self._ask(self._address(broker), code, header, "the question for groups")
        return SubscriptionGroupWrapper.from_json(answer.body).subscription_group_table

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
        """Create a consumer group, or change one, on one broker, on a cluster's or on every known master.

        What is not given stays as it is; of a new group that is no order and 16 retries. ``ordered`` is for consumers
        by POP, RocketMQ 5's own clients among them: messages of a queue or of a message group are given out one after
        the other. A message that failed ``retry_max_times`` + 1 times is a dead letter.
        ``retry_policy``: the pauses between, in ms, for clients that ask the proxy for them, as Apache writes it:
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
            body = replace(known, attributes={}, **changes).to_json()  # attributes: none of them is to change
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            self._ask(address, code, None, f"the creation of group {group}", body=body)

    def consume_stats(self, group: str, *, broker: str, topic: str | None = None) -> ConsumeStats:
        """How far a group is on a broker, in all of its topics or in one."""
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        what = f"the question how far group {group} is"
        answer = self._ask(self._address(broker), RequestCode.GET_CONSUME_STATS, header, what)
        return ConsumeStats.from_json(answer.body)

    def consumer_connection(self, group: str, *, broker: str) -> ConsumerConnection | None:
        """The group's members that are connected to a broker; None if there are none."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        code, what = RequestCode.GET_CONSUMER_CONNECTION_LIST, f"the consumers of group {group}"
        answer = self._ask(self._address(broker), code, header, what, allowed=_ONLINE_OR_NOT)
        return ConsumerConnection.from_json(answer.body) if answer.code == ResponseCode.SUCCESS else None

    def producer_connection(self, group: str, *, broker: str) -> ProducerConnection | None:
        """The producers of a group that are connected to a broker; None if there are none."""
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        code, what = RequestCode.GET_PRODUCER_CONNECTION_LIST, f"the producers of group {group}"
        answer = self._ask(self._address(broker), code, header, what, allowed=_ONLINE_OR_NOT)
        return ProducerConnection.from_json(answer.body) if answer.code == ResponseCode.SUCCESS else None

    # --- messages ---------------------------------------------------------------------------------------------

    def view_message(self, offset_msg_id: str) -> MessageExt:
        """The message that an offset id (of 32 or 56 hex digits) says where to find."""
        try:
            host, offset = decode_offset_msg_id(offset_msg_id)
        except ProtocolError as error:
            raise ClientError(error.message, remedy="Unique keys are looked up with query_messages.") from None
        address = format_address(*host)
        answer = self._ask(
            address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset), f"message {offset_msg_id}"
        )
        return decode_messages(answer.body)[0]

    def query_messages(
        self, topic: str, key: str, *, max_num: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageExt]:
        """Messages of a topic with a key (``KEYS`` or ``UNIQ_KEY``), oldest first."""
        found: list[MessageExt] = []
        for name, address in self._topic_masters(topic).items():
            header = QueryMessageRequestHeader(
                topic=topic,
                key=key,
                max_num=max_num,
                begin_timestamp=begin_ms,
                end_timestamp=2**63 - 1 if end_ms is None else end_ms,
            )
            what = f"the search for key {key} in topic {topic}"
            answer = self._ask(address, RequestCode.QUERY_MESSAGE, header, what, topic=topic, allowed=_FOUND_OR_NOT)
            if answer.code == ResponseCode.SUCCESS:
                found += decode_messages(answer.body, name)
        # The index holds hashes of keys: compare the keys themselves.
        hits = [m for m in found if m.topic == topic and (key in (m.keys or "").split() or m.msg_id == key)]
        return sorted(hits, key=lambda message: message.store_timestamp)[:max_num]

    # --- brokers ----------------------------------------------------------------------------------------------

    def cluster_info(self) -> ClusterInfo:
        """Clusters, brokers and their addresses."""
        answer = self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, None, "the list of brokers")
        return ClusterInfo.from_json(answer.body)

    def broker_config(self, broker: str) -> dict[str, str]:
        """A broker's settings. ``broker`` is its name or its address, here and below."""
        answer = self._ask(self._address(broker), RequestCode.GET_BROKER_CONFIG, None, "the question for settings")
        lines = (line.strip() for line in bytes(answer.body).decode().splitlines())
        pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
        return {name.strip(): value.strip() for name, _, value in pairs}

    def update_broker_config(self, broker: str, settings: dict[str, str]) -> None:
        """Change settings of a running broker."""
        body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        self._ask(self._address(broker), RequestCode.UPDATE_BROKER_CONFIG, None, "the change of settings", body=body)

    def runtime_info(self, broker: str) -> dict[str, str]:
        """What a broker says about itself: counts, rates, positions, disk."""
        answer = self._ask(self._address(broker), RequestCode.GET_BROKER_RUNTIME_INFO, None, "the question for state")
        return KVTable.from_json(answer.body).table

    # --- name servers -----------------------------------------------------------------------------------------

    def wipe_write_perm(self, broker: str) -> int:
        """Let no more messages go to a broker, by its name, before it is stopped; how many topics that changed."""
        answers = self._tell_name_servers(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            WipeWritePermOfBrokerRequestHeader(broker_name=broker),
            f"the end of writing to {broker}",
        )
        return max(WipeWritePermOfBrokerResponseHeader.from_ext(a.ext_fields).wipe_topic_count for a in answers)

    def add_write_perm(self, broker: str) -> int:
        """The reverse of ``wipe_write_perm``."""
        answers = self._tell_name_servers(
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            AddWritePermOfBrokerRequestHeader(broker_name=broker),
            f"writing to {broker}",
        )
        return max(AddWritePermOfBrokerResponseHeader.from_ext(a.ext_fields).add_topic_count for a in answers)

    def put_kv_config(self, namespace: str, key: str, value: str) -> None:
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        self._tell_name_servers(RequestCode.PUT_KV_CONFIG, header, f"the entry {namespace}/{key}")

    def get_kv_config(self, namespace: str, key: str) -> str | None:
        header = GetKVConfigRequestHeader(namespace=namespace, key=key)
        what = f"the question for {namespace}/{key}"
        answer = self._ask_name_server(RequestCode.GET_KV_CONFIG, header, what, _FOUND_OR_NOT)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return GetKVConfigResponseHeader.from_ext(answer.ext_fields).value

    def delete_kv_config(self, namespace: str, key: str) -> None:
        header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        self._tell_name_servers(RequestCode.DELETE_KV_CONFIG, header, f"the deletion of {namespace}/{key}")

    def kv_configs(self, namespace: str) -> dict[str, str]:
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        what = f"the entries of {namespace}"
        answer = self._ask_name_server(RequestCode.GET_KVLIST_BY_NAMESPACE, header, what, _FOUND_OR_NOT)
        return {} if answer.code == ResponseCode.QUERY_NOT_FOUND else KVTable.from_json(answer.body).table

    # --- the exchange -----------------------------------------------------------------------------------------

    def _fresh(self, topic: str) -> tuple[MessageQueue, ...]:
        return TopicRoute.of(topic, self._instance().routes.fetch(topic)).readable

    def _masters(self, broker: str | None, cluster: str | None) -> dict[str, str]:
        """Masters' addresses by broker name."""
        if broker is not None and ":" in broker:
            return {broker: broker}
        info = self.cluster_info()
        until = time.monotonic() + BROKER_WAIT
        while not info.broker_addr_table and time.monotonic() < until:
            time.sleep(0.02)  # a broker that has just started is about to register
            info = self.cluster_info()
        names: Iterable[str] = info.broker_addr_table
        if broker is not None:
            names = [broker]
        elif cluster is not None:
            if cluster not in info.cluster_addr_table:
                known = ", ".join(sorted(info.cluster_addr_table)) or "none"
                raise ClientError(f"No cluster is named {cluster!r}.", remedy=f"Known clusters: {known}.")
            names = info.cluster_addr_table[cluster]
        masters = {}
        for name in names:
            data = info.broker_addr_table.get(name)
            address = data.broker_addrs.get(MASTER_ID) if data is not None else None
            if address is not None:
                masters[name] = address
        if not masters:
            who = f"named {broker!r}" if broker else f"in cluster {cluster!r}" if cluster else "at all"
            raise ClientError(
                f"The name server {self.name_server} knows no master broker {who}.",
                remedy="Start a broker with this name server (rocket up, rocket broker -n ADDRESS).",
                retriable=True,
            )
        return masters

    def _topic_masters(self, topic: str) -> dict[str, str]:
        brokers = self._instance().routes.fetch(topic).broker_datas
        masters = {b.broker_name: b.broker_addrs[MASTER_ID] for b in brokers if MASTER_ID in b.broker_addrs}
        if not masters:
            raise ClientError(f"No master of topic {topic!r} is up.", remedy="Start it again.", retriable=True)
        return masters

    def _address(self, broker: str) -> str:
        return next(iter(self._masters(broker, None).values()))

    def _wait_for_route(self, topic: str, masters: dict[str, str], queues: tuple[int, int]) -> None:
        """Brokers tell the name servers at once, but not before they answer."""
        if any(":" in name for name in masters):
            return  # an address: whichever name servers it registers with
        until = time.monotonic() + ROUTE_WAIT
        while True:
            try:
                route = self._instance().routes.fetch(topic)
                changed = (q for q in route.queue_datas if (q.read_queue_nums, q.write_queue_nums) == queues)
                if set(masters) <= {q.broker_name for q in changed}:
                    return
            except TopicNotFoundError:
                pass
            if time.monotonic() >= until:
                raise TopicNotFoundError(
                    f"Topic {topic!r} was created on {', '.join(masters)}, but the name server {self.name_server} does"
                    " not know it yet.",
                    remedy="Check that these brokers can reach this name server.",
                    retriable=True,
                )
            time.sleep(0.02)

    def _ask(
        self,
        address: str,
        code: RequestCode,
        header: Header | None,
        what: str,
        *,
        topic: str | None = None,
        body: bytes = b"",
        allowed: frozenset[int] = frozenset({int(ResponseCode.SUCCESS)}),
    ) -> RemotingCommand:
        request = RemotingCommand.request(code, header.to_ext() if header is not None else None, body)
        return self._instance().invoke(address, request, what, topic=topic, timeout=self._timeout, allowed=allowed)

    def _ask_name_server(
        self,
        code: RequestCode,
        header: Header | None,
        what: str,
        allowed: frozenset[int] = frozenset({int(ResponseCode.SUCCESS)}),
    ) -> RemotingCommand:
        request = RemotingCommand.request(code, header.to_ext() if header is not None else None)
        return self._instance().routes.name_servers.ask(request, allowed, what)

    def _tell_name_servers(self, code: RequestCode, header: Header, what: str) -> list[RemotingCommand]:
        servers = self._instance().routes.name_servers
        return servers.ask_each(lambda: RemotingCommand.request(code, header.to_ext()), what)
