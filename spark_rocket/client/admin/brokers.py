"""Brokers and name servers: state, settings, statistics, cleaning, write permissions, key-value configuration.

``broker`` is a broker's name or its address everywhere. A change of the name servers goes to all of them, and an
unavailable one is an error. For queries the first response counts.

Thread-safety: all methods. Corresponds to DefaultMQAdminExt's methods of these names, and to mqadmin's clusterList.
"""

from __future__ import annotations

from spark_rocket.client.admin.base import (
    SUCCESS_OR_NO_TOPIC,
    SUCCESS_OR_NOT_FOUND,
    AdminBase,
    KeyedQuery,
    Query,
    decoded,
    done,
    if_found,
    names_in,
)
from spark_rocket.client.admin.broker_rows import (
    BrokerRuntime,
    BrokerSettings,
    BrokerStatsData,
    BrokerStatus,
    Failures,
    StatsItem,
)
from spark_rocket.protocol.java_properties import render_properties
from spark_rocket.protocol.setting import DYNAMIC_SETTINGS
from spark_rocket.protocol.wire.bodies.route import ClusterInfo, KVTable, TopicRouteData
from spark_rocket.protocol.wire.bodies.stats import (
    BrokerStatsDataBody,
    BrokerStatsItem,
    HARuntimeInfo,
    TimerMetricsSerializeWrapper,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import ViewBrokerStatsDataRequestHeader
from spark_rocket.protocol.wire.headers.namesrv import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from spark_rocket.protocol.wire.headers.routes import GetKVListByNamespaceRequestHeader, GetRouteInfoRequestHeader

_SUCCESS_OR_NOT_FOUND = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)})


class NameServerAdmin(AdminBase):
    def wipe_write_perm(self, broker: str) -> int:
        """Stop sends to a broker, given by name, before it is stopped; return the number of changed topics."""

        def count(response: RemotingCommand) -> int:
            return WipeWritePermOfBrokerResponseHeader.from_ext(response.ext_fields).wipe_topic_count

        header = WipeWritePermOfBrokerRequestHeader(broker_name=broker)
        code, what = RequestCode.WIPE_WRITE_PERM_OF_BROKER, f"the removal of the write permission of {broker}"
        return max(self._ask_name_servers(Query(code, what, count, header)))

    def add_write_perm(self, broker: str) -> int:
        """Undo ``wipe_write_perm``; return the number of changed topics."""

        def count(response: RemotingCommand) -> int:
            return AddWritePermOfBrokerResponseHeader.from_ext(response.ext_fields).add_topic_count

        header = AddWritePermOfBrokerRequestHeader(broker_name=broker)
        code, what = RequestCode.ADD_WRITE_PERM_OF_BROKER, f"the write permission of {broker}"
        return max(self._ask_name_servers(Query(code, what, count, header)))

    def put_kv_config(self, namespace: str, key: str, value: str, *, name_server: str | None = None) -> None:
        """Set an entry on every name server, or on one of them, given by address."""
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        query = Query(RequestCode.PUT_KV_CONFIG, f"the entry {namespace}/{key}", done, header)
        if name_server is None:
            self._ask_name_servers(query)
        else:
            self._ask(name_server, query)

    def get_kv_config(self, namespace: str, key: str) -> str | None:
        return self._ask_name_server(_entry_query(namespace, key))

    def kv_config_of_each(self, namespace: str, key: str, *, failed: Failures | None = None) -> dict[str, str]:
        """Return the entry of each name server that has it, by address."""
        found = self._ask_each(self._each_name_server(), _entry_query(namespace, key), failed)
        return {address: value for address, value in found.items() if value is not None}

    def delete_kv_config(self, namespace: str, key: str) -> None:
        header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        what = f"the deletion of {namespace}/{key}"
        self._ask_name_servers(Query(RequestCode.DELETE_KV_CONFIG, what, done, header))

    def kv_configs(self, namespace: str) -> dict[str, str]:
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        code, what = RequestCode.GET_KVLIST_BY_NAMESPACE, f"the entries of {namespace}"
        return self._ask_name_server(Query(code, what, if_found(_table), header, allowed=SUCCESS_OR_NOT_FOUND)) or {}

    def cluster_info_of_each(self, *, failed: Failures | None = None) -> dict[str, ClusterInfo]:
        """Return the brokers that each name server knows, by address of the name server."""
        code, what = RequestCode.GET_BROKER_CLUSTER_INFO, "the list of brokers"
        query = Query(code, what, decoded(ClusterInfo))
        return self._ask_each(self._each_name_server(), query, failed)

    def topic_route_of_each(self, topic: str, *, failed: Failures | None = None) -> dict[str, TopicRouteData]:
        """Return the route of each name server that has the topic, by address."""
        value = if_found(decoded(TopicRouteData))
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        code, what = RequestCode.GET_ROUTEINFO_BY_TOPIC, f"the query of the route of topic {topic}"
        found = self._ask_each(
            self._each_name_server(), Query(code, what, value, header, allowed=SUCCESS_OR_NO_TOPIC), failed
        )
        return {address: route for address, route in found.items() if route is not None}

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of all name servers."""
        return tuple(self.instance().name_servers.addresses)

    def _each_name_server(self) -> dict[str, str]:
        return {address: address for address in self.name_servers}

    def name_server_configs(self) -> dict[str, dict[str, str]]:
        """Return the settings of every name server, by address."""
        query = Query(RequestCode.GET_NAMESRV_CONFIG, "the query of settings", parse_settings)
        return {address: self._ask(address, query) for address in self._each_name_server()}

    def update_name_server_config(self, settings: dict[str, str]) -> None:
        code, what = RequestCode.UPDATE_NAMESRV_CONFIG, "the change of settings"
        for address in self._each_name_server():
            self._ask(address, Query(code, what, done, body=_settings_text(settings)))


class BrokerAdmin(NameServerAdmin):
    def brokers(self, *, cluster: str | None = None) -> list[BrokerStatus]:
        """Return all brokers by cluster, name and id; ``error`` is the reason where a broker does not respond."""
        info = self.cluster_info()
        if cluster is not None:
            names_in(info, cluster)
        members = sorted(
            (name, data.broker_name, broker_id, address)
            for name, brokers in info.cluster_addr_table.items()
            if cluster in (None, name)
            for data in (info.broker_addr_table[broker] for broker in brokers if broker in info.broker_addr_table)
            for broker_id, address in data.broker_addrs.items()
        )
        failed: Failures = {}
        asked = [KeyedQuery(member[3], member[3], member[3], _RUNTIME_INFO) for member in members]
        runtimes = {address: BrokerRuntime.of(table) for address, table in self._ask_all(asked, failed)}
        return [BrokerStatus(*member, runtimes.get(member[3]), failed.get(member[3])) for member in members]

    def runtime_info(self, broker: str) -> dict[str, str]:
        """Return the state that a broker reports: counts, rates, positions, disk usage."""
        return self._ask(self._address(broker), _RUNTIME_INFO)

    def broker_runtime(self, broker: str) -> BrokerRuntime:
        """Return ``runtime_info`` as numbers."""
        return BrokerRuntime.of(self.runtime_info(broker))

    def broker_config(self, broker: str) -> dict[str, str]:
        """Return the settings of a broker."""
        return self.broker_settings(broker).values

    def broker_settings(self, broker: str) -> BrokerSettings:
        """Return the settings of a broker, and which of them it changes at run time if it reports this."""
        query = Query(RequestCode.GET_BROKER_CONFIG, "the query of settings", _broker_settings)
        return self._ask(self._address(broker), query)

    def update_broker_config(self, broker: str, settings: dict[str, str]) -> str:
        """Change settings of a running broker; return the remark of its response.

        A spark_rocket broker lists unknown settings in the remark.
        """
        code, what = RequestCode.UPDATE_BROKER_CONFIG, "the change of settings"
        query = Query(code, what, lambda response: response.remark or "", body=_settings_text(settings))
        return self._ask(self._address(broker), query)

    def broker_stats(self, broker: str, name: str, key: str) -> BrokerStatsData | None:
        """Return one statistic of a broker over the last minute, hour and day; None if it has no data.

        Names are Apache's: ``TOPIC_PUT_NUMS`` and ``TOPIC_PUT_SIZE`` of a topic, ``GROUP_GET_NUMS``, ``GROUP_GET_SIZE``
        and ``SNDBCK_PUT_NUMS`` of ``topic@group``, ``BROKER_PUT_NUMS`` and ``BROKER_GET_NUMS`` of the cluster.
        """

        def value(response: RemotingCommand) -> BrokerStatsData:
            body = BrokerStatsDataBody.from_json(response.body)
            return BrokerStatsData(_item(body.stats_minute), _item(body.stats_hour), _item(body.stats_day))

        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        code, what = RequestCode.VIEW_BROKER_STATS_DATA, f"the query of {name} of {key}"
        query = Query(code, what, if_found(value), header, allowed=_SUCCESS_OR_NOT_FOUND)
        return self._ask(self._address(broker), query)

    def ha_status(self, broker: str) -> HARuntimeInfo:
        """Return the replication lag of slaves, as reported by a master or a slave."""
        code, what = RequestCode.GET_BROKER_HA_STATUS, "the query of replication"
        return self._ask(self._address(broker), Query(code, what, decoded(HARuntimeInfo)))

    def timer_metrics(self, broker: str) -> dict[str, int]:
        """Return the number of messages pending delivery at a set time, by topic."""

        def value(response: RemotingCommand) -> dict[str, int]:
            table = TimerMetricsSerializeWrapper.from_json(response.body).timing_count
            return {topic: metric.count for topic, metric in sorted(table.items())}

        query = Query(RequestCode.GET_TIMER_METRICS, "the query of timed messages", value)
        return self._ask(self._address(broker), query)

    def delete_expired_commit_log(self, broker: str) -> None:
        """Delete expired commit log files now, not at the configured hour."""
        query = Query(RequestCode.DELETE_EXPIRED_COMMITLOG, "the deletion of expired files", done)
        self._ask(self._address(broker), query)

    def clean_expired_queues(self, broker: str) -> None:
        """Delete consume queue files whose messages are gone."""
        query = Query(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, "the cleaning of consume queues", done)
        self._ask(self._address(broker), query)

    def clean_unused_topics(self, broker: str) -> None:
        """Delete the queues of topics that the broker no longer has."""
        self._ask(self._address(broker), Query(RequestCode.CLEAN_UNUSED_TOPIC, "the cleaning of topics", done))


def _entry_query(namespace: str, key: str) -> Query[str | None]:
    value = if_found(lambda response: GetKVConfigResponseHeader.from_ext(response.ext_fields).value)
    header = GetKVConfigRequestHeader(namespace=namespace, key=key)
    code, what = RequestCode.GET_KV_CONFIG, f"the query of {namespace}/{key}"
    return Query(code, what, value, header, allowed=SUCCESS_OR_NOT_FOUND)


def _item(item: BrokerStatsItem) -> StatsItem:
    return StatsItem(item.sum, item.tps, item.avgpt)


def _table(response: RemotingCommand) -> dict[str, str]:
    return KVTable.from_json(response.body).table


_RUNTIME_INFO = Query(RequestCode.GET_BROKER_RUNTIME_INFO, "the query of runtime information", _table)


def parse_settings(response: RemotingCommand) -> dict[str, str]:
    lines = (line.strip() for line in bytes(response.body).decode().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _broker_settings(response: RemotingCommand) -> BrokerSettings:
    names = response.ext_fields.get(DYNAMIC_SETTINGS)
    return BrokerSettings(parse_settings(response), None if names is None else frozenset(names.split(",")))


def _settings_text(settings: dict[str, str]) -> bytes:
    return render_properties(settings.items()).encode()
