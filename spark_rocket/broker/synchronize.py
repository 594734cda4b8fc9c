"""What a slave takes over from its master beside the log: topics, groups, and how far groups and delay levels are.

Nothing is asked while the log is not known to be the master's: a slave of another cluster keeps its own.

Asked at once when the master is known, every ten seconds, and when the log has a message of a topic that is not known:

====  =====================  =====================================================================================
code  of the master          here
====  =====================  =====================================================================================
21    topics                 as they are there, version and all, if the version is another; those that are gone go
201   consumer groups        the same
43    consumers' offsets     as they are there: what consumers told this slave while the master was away is replaced
45    delay levels' offsets  the same
402   pull or pop            the same; masters before 5.0 do not know it
60    the timer's progress   ``config/timercheck``; masters before 5.0 do not know it
====  =====================  =====================================================================================

How far groups are and what was delivered after its delay or at its time (43, 45, 60) counts here only when the log has
all that the master's had after it said so (``commitLogMaxOffset`` of 28): else a slave made a master could leave out
what it does not have, such as the commit of a transaction that its group has passed, or a check point of what was
popped. A slave that has no offsets at all takes the first at once. Of the timer's own files a slave has none; a master
makes them anew from its queue, with what the checkpoint says is delivered left out.

When the two clocks differ by more than a minute, which ``bootTimestamp`` and ``runtime`` of 28 tell, the log says so.

So offsets are ten seconds old at most when the slave is made a master, and some messages are consumed, or delivered
after their delay, twice. Each answer is read whole before anything of it counts, one question is under way at a time,
and an answer of a master that is not the master any more is dropped: nothing goes back to what an old answer says.
A round that fails changes nothing that it has not come to; that is logged once, until one succeeds.

The queues of a topic that the master does not have are deleted if they are empty there (30): a master that lost its
``topics.json`` has not deleted any. Nor are they when the log has brought something for them since the question was
asked: it may be of a topic that was made anew meanwhile.

Thread-safety: belongs to the event loop; the questions block a thread of the loop's executor. After a crash: the files
that the broker writes for itself (config/*.json).
Corresponds to org.apache.rocketmq.broker.slave.SlaveSynchronize, which has no bound on what is asked at once.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from spark_rocket.broker.replication.slave import ReplicationSlave
from spark_rocket.broker.service import BrokerService
from spark_rocket.errors import BrokerError, ProtocolError, RocketError
from spark_rocket.protocol.wire.bodies import dumps_fastjson, loads_tolerant
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
)
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.store.delay.timer_checkpoint import TimerCheckpoint

_log = logging.getLogger(__name__)

SYNC_SECONDS = 10.0
CLOCKS_DIFFER_SECONDS = 60.0
HURRY_SECONDS = 1.0  # between rounds that unknown topics ask for
_LOOK_SECONDS = 0.1
_TIMEOUT = 5.0
_MOST_PAGES = 10_000
# Tables that come in pages: the table's name, the header fields of its size and of a page's position.
_PAGED = {
    RequestCode.GET_ALL_TOPIC_CONFIG: ("topicConfigTable", "totalTopicNum", "topicSeq"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ("subscriptionGroupTable", "totalGroupNum", "groupSeq"),
}

_RUNTIME = re.compile(r"(\d{1,9}) days?, (\d{1,9}) hours?, (\d{1,9}) minutes?, (\d{1,9}) seconds?")  # of 28's answer

Table = dict[str, Any]


class SlaveSynchronize:
    """Keeps a slave's tables as its master's."""

    def __init__(self, service: BrokerService, slave: ReplicationSlave, *, period: float = SYNC_SECONDS) -> None:
        """``slave``: what follows the master's log."""
        self.master_address: str | None = None
        self.rounds = 0
        """How many have succeeded."""
        self.clocks_differ = False
        """Whether the master's clock is more than CLOCKS_DIFFER_SECONDS ahead of this broker's or behind."""
        self._service = service
        self._slave = slave
        self._timer = TimerCheckpoint(service.config.store_path)
        self._period = period
        self._client = RemotingClient(
            connect_timeout=_TIMEOUT, tls=service.config.client_tls(), credentials=service.config.own_credentials
        )
        self._known = asyncio.Event()  # there is reason for a round
        self._hurried: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._problem = ""
        self._asked_at = 0  # the end of the log then
        self._left = False  # there may be queues of topics that the master does not have
        self._kept: set[str] = set()  # of which it has queues all the same, as was said

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._hurried is not None:
            self._hurried.cancel()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._client.close)  # which ends a question that is under way

    def set_master(self, address: str) -> None:
        """Ask this broker from now on, and at once."""
        if address != self.master_address:
            self.master_address = address
            self._known.set()

    def arrived(self, topic: str, queue_id: int) -> None:
        """The log has a message of a topic that is not known, which was made since the last round: ask.

        Until then, and should the master die before it can say, the topic is what the log says of it.
        """
        service = self._service
        if service.topics.adopt(topic, queue_id + 1):
            service.saving.save("topics")
        if self._hurried is None and self.master_address is not None:
            self._hurried = self._service.loop.call_later(HURRY_SECONDS if self.rounds else 0.0, self._known.set)

    async def _run(self) -> None:
        await self._known.wait()
        while True:
            self._known.clear()
            self._hurried = None
            while not self._slave.is_following:  # noqa: ASYNC110 - no event says it
                await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._round()
            except (RocketError, OSError, TypeError, ValueError, KeyError, AttributeError) as error:
                self._failed(str(error) or type(error).__name__)
            else:
                self.rounds += 1
                if self._problem:
                    _log.warning("The settings of the master at %s are taken over again.", self.master_address)
                    self._problem = ""
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period):  # wait_for may lose the cancelling by close
                    await self._known.wait()

    def _failed(self, problem: str) -> None:
        if not self._problem:
            _log.warning(
                "Topics, groups and offsets of the master at %s are not taken over: %s It is tried every %d s.",
                self.master_address,
                problem,
                self._period,
            )
        self._problem = problem

    async def _round(self) -> None:
        steps: list[tuple[Callable[[str], Table | None], Callable[[Table], None]]] = [
            (partial(self._whole, RequestCode.GET_ALL_TOPIC_CONFIG), self._take_topics),
            (partial(self._whole, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG), self._take_groups),
            (self._modes, partial(self._take_unversioned, "modes", self._service.request_modes.load)),
        ]
        address = self.master_address
        assert address is not None
        for ask, take in steps:
            self._asked_at = self._service.store.max_physical_offset
            found = await asyncio.to_thread(ask, address)
            if address != self.master_address:
                return  # the round for the new one follows at once
            if found is not None:
                take(found)
            if take == self._take_topics and self._left:
                await self._drop_deleted(address)
                if address != self.master_address:
                    return
        await self._take_progress(address)

    # --- asking: on a thread of the executor --------------------------------------------------------------------------

    def _answer(self, code: RequestCode, address: str, ext: dict[str, str] | None = None) -> RemotingCommand:
        answer = self._client.invoke(address, RemotingCommand.request(code, ext or {}), _TIMEOUT)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(
                f"{address} answered {code.name} with {answer.code}: {answer.remark or 'no remark'}.",
                response_code=answer.code,
            )
        return answer

    def _modes(self, address: str) -> Table | None:
        """None from a master before 5.0."""
        try:
            return _table(self._answer(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, address))
        except BrokerError as error:
            if error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise

    def _whole(self, code: RequestCode, address: str) -> Table:
        """A table that newer masters give a part at a time; all parts are of one version."""
        name, total, position = _PAGED[code]
        whole: Table = {}
        entries: Table = {}
        version: object = None
        for page in range(_MOST_PAGES):
            ext = {position: str(len(entries))}
            if version is not None:
                ext["dataVersion"] = dumps_fastjson(version).decode()
            answer = self._answer(code, address, ext)
            part = _table(answer)
            if page == 0:
                whole, version = part, part.get("dataVersion")
            elif part.get("dataVersion") != version:
                raise BrokerError(f"{name} changed at {address} while it was read; it is read again.")
            before = len(entries)
            entries.update(part.get(name) or {})
            if len(entries) >= int(answer.ext_fields.get(total, 0)):
                return {**whole, name: entries}
            if len(entries) == before:
                break
        raise BrokerError(f"{address} gave {len(entries)} entries of {name}, and says that it has more.")

    # --- taking over: on the loop ---------------------------------------------------------------------------------

    def _take_topics(self, stored: Table) -> None:
        service = self._service
        changed = service.topics.replace(stored)
        if changed:
            service.targets.clear()
            service.saving.save("topics")
            service.registration.register()
            _log.info("Topics are the master's: %d", len(service.topics.table))
        self._left = self._left or changed

    async def _drop_deleted(self, address: str) -> None:
        """Delete the queues of topics that the master has deleted: their settings, and their queues."""
        service, left = self._service, False
        for topic in sorted(service.store.topics() - service.topics.table.keys()):
            queues = service.store.queues(topic)
            end = await asyncio.to_thread(self._end_of, address, topic, queues)
            if address != self.master_address:
                return
            if end:
                left = True
                if topic not in self._kept:
                    self._kept.add(topic)
                    _log.warning(
                        "The master at %s has messages of topic %s, but does not list the topic: %s keeps its queues.",
                        address,
                        topic,
                        self._slave.name,
                    )
            elif topic not in service.topics.table and self._is_untouched(topic):
                service.store.delete_topic(topic)
                service.held.wake_topic(topic)
            else:
                left = True
        self._left = left

    def _end_of(self, address: str, topic: str, queues: list[int]) -> int:
        """The highest end that these queues of a topic have at the master."""
        end = 0
        for queue_id in queues:
            header = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
            answer = self._answer(RequestCode.GET_MAX_OFFSET, address, header.to_ext())
            end = max(end, GetMaxOffsetResponseHeader.from_ext(answer.ext_fields).offset)
        return end

    def _is_untouched(self, topic: str) -> bool:
        """Whether its queues have had nothing since the question was asked."""
        store = self._service.store
        for queue_id in store.queues(topic):
            last = store.get_entries(topic, queue_id, store.get_max_offset(topic, queue_id) - 1, 1)
            if last and last[0][0] >= self._asked_at:
                return False
        return True

    def _take_groups(self, stored: Table) -> None:
        service = self._service
        if service.groups.replace(stored):
            service.saving.save("groups")
            _log.info("Groups are the master's: %d", len(service.groups.table))

    async def _take_progress(self, address: str) -> None:
        offsets, delays, timer, end = await asyncio.to_thread(self._progress, address)
        service = self._service
        if not service.offsets.table and address == self.master_address:
            service.offsets.replace(offsets)  # better than none: who has none might begin at a queue's end
        try:
            async with asyncio.timeout(self._period):
                await self._slave.reached(end)
        except TimeoutError:
            return  # behind the master: the next round may find it where that is now
        if address != self.master_address:
            return
        service.offsets.replace(offsets)
        self._take_unversioned("delays", service.schedule.load, delays)
        if timer:
            await asyncio.to_thread(self._timer.take_over, timer, address)

    def _progress(self, address: str) -> tuple[Table, Table, bytes, int]:
        """How far groups are, what is delivered of delayed and timed messages, and where the log ended after that."""
        offsets = _table(self._answer(RequestCode.GET_ALL_CONSUMER_OFFSET, address))
        delays = _table(self._answer(RequestCode.GET_ALL_DELAY_OFFSET, address))
        request = RemotingCommand.request(RequestCode.GET_TIMER_CHECK_POINT)
        timer = self._client.invoke(address, request, _TIMEOUT)  # refused where there is no timer
        asked = self._service.clock()
        state = _table(self._answer(RequestCode.GET_BROKER_RUNTIME_INFO, address))
        self._compare_clocks(address, state["table"], asked)
        end = int(state["table"]["commitLogMaxOffset"])
        return offsets, delays, bytes(timer.body) if timer.code == ResponseCode.SUCCESS else b"", end

    def _compare_clocks(self, address: str, state: Table, asked: int) -> None:
        """Tell whoever runs the two when their clocks differ: once, until they do not any more."""
        runtime = _RUNTIME.search(str(state.get("runtime")))
        if runtime is None or not str(state.get("bootTimestamp")).isdecimal():
            return
        days, hours, minutes, seconds = map(int, runtime.groups())
        theirs = int(state["bootTimestamp"]) + 1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds)
        ahead = (theirs - asked) / 1000
        differs = abs(ahead) > CLOCKS_DIFFER_SECONDS
        if differs and not self.clocks_differ:
            _log.warning(
                "The clock of the master at %s is %.0f s %s that of %s: until both are right, retention, delays and "
                "times of messages shift by that much should this slave be made the master.",
                address,
                abs(ahead),
                "ahead of" if ahead > 0 else "behind",
                self._slave.name,
            )
        elif self.clocks_differ and not differs:
            _log.warning("The clocks of the master at %s and of %s agree again.", address, self._slave.name)
        self.clocks_differ = differs

    def _take_unversioned(self, name: str, load: Callable[[Table], None], stored: Table) -> None:
        """Take over a table without a version, and write its file if it changed."""
        file = self._service.files[name]
        before = file.snapshot()
        load(stored)
        if file.snapshot() != before:
            self._service.saving.save(name)


def _table(answer: RemotingCommand) -> Table:
    value = loads_tolerant(answer.body) if answer.body else {}
    if not isinstance(value, dict):
        raise ProtocolError("The master's answer is no JSON object.")
    return value
