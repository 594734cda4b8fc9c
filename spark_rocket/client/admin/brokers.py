"""What an operator asks and changes at brokers: state, settings, statistics, cleaning.

``broker`` is a broker's name or its address everywhere.

Thread-safety: all methods. Corresponds to DefaultMQAdminExt's methods of these names, and to mqadmin's clusterList.
"""

from __future__ import annotations

from spark_rocket.client.admin.base import Asked, names_in
from spark_rocket.client.admin.name_servers import NameServerAdmin, settings_of, settings_text
from spark_rocket.client.admin.results import BrokerRuntime, BrokerStatsData, BrokerStatus, Failures, StatsItem
from spark_rocket.protocol.wire.bodies import BrokerStatsDataBody, BrokerStatsItem, KVTable
from spark_rocket.protocol.wire.bodies.stats import HARuntimeInfo, TimerMetricsSerializeWrapper
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.headers import ViewBrokerStatsDataRequestHeader

_FOUND_OR_NOT = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)})


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
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        asked = [Asked(member[3], member[3], member[3], code, None) for member in members]
        what = "the question for state"
        answers = self._ask_all(asked, what, lambda answer: KVTable.from_json(answer.body).table, failed)
        runtimes = {question.key: BrokerRuntime.of(table) for question, table in answers}
        errors = {address: f"{error.message} {error.remedy}".rstrip() for address, error in failed.items()}
        return [BrokerStatus(*member, runtimes.get(member[3]), errors.get(member[3])) for member in members]

    def runtime_info(self, broker: str) -> dict[str, str]:
        """What a broker says about itself: counts, rates, positions, disk."""
        answer = self._ask(self._address(broker), RequestCode.GET_BROKER_RUNTIME_INFO, None, "the question for state")
        return KVTable.from_json(answer.body).table

    def broker_runtime(self, broker: str) -> BrokerRuntime:
        """The same in numbers."""
        return BrokerRuntime.of(self.runtime_info(broker))

    def broker_config(self, broker: str) -> dict[str, str]:
        """A broker's settings."""
        answer = self._ask(self._address(broker), RequestCode.GET_BROKER_CONFIG, None, "the question for settings")
        return settings_of(answer.body)

    def update_broker_config(self, broker: str, settings: dict[str, str]) -> str:
        """Change settings of a running broker. What it remarks: our broker says which of them it does not know."""
        code, what = RequestCode.UPDATE_BROKER_CONFIG, "the change of settings"
        return self._ask(self._address(broker), code, None, what, body=settings_text(settings)).remark or ""

    def broker_stats(self, broker: str, name: str, key: str) -> BrokerStatsData | None:
        """One of a broker's statistics over the last minute, hour and day; None if it has counted nothing.

        Names are Apache's: ``TOPIC_PUT_NUMS`` and ``TOPIC_PUT_SIZE`` of a topic, ``GROUP_GET_NUMS``, ``GROUP_GET_SIZE``
        and ``SNDBCK_PUT_NUMS`` of ``topic@group``, ``BROKER_PUT_NUMS`` and ``BROKER_GET_NUMS`` of the cluster.
        """
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        code, what = RequestCode.VIEW_BROKER_STATS_DATA, f"the question for {name} of {key}"
        answer = self._ask(self._address(broker), code, header, what, allowed=_FOUND_OR_NOT)
        if answer.code != ResponseCode.SUCCESS:
            return None
        body = BrokerStatsDataBody.from_json(answer.body)
        return BrokerStatsData(_item(body.stats_minute), _item(body.stats_hour), _item(body.stats_day))

    def ha_status(self, broker: str) -> HARuntimeInfo:
        """How far slaves are behind, as a master or one of them sees it."""
        code, what = RequestCode.GET_BROKER_HA_STATUS, "the question for replication"
        return HARuntimeInfo.from_json(self._ask(self._address(broker), code, None, what).body)

    def timer_metrics(self, broker: str) -> dict[str, int]:
        """How many messages wait for their delivery time, by topic."""
        answer = self._ask(
            self._address(broker), RequestCode.GET_TIMER_METRICS, None, "the question for timed messages"
        )
        table = TimerMetricsSerializeWrapper.from_json(answer.body).timing_count
        return {topic: metric.count for topic, metric in sorted(table.items())}

    def delete_expired_commit_log(self, broker: str) -> None:
        """Delete the files of the commit log that are past their time now, not at the hour set for it."""
        code, what = RequestCode.DELETE_EXPIRED_COMMITLOG, "the deletion of expired files"
        self._ask(self._address(broker), code, None, what)

    def clean_expired_queues(self, broker: str) -> None:
        """Delete the files of consume queues whose messages are gone."""
        code, what = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, "the cleaning of consume queues"
        self._ask(self._address(broker), code, None, what)

    def clean_unused_topics(self, broker: str) -> None:
        """Delete the queues of topics that the broker does not know any more."""
        self._ask(self._address(broker), RequestCode.CLEAN_UNUSED_TOPIC, None, "the cleaning of topics")


def _item(item: BrokerStatsItem) -> StatsItem:
    return StatsItem(item.sum, item.tps, item.avgpt)
