"""What a broker has counted (315), its producers (328), its own topics (305), and the end of queues that belong to no
topic (316).

Corresponds to AdminBrokerProcessor.{viewBrokerStatsData, getAllProducerInfo, getSystemTopicListFromBroker,
cleanUnusedTopic}.
"""

from __future__ import annotations

import logging

from spark_rocket.broker.metrics.stats import BROKER, BYTES, DAY, HOUR, MESSAGES, MINUTE, SEND_BACKS, Key
from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.errors import RefusedError
from spark_rocket.model import SYSTEM_TOPICS
from spark_rocket.protocol.wire.bodies import (
    BrokerStatsDataBody,
    BrokerStatsItem,
    ProducerInfo,
    ProducerTableInfo,
    TopicList,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import ViewBrokerStatsDataRequestHeader
from spark_rocket.remoting.server.server import Channel

_log = logging.getLogger(__name__)

_OF_TOPICS = {"TOPIC_PUT_NUMS": MESSAGES, "TOPIC_PUT_SIZE": BYTES}
_OF_GROUPS = {"GROUP_GET_NUMS": MESSAGES, "GROUP_GET_SIZE": BYTES, "SNDBCK_PUT_NUMS": SEND_BACKS}
_OF_BROKER = {"BROKER_PUT_NUMS": MESSAGES, "BROKER_GET_NUMS": SEND_BACKS}


class StatisticsProcessor(Processor):
    """Counts and lists."""

    @answers(RequestCode.VIEW_BROKER_STATS_DATA)
    def stats_data(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ViewBrokerStatsDataRequestHeader.from_ext(request.ext_fields)
        found = self._counted(header.stats_name, header.stats_key)
        windows = self._service.stats.windows
        if found is None or not windows.knows(found[0]):
            raise RefusedError(
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
                response_code=ResponseCode.SYSTEM_ERROR,
            )
        items = []
        for which in (MINUTE, HOUR, DAY):
            window = windows.window(*found, which)
            items.append(BrokerStatsItem(window.sum, window.per_second, window.average))
        return RemotingCommand.response(request, body=BrokerStatsDataBody(*items).to_json())

    def _counted(self, name: str, key: str) -> tuple[Key, int] | None:
        if name in _OF_TOPICS:
            return (key, ""), _OF_TOPICS[name]
        if name in _OF_BROKER and key == self._service.config.broker_cluster_name:
            return BROKER, _OF_BROKER[name]
        topic, at, group = key.partition("@")
        return ((topic, group), _OF_GROUPS[name]) if name in _OF_GROUPS and at else None

    @answers(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        table = {
            group: [
                ProducerInfo(one.client_id, one.channel.remote_addr, one.language, one.version, one.last_update)
                for one in members
            ]
            for group, members in self._service.clients.producers.items()
        }
        return RemotingCommand.response(request, body=ProducerTableInfo(table).to_json())

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=TopicList(sorted(self._service.topics.system)).to_json())

    @answers(RequestCode.CLEAN_UNUSED_TOPIC)
    def clean_unused_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        service = self._service
        unused = sorted(service.store.topics() - service.topics.table.keys() - SYSTEM_TOPICS)
        for topic in unused:
            service.store.delete_topic(topic)
        if unused:
            _log.warning("Queues of topics that are not known here were deleted: %s.", ", ".join(unused))
        return RemotingCommand.response(request)
