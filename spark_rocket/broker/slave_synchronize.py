"""A slave's copy of its master's topics, groups, offsets and progress of delayed messages.

Requests start once the slave is known to follow the master's log: a slave of another cluster retains its own tables.
They are sent when the master becomes known, every ten seconds, and when the log has a message of an unknown topic:

====  =====================  =====================================================================================
code  of the master          on the slave
====  =====================  =====================================================================================
21    topics                 replaced, with the version, if the version differs; deleted topics are deleted
201   consumer groups        same
43    consumers' offsets     replaced, including commits sent to this slave while the master was unavailable
45    delay levels' offsets  replaced
402   pull or pop            replaced; not supported by masters before 5.0
60    the timer's progress   stored in ``config/timercheck``; not supported by masters before 5.0
====  =====================  =====================================================================================

Offsets and progress (43, 45, 60) are applied only once the slave's log has reached the end that the master's log had
after the responses (``commitLogMaxOffset`` of 28). Otherwise, after a promotion, messages missing on the slave could be
skipped: for example, the commit of a transaction that its group has passed, or a check point of popped messages. A
slave without any offsets applies the first ones at once. A slave has no timer files; a promoted slave rebuilds them
from the timer's queue, without the messages that are delivered according to the checkpoint.

A difference of more than a minute between the two clocks is logged; it is computed from ``bootTimestamp`` and
``runtime`` of 28.

When a slave is promoted, its offsets are therefore at most ten seconds old. Some messages are consumed, or delivered
after their delay, twice. Each response is complete before it is applied, one request is in flight at a time, and
responses of a former master are dropped: old responses never replace newer ones. If a request of a round fails, the
rest of the round is skipped; this is logged once, until a round succeeds.

The queues of a topic that the master does not list are deleted if they are empty on the master (30): a master that lost
its ``topics.json`` still has the queues. They are retained if the slave's log got messages for them after the request
for the topics was sent: the topic may have been recreated.

Thread-safety: used on the event loop only; requests block a thread of the loop's executor. After a crash: the state is
in the files that the broker writes itself (config/*.json).
Corresponds to org.apache.rocketmq.broker.slave.SlaveSynchronize, which has no bound for one response.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.delivery.held_requests import HeldRequests
from spark_rocket.broker.registration import NameServerRegistration
from spark_rocket.broker.replication.slave import ReplicationSlave
from spark_rocket.broker.send_targets import SendTargets
from spark_rocket.broker.state.config_files import ConfigFile
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.state_saver import StateSaver
from spark_rocket.errors import BrokerError, ProtocolError, RocketError
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.pull import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader
from spark_rocket.protocol.wire.json import dumps_fastjson, loads_tolerant
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.delay.timer_checkpoint import TimerCheckpoint
from spark_rocket.store.message_store import MessageStore

_log = logging.getLogger(__name__)

SYNC_SECONDS = 10.0
CLOCKS_DIFFER_SECONDS = 60.0
NEW_TOPIC_DELAY_S = 1.0  # of a round caused by an unknown topic
_FOLLOWING_CHECK_S = 0.1
_TIMEOUT_S = 5.0
_MAX_PAGES = 10_000
# Tables sent in pages: the table's name, and the header fields of its size and of a page's position.
_PAGED = {
    RequestCode.GET_ALL_TOPIC_CONFIG: ("topicConfigTable", "totalTopicNum", "topicSeq"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ("subscriptionGroupTable", "totalGroupNum", "groupSeq"),
}

_RUNTIME = re.compile(r"(\d{1,9}) days?, (\d{1,9}) hours?, (\d{1,9}) minutes?, (\d{1,9}) seconds?")  # in code 28

Table = dict[str, Any]


@dataclass(eq=False)
class SlaveSynchronize:
    """Keeps a slave's tables equal to its master's."""

    environment: BrokerEnvironment
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    slave: ReplicationSlave
    """Copies the master's log."""
    files: Mapping[str, ConfigFile]
    saver: StateSaver
    registration: NameServerRegistration
    held_requests: HeldRequests
    targets: SendTargets
    period: float  # seconds

    def __post_init__(self) -> None:
        config = self.environment.config
        self.master_address: str | None = None
        self.rounds = 0
        """Number of successful rounds."""
        self.clocks_differ = False
        """Whether the clocks of master and slave differ by more than CLOCKS_DIFFER_SECONDS."""
        self._timer = TimerCheckpoint(config.store.store_path)
        self._client = RemotingClient(
            connect_timeout=_TIMEOUT_S, tls=config.client_tls(), credentials=config.own_credentials
        )
        self._wake = asyncio.Event()  # start a round now
        self._early_round: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._problem = ""
        self._log_end_at_request = 0
        self._may_have_orphans = False  # there may be queues of topics that the master does not have
        self._unlisted: set[str] = set()  # logged topics: the master has messages, but does not list them

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._early_round is not None:
            self._early_round.cancel()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._client.close)  # also ends a request in flight

    def set_master(self, address: str) -> None:
        """Send requests to this broker from now on; a new address starts a round at once."""
        if address != self.master_address:
            self.master_address = address
            self._wake.set()

    def arrived(self, topic: str, queue_id: int) -> None:
        """Handle a message in the log. If its queue is unknown, created since the last round: start a round soon.

        Until its settings are known, or permanently if the master fails before that, the topic is derived from the log.
        """
        known = self.topics.table.get(topic)
        if known is not None and queue_id < known.read_queue_nums:
            return
        if self.topics.adopt(topic, queue_id + 1):
            self.saver.save("topics")
        if self._early_round is None and self.master_address is not None:
            self._early_round = self.environment.loop.call_later(
                NEW_TOPIC_DELAY_S if self.rounds else 0.0, self._wake.set
            )

    async def _run(self) -> None:
        await self._wake.wait()
        while True:
            self._wake.clear()
            self._early_round = None
            while not self.slave.is_following:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(_FOLLOWING_CHECK_S)
            try:
                await self._round()
            except (RocketError, OSError, TypeError, ValueError, KeyError, AttributeError) as error:
                self._failed(str(error) or type(error).__name__)
            else:
                self.rounds += 1
                if self._problem:
                    _log.warning("Synchronization with the master at %s works again.", self.master_address)
                    self._problem = ""
            with suppress(TimeoutError):
                async with asyncio.timeout(self.period):
                    await self._wake.wait()

    def _failed(self, problem: str) -> None:
        if not self._problem:
            _log.warning(
                "Synchronization of topics, groups and offsets with the master at %s failed: %s Retrying every %d s.",
                self.master_address,
                problem,
                self.period,
            )
        self._problem = problem

    async def _round(self) -> None:
        steps: list[tuple[Callable[[str], Table | None], Callable[[Table], None]]] = [
            (partial(self._fetch_table, RequestCode.GET_ALL_TOPIC_CONFIG), self._apply_topics),
            (partial(self._fetch_table, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG), self._apply_groups),
            (self._fetch_modes, partial(self._apply_unversioned, "modes")),
        ]
        address = self.master_address
        assert address is not None
        for fetch, apply in steps:
            self._log_end_at_request = self.store.max_physical_offset
            found = await asyncio.to_thread(fetch, address)
            if address != self.master_address:
                return  # a round with the new master follows at once
            if found is not None:
                apply(found)
            if apply == self._apply_topics and self._may_have_orphans:
                await self._drop_deleted(address)
                if address != self.master_address:
                    return
        await self._synchronize_progress(address)

    # --- requests: on a thread of the executor ------------------------------------------------------------------------

    def _request(self, code: RequestCode, address: str, ext: dict[str, str] | None = None) -> RemotingCommand:
        response = self._client.invoke(address, RemotingCommand.request(code, ext or {}), _TIMEOUT_S)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(
                f"{address} responded to {code.name} with code {response.code}: {response.remark or 'no remark'}.",
                response_code=response.code,
            )
        return response

    def _fetch_modes(self, address: str) -> Table | None:
        """Fetch the request modes; None from a master before 5.0."""
        try:
            return _table(self._request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, address))
        except BrokerError as error:
            if error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise

    def _fetch_table(self, code: RequestCode, address: str) -> Table:
        """Fetch a complete table, which newer masters send in pages; all pages must have the same version."""
        name, total, position = _PAGED[code]
        table: Table = {}
        entries: Table = {}
        version: object = None
        for page in range(_MAX_PAGES):
            ext = {position: str(len(entries))}
            if version is not None:
                ext["dataVersion"] = dumps_fastjson(version).decode()
            response = self._request(code, address, ext)
            part = _table(response)
            if page == 0:
                table, version = part, part.get("dataVersion")
            elif part.get("dataVersion") != version:
                raise BrokerError(f"{name} of {address} changed between two pages.")
            before = len(entries)
            entries.update(part.get(name) or {})
            if len(entries) >= int(response.ext_fields.get(total, 0)):
                return {**table, name: entries}
            if len(entries) == before:
                break
        raise BrokerError(f"{address} sent only {len(entries)} of {response.ext_fields.get(total)} entries of {name}.")

    # --- application: on the loop ---------------------------------------------------------------------------------

    def _apply_topics(self, stored: Table) -> None:
        changed = self.topics.replace(stored)
        if changed:
            self.targets.clear()
            self.saver.save("topics")
            self.registration.register()
            _log.info("copied %d topics from the master", len(self.topics.table))
        self._may_have_orphans = self._may_have_orphans or changed

    async def _drop_deleted(self, address: str) -> None:
        orphans = False
        for topic in sorted(self.store.topics() - self.topics.table.keys()):
            queues = self.store.queues(topic)
            end = await asyncio.to_thread(self._end_of, address, topic, queues)
            if address != self.master_address:
                return
            if end:
                orphans = True
                if topic not in self._unlisted:
                    self._unlisted.add(topic)
                    _log.warning(
                        "The master at %s has messages of topic %s, but does not list it: %s retains the topic's "
                        "queues.",
                        address,
                        topic,
                        self.slave.name,
                    )
            elif topic not in self.topics.table and self._is_untouched(topic):
                self.store.delete_topic(topic)
                self.held_requests.wake_topic(topic)
            else:
                orphans = True
        self._may_have_orphans = orphans

    def _end_of(self, address: str, topic: str, queues: list[int]) -> int:
        end = 0
        for queue_id in queues:
            header = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
            response = self._request(RequestCode.GET_MAX_OFFSET, address, header.to_ext())
            end = max(end, GetMaxOffsetResponseHeader.from_ext(response.ext_fields).offset)
        return end

    def _is_untouched(self, topic: str) -> bool:
        """Whether the topic's queues got no message since the request for the topics was sent."""
        store = self.store
        for queue_id in store.queues(topic):
            last = store.get_entries(topic, queue_id, store.get_max_offset(topic, queue_id) - 1, 1)
            if last and last[0][0] >= self._log_end_at_request:
                return False
        return True

    def _apply_groups(self, stored: Table) -> None:
        if self.groups.replace(stored):
            self.saver.save("groups")
            _log.info("copied %d groups from the master", len(self.groups.table))

    async def _synchronize_progress(self, address: str) -> None:
        offsets, delays, timer, end = await asyncio.to_thread(self._fetch_progress, address)
        if not self.offsets.table and address == self.master_address:
            self.offsets.replace(offsets)  # better than none: without offsets, groups may begin at a queue's end
        try:
            async with asyncio.timeout(self.period):
                await self.slave.reached(end)
        except TimeoutError:
            return  # the log is behind: the next round compares again
        if address != self.master_address:
            return
        self.offsets.replace(offsets)
        self._apply_unversioned("delays", delays)
        if timer:
            await asyncio.to_thread(self._timer.take_over, timer, address)

    def _fetch_progress(self, address: str) -> tuple[Table, Table, bytes, int]:
        """Fetch offsets, progress of delayed and of timed messages, and the end of the master's log after that."""
        offsets = _table(self._request(RequestCode.GET_ALL_CONSUMER_OFFSET, address))
        delays = _table(self._request(RequestCode.GET_ALL_DELAY_OFFSET, address))
        request = RemotingCommand.request(RequestCode.GET_TIMER_CHECK_POINT)
        timer = self._client.invoke(address, request, _TIMEOUT_S)  # refused by masters without a timer
        requested_at = self.environment.clock()
        state = _table(self._request(RequestCode.GET_BROKER_RUNTIME_INFO, address))
        self._compare_clocks(address, state["table"], requested_at)
        end = int(state["table"]["commitLogMaxOffset"])
        return offsets, delays, bytes(timer.body) if timer.code == ResponseCode.SUCCESS else b"", end

    def _compare_clocks(self, address: str, state: Table, requested_at: int) -> None:
        """Log when the clocks begin to differ, and when they agree again."""
        runtime = _RUNTIME.search(str(state.get("runtime")))
        if runtime is None or not str(state.get("bootTimestamp")).isdecimal():
            return
        days, hours, minutes, seconds = map(int, runtime.groups())
        theirs = int(state["bootTimestamp"]) + 1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds)
        ahead = (theirs - requested_at) / 1000
        differs = abs(ahead) > CLOCKS_DIFFER_SECONDS
        if differs and not self.clocks_differ:
            _log.warning(
                "The clock of the master at %s is %.0f s %s that of %s: if this slave is promoted, retention, delays "
                "and timestamps of messages shift by this difference. Synchronize the clocks.",
                address,
                abs(ahead),
                "ahead of" if ahead > 0 else "behind",
                self.slave.name,
            )
        elif self.clocks_differ and not differs:
            _log.warning("The clocks of the master at %s and of %s agree again.", address, self.slave.name)
        self.clocks_differ = differs

    def _apply_unversioned(self, name: str, stored: Table) -> None:
        """Replace a table that has no version, and save its file if it changed."""
        file = self.files[name]
        before = file.snapshot()
        file.load_value(stored)
        if file.snapshot() != before:
            self.saver.save(name)


def _table(response: RemotingCommand) -> Table:
    value = loads_tolerant(response.body) if response.body else {}
    if not isinstance(value, dict):
        raise ProtocolError("The master's response is not a JSON object.")
    return value
