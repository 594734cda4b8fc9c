"""Topics: list, contents, changes.

Topics are created on brokers, which register them; they are deleted on brokers and on name servers, as RocketMQ's own
tools do.

Corresponds to DefaultMQAdminExt's methods of topics, and to mqadmin's updateTopic, deleteTopic, topicList, topicStatus.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from spark_rocket.client.admin.base import (
    SUCCESS_OR_NO_TOPIC,
    AdminBase,
    KeyedQuery,
    PagedTable,
    Query,
    decoded,
    done,
    if_found,
    names_in,
)
from spark_rocket.client.admin.broker_rows import Failures
from spark_rocket.client.admin.name_servers import delete_kv_query, get_kv_query, put_kv_query
from spark_rocket.client.admin.topic_rows import TopicInfo, TopicState, topic_kind
from spark_rocket.client.core.routes import ORDER_NAMESPACE
from spark_rocket.errors import TopicNotFoundError
from spark_rocket.model import AUTO_CREATE_TOPIC_KEY
from spark_rocket.protocol.wire.bodies.config import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from spark_rocket.protocol.wire.bodies.route import TopicList
from spark_rocket.protocol.wire.bodies.stats import GroupList, TopicStatsTable
from spark_rocket.protocol.wire.codes import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from spark_rocket.protocol.wire.headers.namesrv import DeleteTopicFromNamesrvRequestHeader

ROUTE_WAIT_S = 5.0  # seconds until a broker has registered a new topic
_CONFIG_CODES = SUCCESS_OR_NO_TOPIC | {int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)}


def _entries(response: RemotingCommand) -> tuple[dict[str, TopicConfig], DataVersion]:
    body = TopicConfigSerializeWrapper.from_json(response.body)
    return body.topic_config_table, body.data_version


_TOPICS = PagedTable(
    RequestCode.GET_ALL_TOPIC_CONFIG,
    "the query of topics",
    _entries,
    GetAllTopicConfigRequestHeader,
    position="topic_seq",
    size="max_topic_num",
    count_field="totalTopicNum",
)


class TopicAdmin(AdminBase):
    # --- queries ----------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return all topics of the name server, including those of brokers, sorted."""
        code, what = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "the list of topics"
        return sorted(self._ask_name_server(Query(code, what, lambda a: TopicList.from_json(a.body).topic_list)))

    def topic_list(self, *, cluster: str | None = None, failed: Failures | None = None) -> list[TopicInfo]:
        """Return all topics (of the cluster) with their settings on each broker, sorted by name."""
        info = self._known_brokers()
        brokers = None if cluster is None else set(names_in(info, cluster))
        found: dict[str, dict[str, TopicConfig]] = {name: {} for name in self.topics()}
        for broker, configs in self._tables(self._every_broker(), _TOPICS, failed).items():
            for name, config in configs.items():
                found.setdefault(name, {})[broker] = config
        own = {*info.broker_addr_table, *info.cluster_addr_table}
        return [
            TopicInfo(name, topic_kind(name, own), configs)
            for name, configs in sorted(found.items())
            if brokers is None or brokers & configs.keys()
        ]

    def topic_configs(self, broker: str) -> dict[str, TopicConfig]:
        """Return all topics of a broker (its name or address), including system topics."""
        return self._tables({broker: self._any_address(broker)}, _TOPICS, None)[broker]

    def topic_config(self, topic: str, *, broker: str) -> TopicConfig | None:
        """Return a topic's settings on a broker; None if the broker does not have it."""
        address = self._any_address(broker)
        response = self._ask(
            address,
            Query(
                RequestCode.GET_TOPIC_CONFIG,
                f"the query of topic {topic}",
                lambda response: response,
                GetTopicConfigRequestHeader(topic=topic),
                allowed=_CONFIG_CODES,
            ),
        )
        if response.code == ResponseCode.SUCCESS:
            return TopicConfig.from_json(response.body)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return self.topic_configs(address).get(topic)  # early brokers of 4.x only support listing all topics

    def topic_stats(self, topic: str, *, broker: str | None = None, failed: Failures | None = None) -> TopicStatsTable:
        """Return first offset, end and time of the last message of every queue, on all brokers or on one."""
        whole = TopicStatsTable()
        addresses = self._topic_brokers(topic) if broker is None else {broker: self._any_address(broker)}
        for part in self._ask_each(addresses, _stats_query(topic), failed).values():
            _add_stats(whole, part)
        return whole

    def topics_stats(
        self, topics: Iterable[TopicInfo | str], *, failed: Failures | None = None
    ) -> dict[str, TopicStatsTable]:
        """Return the statistics of many topics at once; topics that no longer exist are skipped.

        Pass results of ``topic_list`` if available: for names, the topics of all brokers are queried first.
        """
        wanted = list(topics)
        infos = [topic for topic in wanted if isinstance(topic, TopicInfo)]
        if len(infos) < len(wanted):
            infos += [info for info in self.topic_list(failed=failed) if info.name in wanted]
        addresses = self._every_broker()
        asked = [
            KeyedQuery(
                info.name, broker, addresses[broker], replace(_stats_query(info.name), allowed=SUCCESS_OR_NO_TOPIC)
            )
            for info in infos
            for broker in info.configs
            if broker in addresses and broker not in (failed or {})
        ]
        found: dict[str, TopicStatsTable] = {}
        for topic, part in self._ask_all(asked, failed):
            _add_stats(found.setdefault(topic, TopicStatsTable()), part)
        return found

    def topic_state(self, topic: str, *, failed: Failures | None = None) -> TopicState:
        """Return ``topic_stats`` as rows."""
        return TopicState.of(self.topic_stats(topic, failed=failed))

    def topic_states(
        self, topics: Iterable[TopicInfo | str], *, failed: Failures | None = None
    ) -> dict[str, TopicState]:
        """Return ``topics_stats`` as rows, sorted by topic."""
        return {name: TopicState.of(table) for name, table in sorted(self.topics_stats(topics, failed=failed).items())}

    def groups_of(self, topic: str, *, failed: Failures | None = None) -> list[str]:
        """Return the groups that consume a topic, as its brokers report them, sorted."""
        query = Query(
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            f"the groups of topic {topic}",
            lambda response: GroupList.from_json(response.body).group_list,
            QueryTopicConsumeByWhoRequestHeader(topic=topic),
            topic=topic,
        )
        found = self._ask_each(self._topic_brokers(topic), query, failed)
        return sorted({group for groups in found.values() for group in groups})

    # --- changes ----------------------------------------------------------------------------------------------

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
    ) -> list[str]:
        """Create or change a topic on one broker, on the masters of a cluster or on all known masters.

        ``message_type``: the type that RocketMQ 5's own clients may send: NORMAL, FIFO, DELAY, TRANSACTION, or MIXED
        for all of them. ``attributes``: that and others as text, ``"+message.type=FIFO,+reserve.time=3600000"``.
        Returns the names of these brokers when the name server has the topic.

        To remove queues of a topic in use, first reduce ``write_queues`` (default: ``queues``). When the groups have
        consumed the other queues, reduce ``queues`` as well.
        """
        write_queues = queues if write_queues is None else write_queues
        if message_type is not None:
            attributes = ",".join(filter(None, (attributes, f"+message.type={message_type}")))
        masters = self._masters(broker, cluster)
        config = TopicConfig(topic, queues, write_queues, perm, order=order)
        for address in masters.values():
            self._put_topic(address, config, attributes, f"the creation of topic {topic}")
        if order:
            self._put_order(topic, dict.fromkeys(masters, write_queues))
        self.instance().routes.forget(topic)
        self._wait_for_route(topic, dict.fromkeys(masters, (queues, write_queues)))
        return list(masters)

    def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        message_type: str | None = None,
        attributes: str | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Change a topic on every master that has it (of the cluster, or on one broker); None leaves a value unchanged.

        Returns the new settings by broker. Raises TopicNotFoundError if no broker has the topic.
        """
        given = {"read_queue_nums": read_queues, "write_queue_nums": write_queues, "perm": perm, "order": order}
        changes = {name: value for name, value in given.items() if value is not None}
        if message_type is not None:
            attributes = ",".join(filter(None, (attributes, f"+message.type={message_type}")))
        masters = self._masters(broker, cluster)
        changed: dict[str, TopicConfig] = {}
        for name, address in masters.items():
            known = self.topic_config(topic, broker=address)
            if known is not None:
                changed[name] = replace(known, **changes)  # type: ignore[arg-type]  # the types of the fields
                self._put_topic(address, changed[name], attributes, f"the change of topic {topic}")
        if not changed:
            raise TopicNotFoundError(
                f"Topic {topic!r} does not exist on any of the brokers {', '.join(sorted(masters))}.",
                remedy=f"Check its name, or create it (rocket topic create {topic}, Admin.create_topic).",
                response_code=ResponseCode.TOPIC_NOT_EXIST,
            )
        if order is not None or any(config.order for config in changed.values()):
            self._put_order(
                topic, {name: config.write_queue_nums if config.order else None for name, config in changed.items()}
            )
        self.instance().routes.forget(topic)
        self._wait_for_route(
            topic, {name: (config.read_queue_nums, config.write_queue_nums) for name, config in changed.items()}
        )
        return changed

    def _put_topic(self, address: str, config: TopicConfig, attributes: str | None, what: str) -> None:
        header = CreateTopicRequestHeader(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC_KEY,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=attributes,
        )
        self._ask(address, Query(RequestCode.UPDATE_AND_CREATE_TOPIC, what, done, header))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic and its messages on all brokers (of the cluster), and its route on all name servers."""
        what = f"the deletion of topic {topic}"
        header = DeleteTopicRequestHeader(topic=topic)
        masters = self._masters(None, cluster)
        for address in masters.values():
            self._ask(address, Query(RequestCode.DELETE_TOPIC_IN_BROKER, what, done, header))
        at_name_servers = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
        self._ask_name_servers(Query(RequestCode.DELETE_TOPIC_IN_NAMESRV, what, done, at_name_servers))
        self._put_order(topic, dict.fromkeys(masters), others=cluster is not None)
        self.instance().routes.forget(topic)

    def _put_order(self, topic: str, queues: Mapping[str, int | None], *, others: bool = True) -> None:
        """Record the numbers of queues of an ordered topic in ORDER_TOPIC_CONFIG, by name or address of the broker.

        None removes the broker. ``others``: whether the entries of other brokers stay, those of any name server. Every
        name server gets the result, also if it has it: an earlier change may have failed at one of them.
        """
        query = get_kv_query(ORDER_NAMESPACE, topic)
        before = self._ask_each(self._each_name_server(), query, None).values() if others else ()
        entries = dict(part.rpartition(":")[::2] for text in before for part in (text or "").split(";") if ":" in part)
        known = self._known_brokers().broker_addr_table if any(":" in key for key in queues) else {}
        names = {address: name for name, broker in known.items() for address in broker.broker_addrs.values()}
        for key, count in queues.items():
            broker = names.get(key, key)
            if count is None:
                entries.pop(broker, None)
            elif ":" not in broker:  # else an address that the name server does not know
                entries[broker] = str(count)
        text = ";".join(f"{broker}:{count}" for broker, count in sorted(entries.items()))
        change = put_kv_query(ORDER_NAMESPACE, topic, text) if text else delete_kv_query(ORDER_NAMESPACE, topic)
        self._ask_name_servers(change)

    def _wait_for_route(self, topic: str, queues: dict[str, tuple[int, int]]) -> None:
        """Wait for the registration, which brokers send only after their response. ``queues`` by broker name."""
        if any(":" in name for name in queues):
            return  # given by address: its name servers are unknown
        until = time.monotonic() + ROUTE_WAIT_S
        while True:
            try:
                known = self.instance().routes.fetch(topic).queue_datas
                if queues.items() <= {q.broker_name: (q.read_queue_nums, q.write_queue_nums) for q in known}.items():
                    return
            except TopicNotFoundError:
                pass
            if time.monotonic() >= until:
                raise TopicNotFoundError(
                    f"Topic {topic!r} was created on {', '.join(queues)}, but is not registered at the name server"
                    f" {self.name_server} yet.",
                    remedy="Check that these brokers can connect to this name server.",
                    retriable=True,
                )
            time.sleep(0.02)


def _stats_query(topic: str) -> Query[TopicStatsTable | None]:
    value = if_found(decoded(TopicStatsTable))
    header = GetTopicStatsInfoRequestHeader(topic=topic)
    code, what = RequestCode.GET_TOPIC_STATS_INFO, f"the statistics of topic {topic}"
    return Query(code, what, value, header, topic=topic)


def _add_stats(whole: TopicStatsTable, part: TopicStatsTable | None) -> None:
    if part is None:
        return
    whole.offset_table.update(part.offset_table)
    if part.topic_put_tps is not None:
        whole.topic_put_tps = (whole.topic_put_tps or 0.0) + part.topic_put_tps
