"""Delays responses until the changes that they report are on disk and registered.

A changed topic is *settling* until ``topics.json`` is written and the name servers know it. If its messages were
acknowledged earlier, the topic could be unknown after a kill. The file is written at once if a response waits for it;
otherwise in time with others (:meth:`ConfigSaver.save_in_time`): the retry topics of popped messages are as many as
pairs of a group and a topic, and nobody waits for them. After a kill, they are found by their queues
(``missing_files``). If the file cannot be written, the change stays in effect and the write is retried; until it
succeeds, messages for the topic are refused.

Writes of config files and requests to name servers run behind futures. Corresponds to the persist and
registerIncrementBrokerData calls of TopicConfigManager and AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.registration import NameServerRegistration
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.state_saver import StateSaver
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel

# Maximum time that the response to a change waits for the name servers.
REGISTER_TIMEOUT_S = 1.0


class ChangeGate:
    """The settling changes of one broker."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        topics: TopicConfigManager,
        saver: StateSaver,
        registration: NameServerRegistration,
    ) -> None:
        self._loop = environment.loop
        self._tasks = environment.tasks
        self._topics = topics
        self._saver = saver
        self._registration = registration
        self.settling: dict[str, asyncio.Future[str]] = {}
        """Topics whose last change is not yet on disk and registered."""
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
        self.settling[topic] = self._turn

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
                if self.settling.get(topic) is settled:
                    del self.settling[topic]
            if settled is not None:
                settled.set_result(problem)

        self._tasks.spawn(wait())

    def when_settled(
        self,
        channel: Channel,
        response: RemotingCommand,
        topics: Collection[str] = (),
        *,
        files: Sequence[str] = (),
        must_be_saved: bool = True,
    ) -> RemotingCommand | None:
        """Delay a response until changes of these topics are on disk and registered, and these files are written.

        Returns the response if there is nothing to wait for, otherwise None: it is sent later. If a change could not be
        written and ``must_be_saved``, it becomes SYSTEM_ERROR.
        """
        waiting: list[Awaitable[str]] = [self.settling[topic] for topic in topics if topic in self.settling]
        if waiting:
            self._write_now()
        if not self._still_unsaved().isdisjoint(topics):
            waiting.append(self._saver.saved("topics"))
        if files:
            waiting.append(self._saver.saved(*files))
        if not waiting:
            return response

        async def write() -> None:
            problem = next(filter(None, [await one for one in waiting]), "")
            channel.write(_unsaved(response, problem) if problem and must_be_saved else response)

        self._tasks.spawn(write())
        return None

    def _write_now(self) -> None:
        if self._turn is None:
            self._saver.hurry("topics")
        else:  # changed in this iteration of the loop
            self._saver.save("topics")

    def respond(
        self, channel: Channel, request: RemotingCommand, topics: Collection[str] = (), *, files: Sequence[str] = ()
    ) -> RemotingCommand | None:
        """Report success when the changes of a request are settled, as :meth:`when_settled`."""
        if request.is_oneway:
            return None
        return self.when_settled(channel, RemotingCommand.response(request), topics, files=files)

    async def saved(self, response: RemotingCommand, file: str) -> RemotingCommand:
        """Wait until a file has all changes; return the response, or SYSTEM_ERROR if it could not be written."""
        problem = await self._saver.saved(file)
        return _unsaved(response, problem) if problem else response

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


def _unsaved(response: RemotingCommand, problem: str) -> RemotingCommand:
    """Make a response report that the change could not be written."""
    response.code = ResponseCode.SYSTEM_ERROR
    response.remark = f"{problem}. The change is in effect until the broker stops; the write is retried."
    response.ext_fields, response.body = {}, b""
    return response
