"""Brokers: state, settings, statistics, cleaning. ``broker`` is a broker's name or its address everywhere.

Corresponds to DefaultMQAdminExt's methods of these names, and to mqadmin's clusterList.
"""

from __future__ import annotations

from spark_rocket.client.admin.base import (
    AdminBase,
    KeyedQuery,
    Query,
    decoded,
    done,
    if_found,
    names_in,
    parse_settings,
    settings_body,
)
from spark_rocket.client.admin.broker_rows import (
    BrokerRuntime,
    BrokerSettings,
    BrokerStatsData,
    BrokerStatus,
    Failures,
    StatsItem,
)
from spark_rocket.protocol.setting import DYNAMIC_SETTINGS
from spark_rocket.protocol.wire.bodies.route import KVTable
from spark_rocket.protocol.wire.bodies.stats import (
    BrokerStatsDataBody,
    BrokerStatsItem,
    HARuntimeInfo,
    TimerMetricsSerializeWrapper,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import ViewBrokerStatsDataRequestHeader

_SUCCESS_OR_NOT_FOUND = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)})


class BrokerAdmin(AdminBase):
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
        return self._ask(self._address(broker), BROKER_SETTINGS)

    def update_broker_config(self, broker: str, settings: dict[str, str]) -> str:
        """Change settings of a running broker; return the remark of its response.

        A spark_rocket broker lists unknown settings in the remark.
        """
        code, what = RequestCode.UPDATE_BROKER_CONFIG, "the change of settings"
        query = Query(code, what, lambda response: response.remark or "", body=settings_body(settings))
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


def _item(item: BrokerStatsItem) -> StatsItem:
    return StatsItem(item.sum, item.tps, item.avgpt)


def _table(response: RemotingCommand) -> dict[str, str]:
    return KVTable.from_json(response.body).table


_RUNTIME_INFO = Query(RequestCode.GET_BROKER_RUNTIME_INFO, "the query of runtime information", _table)


def _broker_settings(response: RemotingCommand) -> BrokerSettings:
    names = response.ext_fields.get(DYNAMIC_SETTINGS)
    return BrokerSettings(parse_settings(response), None if names is None else frozenset(names.split(",")))


BROKER_SETTINGS = Query(RequestCode.GET_BROKER_CONFIG, "the query of settings", _broker_settings)
