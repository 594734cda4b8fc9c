"""The topics whose last change is not yet on disk and registered.

A changed topic is *settling* until ``topics.json`` is written and the name servers know it. If its messages were
acknowledged earlier, the topic could be unknown after a kill. The file is written at once if a response waits for it;
otherwise in time with others (:meth:`ConfigSaver.save_in_time`): the retry topics of popped messages are as many as
pairs of a group and a topic, and nobody waits for them. After a kill, they are found by their queues
(``missing_files``). If the file cannot be written, the change stays in effect and the write is retried; until it
succeeds, messages for the topic are refused.

Corresponds to the persist and registerIncrementBrokerData calls of TopicConfigManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from spark_rocket.broker.broker_environment import BackgroundTasks
from spark_rocket.broker.registration import NameServerRegistration
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.state_saver import StateSaver
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.codes import ResponseCode

# Maximum time that the response to a change waits for the name servers.
REGISTER_TIMEOUT_S = 1.0


class SettlingTopics:
    """The settling topics of one broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tasks: BackgroundTasks,
        topics: TopicConfigManager,
        saver: StateSaver,
        registration: NameServerRegistration,
    ) -> None:
        self._loop = loop
        self._tasks = tasks
        self._topics = topics
        self._saver = saver
        self._registration = registration
        self.table: dict[str, asyncio.Future[str]] = {}
        """By topic: the problem with writing its change, or an empty string."""
        self.on_topic: Callable[[str], None] = lambda topic: None
        """Called with each topic that has changed, or whose change could not be written."""
        self._unsaved: set[str] = set()
        self._unsaved_since = 0  # the number of successful writes before the failures of those topics
        self._turn: asyncio.Future[str] | None = None
        self._changed: set[str] = set()

    def topic_changed(self, topic: str) -> None:
        self.on_topic(topic)
        if self._turn is None:  # one future for all changes in this iteration of the loop
            self._turn = self._loop.create_future()
            self._loop.call_soon(self._settle)
        self._changed.add(topic)
        self.table[topic] = self._turn

    def _settle(self) -> None:
        settled, self._turn = self._turn, None
        changed, self._changed = self._changed, set()
        deleted = any(topic not in self._topics.table for topic in changed)
        saved = self._saver.save_in_time("topics")
        registered = self._registration.register(None if deleted else changed)

        async def wait() -> None:
            problem = await saved
            if problem:
                self._still_unsaved().update(changed)
                for topic in changed:
                    self.on_topic(topic)
            else:
                await asyncio.wait([registered], timeout=REGISTER_TIMEOUT_S)
            for topic in changed:
                if self.table.get(topic) is settled:
                    del self.table[topic]
            if settled is not None:
                settled.set_result(problem)

        self._tasks.spawn(wait())

    def settle(self, topics: Collection[str]) -> list[Awaitable[str]]:
        """What to await until these topics are settled; each returns a problem, or an empty string."""
        waiting: list[Awaitable[str]] = [self.table[topic] for topic in topics if topic in self.table]
        if waiting:
            self._write_now()
        if not self._still_unsaved().isdisjoint(topics):
            waiting.append(self._saver.saved("topics"))
        return waiting

    def _write_now(self) -> None:
        if self._turn is None:
            self._saver.hurry("topics")
        else:  # changed in this iteration of the loop
            self._saver.save("topics")

    def _still_unsaved(self) -> set[str]:
        """The topics whose last change could not be written, if no later write of the file has succeeded."""
        writes = self._saver.writes("topics")
        if writes != self._unsaved_since:
            self._unsaved_since = writes
            self._unsaved.clear()
        return self._unsaved

    def refuse_unsaved(self, topic: str) -> None:
        """Raise RefusedError for a topic whose last change could not be written, before a message is stored in it."""
        if topic in self._still_unsaved():
            raise RefusedError(
                f"{self._saver.problem('topics')}.",
                ResponseCode.SYSTEM_ERROR,
                remedy=f"The broker retries the write; topic {topic} accepts messages once it has succeeded.",
            )
