"""State files that are missing beside stored messages: named, restored from what is left, or a reason not to start.

A store without messages may lack every file. A store with messages has ``topics.json`` and ``consumerOffset.json``,
Apache's too, and after its first clean stop by this broker also the others. If a file and its ``.bak`` are missing:

========================  =============================================================================================
file                      effect
========================  =============================================================================================
consumerOffset.json       the start is refused: groups would silently read everything again, or skip messages
topics.json               topics are restored from the queues on disk, with default settings
subscriptionGroup.json    groups are restored from consumerOffset.json, with default settings
others                    a warning
========================  =============================================================================================

Retry and dead-letter topics are created with their first message, before ``topics.json`` has them. Topics that a kill
has left out of it are restored at each start. The queues of deleted topics are not on disk.

So that its absence is always a loss, ``consumerOffset.json`` is written before the first message is accepted.

Thread-safety: used at start only. After a crash: a restored file is durable before requests are served.
RocketMQ has no equivalent: Apache's broker starts with empty tables.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from spark_rocket.broker.state.config_files import ConfigFile
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.errors import ConfigError
from spark_rocket.model import DLQ_PREFIX, RETRY_PREFIX, group_problem
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.paths import LMQ_PREFIX

_log = logging.getLogger(__name__)

_MAX_NAMES = 20
_EFFECTS = {
    "delays": "the progress of delay levels is read from the log",
    "order": "queues that an ordered POP had blocked are not blocked any more",
    "modes": "groups that were set to POP pull again, until the mode is set again",
}


class MissingFiles:
    """Decides about the missing state files of one store that is not a slave's."""

    def __init__(
        self,
        store: MessageStore,
        files: Mapping[str, ConfigFile],
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
    ) -> None:
        self._store = store
        self._files = files
        self._topics, self._groups, self._offsets = topics, groups, offsets

    def handle(self, missing: set[str]) -> None:
        """Handle the missing files, by their keys. ConfigError if the start must be refused."""
        size = self._store.max_physical_offset - self._store.min_physical_offset
        if not size:
            if "offsets" in missing:
                self._files["offsets"].save()
            return
        if "offsets" in missing:
            raise ConfigError(
                f"{self._files['offsets'].path} and its .bak are missing beside {size} bytes of messages: the "
                "offsets of all groups are unknown.",
                remedy="Restore the file from a backup. To start without offsets, create it with the content {}: "
                "groups then begin where new groups begin.",
            )
        if "topics" in missing:
            self._restored("topics", "topics", "the queues on disk", self._restore_topics(""))
        elif restored := self._restore_topics(RETRY_PREFIX, DLQ_PREFIX):
            self._files["topics"].save()
            _log.info("Restored %d retry and dead-letter topics that the last stop has left out.", len(restored))
        if "groups" in missing:
            self._restored("groups", "groups", self._files["offsets"].path.name, self._restore_groups())
        for name, effect in _EFFECTS.items():
            if name in missing and self._store.was_stopped:
                _log.warning("%s and its .bak are missing beside stored messages: %s.", self._files[name].path, effect)

    def _restored(self, name: str, what: str, source: str, names: list[str]) -> None:
        if not names:
            return
        self._files[name].save()
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        _log.error(
            "%s and its .bak are missing beside stored messages: restored %d %s from %s, with default settings. "
            "Restore the file from a backup, or check their settings: %s%s.",
            self._files[name].path,
            len(names),
            what,
            source,
            ", ".join(names[:_MAX_NAMES]),
            more,
        )

    def _restore_topics(self, *prefixes: str) -> list[str]:
        """Add the topics with these prefixes that have queues on disk; return them with their number of queues."""
        queues: dict[str, int] = {}
        for topic, queue_id in self._store.queue_keys():
            if topic.startswith(prefixes):
                queues[topic] = max(queues.get(topic, 0), queue_id + 1)
        restored = []
        for topic, count in sorted(queues.items()):
            if topic not in self._topics.table and not self._topics.is_system(topic) and LMQ_PREFIX not in topic:
                self._topics.ensure(topic, count)
                restored.append(f"{topic} ({count} queue{'s' * (count > 1)})")
        return restored

    def _restore_groups(self) -> list[str]:
        """Add the groups that have offsets."""
        named: Iterable[str] = {key.rpartition("@")[2] for key in self._offsets.table}
        restored = [group for group in sorted(named) if group not in self._groups.table and not group_problem(group)]
        for group in restored:
            self._groups.put(SubscriptionGroupConfig(group_name=group))
        return restored
