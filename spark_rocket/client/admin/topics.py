"""Topics: what there is, what is in it, and changes of it.

Topics are created on brokers, which register them; they are deleted on brokers and on name servers, as RocketMQ's own
tools do.

Thread-safety: all methods. Corresponds to DefaultMQAdminExt's methods of topics, and to mqadmin's updateTopic,
deleteTopic, topicList, topicStatus.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from spark_rocket.client.admin.base import KNOWN_OR_NOT, PAGE, Asked, put_aside
from spark_rocket.client.admin.brokers import BrokerAdmin
from spark_rocket.client.admin.results import Failures, TopicInfo, topic_kind
from spark_rocket.client.core.routes import AUTO_CREATE_TOPIC, ORDER_NAMESPACE
from spark_rocket.errors import RocketError, TopicNotFoundError
from spark_rocket.protocol.wire.bodies import (
    ClusterInfo,
    DataVersion,
    GroupList,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from spark_rocket.protocol.wire.codes import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from spark_rocket.protocol.wire.headers.base import Header

ROUTE_WAIT = 5.0  # seconds in which a broker has told the name servers of a new topic
_TOPICS = "the question for topics"
_CONFIG_CODES = KNOWN_OR_NOT | {int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)}


class TopicAdmin(BrokerAdmin):
    """Topics."""

    # --- what there is ----------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """All topics that the name server knows, brokers' own among them, sorted."""
        answer = self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, "the list of topics")
        return sorted(TopicList.from_json(answer.body).topic_list)

    def topic_list(self, *, failed: Failures | None = None) -> list[TopicInfo]:
        """All topics with their settings on each broker, sorted by name."""
        info = self._known_brokers()
        found: dict[str, dict[str, TopicConfig]] = {name: {} for name in self.topics()}
        for broker, configs in self._configs(failed).items():
            for name, config in configs.items():
                found.setdefault(name, {})[broker] = config
        own = _own_names(info)
        return [TopicInfo(name, topic_kind(name, own), configs) for name, configs in sorted(found.items())]

    def _configs(self, failed: Failures | None) -> dict[str, dict[str, TopicConfig]]:
        code, header = RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequestHeader()
        asked = [Asked(name, name, address, code, header) for name, address in self._every_broker().items()]
        answers = self._ask_all(asked, _TOPICS, lambda answer: answer, failed)
        found = {}
        for question, answer in answers:
            try:
                found[question.broker] = self._topic_table(question.address, answer)
            except RocketError as error:
                if failed is None:
                    raise
                failed.setdefault(question.broker, error)
        return found

    def topic_route(self, topic: str) -> TopicRouteData:
        """The name server's own words. Raises TopicNotFoundError."""
        return self._instance().routes.fetch(topic)

    def topic_configs(self, broker: str) -> dict[str, TopicConfig]:
        """All topics of a broker (its name or address), the system's among them."""
        code, header = RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequestHeader()
        address = self._any_address(broker)
        return self._topic_table(address, self._ask(address, code, header, _TOPICS))

    def _topic_table(self, address: str, answer: RemotingCommand) -> dict[str, TopicConfig]:
        def part(answer: RemotingCommand) -> tuple[dict[str, TopicConfig], DataVersion]:
            body = TopicConfigSerializeWrapper.from_json(answer.body)
            return body.topic_config_table, body.data_version

        def behind(count: int, version: str) -> Header:
            return GetAllTopicConfigRequestHeader(topic_seq=count, data_version=version, max_topic_num=PAGE)

        return self._whole_table(address, RequestCode.GET_ALL_TOPIC_CONFIG, answer, part, behind, "totalTopicNum")

    def topic_config(self, topic: str, *, broker: str) -> TopicConfig | None:
        """A topic's settings on a broker; None if it does not have it."""
        address = self._any_address(broker)
        what = f"the question for topic {topic}"
        header = GetTopicConfigRequestHeader(topic=topic)
        answer = self._ask(address, RequestCode.GET_TOPIC_CONFIG, header, what, allowed=_CONFIG_CODES)
        if answer.code == ResponseCode.SUCCESS:
            return TopicConfig.from_json(answer.body)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return self.topic_configs(address).get(topic)  # early brokers of 4.x tell all of them or none

    def topic_stats(self, topic: str, *, broker: str | None = None, failed: Failures | None = None) -> TopicStatsTable:
        """First and last offset of every queue on every broker, or on one, and when it last got a message."""
        whole = TopicStatsTable()
        addresses = self._topic_brokers(topic) if broker is None else {broker: self._any_address(broker)}
        for name, address in addresses.items():
            with put_aside(failed, name):
                answer = self._ask(
                    address,
                    RequestCode.GET_TOPIC_STATS_INFO,
                    GetTopicStatsInfoRequestHeader(topic=topic),
                    f"the statistics of topic {topic}",
                    topic=topic,
                )
                _add_stats(whole, TopicStatsTable.from_json(answer.body))
        return whole

    def topics_stats(
        self, topics: Iterable[TopicInfo | str], *, failed: Failures | None = None
    ) -> dict[str, TopicStatsTable]:
        """The same of many topics at once; those that are gone are left out.

        Give what ``topic_list`` gave: of names alone, all brokers are asked first who has them.
        """
        wanted = list(topics)
        if any(isinstance(topic, str) for topic in wanted):
            by_name = {topic.name: topic for topic in self.topic_list(failed=failed)}
            wanted = [by_name[topic] if isinstance(topic, str) else topic for topic in wanted if _known(topic, by_name)]
        infos = [topic for topic in wanted if isinstance(topic, TopicInfo)]
        addresses = self._every_broker()
        asked = [
            Asked(
                info.name,
                broker,
                addresses[broker],
                RequestCode.GET_TOPIC_STATS_INFO,
                GetTopicStatsInfoRequestHeader(topic=info.name),
            )
            for info in infos
            for broker in info.configs
            if broker in addresses and broker not in (failed or {})
        ]
        found: dict[str, TopicStatsTable] = {}
        for question, part in self._ask_all(asked, "the statistics of a topic", _stats, failed, KNOWN_OR_NOT):
            _add_stats(found.setdefault(question.key, TopicStatsTable()), part)
        return found

    def groups_of(self, topic: str, *, failed: Failures | None = None) -> list[str]:
        """Groups that consume a topic, as its brokers know them, sorted."""
        groups: set[str] = set()
        for name, address in self._topic_brokers(topic).items():
            if name in (failed or {}):
                continue
            header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
            code, what = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, f"the groups of topic {topic}"
            with put_aside(failed, name):
                answer = self._ask(address, code, header, what, topic=topic)
                groups.update(GroupList.from_json(answer.body).group_list)
        return sorted(groups)

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
        config = TopicConfig(topic, queues, write_queues, perm, order=order)
        for address in masters.values():
            self._put_topic(address, config, attributes, f"the creation of topic {topic}")
        if order:
            text = ";".join(f"{name}:{write_queues}" for name in sorted(masters))
            self.put_kv_config(ORDER_NAMESPACE, topic, text)
        self._instance().routes.forget(topic)
        self._wait_for_route(topic, dict.fromkeys(masters, (queues, write_queues)))

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
        """Change a topic on every master that has it (of the cluster, or on one broker); what is not given stays.

        What it is now, by broker. Raises TopicNotFoundError if none of them has it.
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
                changed[name] = replace(known, **changes)  # type: ignore[arg-type]  # as the fields are
                self._put_topic(address, changed[name], attributes, f"the change of topic {topic}")
        if not changed:
            raise TopicNotFoundError(
                f"Topic {topic!r} is on none of the brokers {', '.join(sorted(masters))}.",
                remedy=f"Check its name, or create it (rocket topic create {topic}, Admin.create_topic).",
                response_code=ResponseCode.TOPIC_NOT_EXIST,
            )
        if any(config.order for config in changed.values()) and not any(":" in name for name in changed):
            text = ";".join(f"{name}:{config.write_queue_nums}" for name, config in sorted(changed.items()))
            self.put_kv_config(ORDER_NAMESPACE, topic, text)
        self._instance().routes.forget(topic)
        self._wait_for_route(
            topic, {name: (config.read_queue_nums, config.write_queue_nums) for name, config in changed.items()}
        )
        return changed

    def _put_topic(self, address: str, config: TopicConfig, attributes: str | None, what: str) -> None:
        header = CreateTopicRequestHeader(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=attributes,
        )
        self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, what)

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

    def _wait_for_route(self, topic: str, queues: dict[str, tuple[int, int]]) -> None:
        """Brokers tell the name servers at once, but not before they answer. ``queues`` by broker name."""
        if any(":" in name for name in queues):
            return  # an address: whichever name servers it registers with
        until = time.monotonic() + ROUTE_WAIT
        while True:
            try:
                known = self._instance().routes.fetch(topic).queue_datas
                if queues.items() <= {q.broker_name: (q.read_queue_nums, q.write_queue_nums) for q in known}.items():
                    return
            except TopicNotFoundError:
                pass
            if time.monotonic() >= until:
                raise TopicNotFoundError(
                    f"Topic {topic!r} was created on {', '.join(queues)}, but the name server {self.name_server} does"
                    " not know it yet.",
                    remedy="Check that these brokers can reach this name server.",
                    retriable=True,
                )
            time.sleep(0.02)


def _known(topic: TopicInfo | str, by_name: dict[str, TopicInfo]) -> bool:
    return not isinstance(topic, str) or topic in by_name


def _own_names(info: ClusterInfo) -> set[str]:
    return {*info.broker_addr_table, *info.cluster_addr_table}


def _stats(answer: RemotingCommand) -> TopicStatsTable | None:
    return TopicStatsTable.from_json(answer.body) if answer.code == ResponseCode.SUCCESS else None


def _add_stats(whole: TopicStatsTable, part: TopicStatsTable) -> None:
    whole.offset_table.update(part.offset_table)
    if part.topic_put_tps is not None:
        whole.topic_put_tps = (whole.topic_put_tps or 0.0) + part.topic_put_tps
