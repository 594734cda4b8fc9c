"""Brokers and name servers: state, settings, statistics, cleaning, write permissions, key-value configuration.

``broker`` is a broker's name or its address everywhere. Changes of name servers go to every one of them, and one that
is away is an error; for queries the first answer counts.

Thread-safety: all methods. Corresponds to DefaultMQAdminExt's methods of these names, and to mqadmin's clusterList.
"""

from __future__ import annotations

from spark_rocket.client.admin.base import FOUND_OR_NOT, AdminBase, Asked, Query, done, if_found, names_in
from spark_rocket.client.admin.results import BrokerRuntime, BrokerStatsData, BrokerStatus, Failures, StatsItem
from spark_rocket.protocol.wire.bodies import BrokerStatsDataBody, BrokerStatsItem, KVTable
from spark_rocket.protocol.wire.bodies.stats import HARuntimeInfo, TimerMetricsSerializeWrapper
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
    ViewBrokerStatsDataRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)

_FOUND_OR_NOT = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)})


class NameServerAdmin(AdminBase):
    """Name servers."""

    def wipe_write_perm(self, broker: str) -> int:
        """Let no more messages go to a broker, by its name, before it is stopped; how many topics that changed."""

        def count(answer: RemotingCommand) -> int:
            return WipeWritePermOfBrokerResponseHeader.from_ext(answer.ext_fields).wipe_topic_count

        header = WipeWritePermOfBrokerRequestHeader(broker_name=broker)
        code, what = RequestCode.WIPE_WRITE_PERM_OF_BROKER, f"the end of writing to {broker}"
        return max(self._ask_name_servers(Query(code, what, count, header)))

    def add_write_perm(self, broker: str) -> int:
        """The reverse of ``wipe_write_perm``."""

        def count(answer: RemotingCommand) -> int:
            return AddWritePermOfBrokerResponseHeader.from_ext(answer.ext_fields).add_topic_count

        header = AddWritePermOfBrokerRequestHeader(broker_name=broker)
        code, what = RequestCode.ADD_WRITE_PERM_OF_BROKER, f"writing to {broker}"
        return max(self._ask_name_servers(Query(code, what, count, header)))

    def put_kv_config(self, namespace: str, key: str, value: str) -> None:
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        self._ask_name_servers(Query(RequestCode.PUT_KV_CONFIG, f"the entry {namespace}/{key}", done, header))

    def get_kv_config(self, namespace: str, key: str) -> str | None:
        value = if_found(lambda answer: GetKVConfigResponseHeader.from_ext(answer.ext_fields).value)
        header = GetKVConfigRequestHeader(namespace=namespace, key=key)
        code, what = RequestCode.GET_KV_CONFIG, f"the question for {namespace}/{key}"
        return self._ask_name_server(Query(code, what, value, header, allowed=FOUND_OR_NOT))

    def delete_kv_config(self, namespace: str, key: str) -> None:
        header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        what = f"the deletion of {namespace}/{key}"
        self._ask_name_servers(Query(RequestCode.DELETE_KV_CONFIG, what, done, header))

    def kv_configs(self, namespace: str) -> dict[str, str]:
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        code, what = RequestCode.GET_KVLIST_BY_NAMESPACE, f"the entries of {namespace}"
        return self._ask_name_server(Query(code, what, if_found(_table), header, allowed=FOUND_OR_NOT)) or {}

    def name_server_configs(self) -> dict[str, dict[str, str]]:
        """Every name server's settings, by its address."""
        query = Query(RequestCode.GET_NAMESRV_CONFIG, "the question for settings", _settings)
        return {address: self._ask(address, query) for address in self.instance().routes.name_servers.addresses}

    def update_name_server_config(self, settings: dict[str, str]) -> None:
        """Change settings of every name server."""
        code, what = RequestCode.UPDATE_NAMESRV_CONFIG, "the change of settings"
        for address in self.instance().routes.name_servers.addresses:
            self._ask(address, Query(code, what, done, body=_settings_text(settings)))


class BrokerAdmin(NameServerAdmin):
    """Brokers."""

    def brokers(self, *, cluster: str | None = None) -> list[BrokerStatus]:
        """All brokers, masters and slaves, by cluster, name and id; each says why it is silent, if it is."""
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
        query = Query(RequestCode.GET_BROKER_RUNTIME_INFO, "the question for state", _table)
        asked = [Asked(member[3], member[3], member[3], query) for member in members]
        runtimes = {address: BrokerRuntime.of(table) for address, table in self._ask_all(asked, failed)}
        errors = {address: f"{error.message} {error.remedy}".rstrip() for address, error in failed.items()}
        return [BrokerStatus(*member, runtimes.get(member[3]), errors.get(member[3])) for member in members]

    def runtime_info(self, broker: str) -> dict[str, str]:
        """What a broker says about itself: counts, rates, positions, disk."""
        query = Query(RequestCode.GET_BROKER_RUNTIME_INFO, "the question for state", _table)
        return self._ask(self._address(broker), query)

    def broker_runtime(self, broker: str) -> BrokerRuntime:
        """The same in numbers."""
        return BrokerRuntime.of(self.runtime_info(broker))

    def broker_config(self, broker: str) -> dict[str, str]:
        """A broker's settings."""
        query = Query(RequestCode.GET_BROKER_CONFIG, "the question for settings", _settings)
        return self._ask(self._address(broker), query)

    def update_broker_config(self, broker: str, settings: dict[str, str]) -> str:
        """Change settings of a running broker. The remark of its response: our broker names unknown settings."""
        code, what = RequestCode.UPDATE_BROKER_CONFIG, "the change of settings"
        query = Query(code, what, lambda answer: answer.remark or "", body=_settings_text(settings))
        return self._ask(self._address(broker), query)

    def broker_stats(self, broker: str, name: str, key: str) -> BrokerStatsData | None:
        """One of a broker's statistics over the last minute, hour and day; None if it has counted nothing.

        Names are Apache's: ``TOPIC_PUT_NUMS`` and ``TOPIC_PUT_SIZE`` of a topic, ``GROUP_GET_NUMS``, ``GROUP_GET_SIZE``
        and ``SNDBCK_PUT_NUMS`` of ``topic@group``, ``BROKER_PUT_NUMS`` and ``BROKER_GET_NUMS`` of the cluster.
        """

        def value(answer: RemotingCommand) -> BrokerStatsData:
            body = BrokerStatsDataBody.from_json(answer.body)
            return BrokerStatsData(_item(body.stats_minute), _item(body.stats_hour), _item(body.stats_day))

        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        code, what = RequestCode.VIEW_BROKER_STATS_DATA, f"the question for {name} of {key}"
        return self._ask(self._address(broker), Query(code, what, if_found(value), header, allowed=_FOUND_OR_NOT))

    def ha_status(self, broker: str) -> HARuntimeInfo:
        """How far slaves are behind, as a master or one of them sees it."""
        code, what = RequestCode.GET_BROKER_HA_STATUS, "the question for replication"
        return self._ask(self._address(broker), Query(code, what, lambda answer: HARuntimeInfo.from_json(answer.body)))

    def timer_metrics(self, broker: str) -> dict[str, int]:
        """How many messages wait for their delivery time, by topic."""

        def value(answer: RemotingCommand) -> dict[str, int]:
            table = TimerMetricsSerializeWrapper.from_json(answer.body).timing_count
            return {topic: metric.count for topic, metric in sorted(table.items())}

        query = Query(RequestCode.GET_TIMER_METRICS, "the question for timed messages", value)
        return self._ask(self._address(broker), query)

    def delete_expired_commit_log(self, broker: str) -> None:
        """Delete the files of the commit log that are past their time now, not at the hour set for it."""
        query = Query(RequestCode.DELETE_EXPIRED_COMMITLOG, "the deletion of expired files", done)
        self._ask(self._address(broker), query)

    def clean_expired_queues(self, broker: str) -> None:
        """Delete the files of consume queues whose messages are gone."""
        query = Query(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, "the cleaning of consume queues", done)
        self._ask(self._address(broker), query)

    def clean_unused_topics(self, broker: str) -> None:
        """Delete the queues of topics that the broker does not know any more."""
        self._ask(self._address(broker), Query(RequestCode.CLEAN_UNUSED_TOPIC, "the cleaning of topics", done))


def _item(item: BrokerStatsItem) -> StatsItem:
    return StatsItem(item.sum, item.tps, item.avgpt)


def _table(answer: RemotingCommand) -> dict[str, str]:
    return KVTable.from_json(answer.body).table


def _settings(answer: RemotingCommand) -> dict[str, str]:
    """Settings from a properties text."""
    lines = (line.strip() for line in bytes(answer.body).decode().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _settings_text(settings: dict[str, str]) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
