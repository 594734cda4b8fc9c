"""Deletions on request: expired files of the log (329), expired entries of consume queues (306), queues of topics that
do not exist (316).

Corresponds to AdminBrokerProcessor.{deleteExpiredCommitLog, cleanExpiredConsumeQueue, cleanUnusedTopic}.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from spark_rocket.broker.processors.processor import Processor, handles, handles_in_steps
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.steps import in_steps
from spark_rocket.model import SYSTEM_TOPICS
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore

_log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class DeletionProcessor(Processor):
    """Deletions on request."""

    clock: Callable[[], int]
    store: MessageStore
    topics: TopicConfigManager

    @handles(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired_log(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        retention = self.store.retention
        retention.delete_expired()
        retention.run(self.clock())
        return RemotingCommand.response(request)

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    def clean_expired_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Trim the consume queues. Unlike Apache's broker, keep empty queues, so that offsets never restart at 0."""
        self.store.retention.trim_again()
        return RemotingCommand.response(request)

    @handles_in_steps(RequestCode.CLEAN_UNUSED_TOPIC)
    async def clean_unused_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        unused = []
        async for topic in in_steps(sorted(self.store.topics() - SYSTEM_TOPICS)):
            if topic not in self.topics.table:
                self.store.delete_topic(topic)
                unused.append(topic)
        if unused:
            _log.warning("deleted the queues of unknown topics: %s", ", ".join(unused))
        return RemotingCommand.response(request)
