"""Saves the broker's state in ``config/*.json`` and the timer's files, periodically and at the stop.

After a power failure, no file may be ahead of the store: offsets beyond a check point are written only once the check
point is on disk. The same applies to the progress of deliveries and transactions. Deliveries that cannot be flushed are
repeated. A failed write of a file is retried by a timer (:class:`ConfigSaver`); until it succeeds, requests that change
the file's content get the problem as their response.

Thread-safety: used on the event loop only; callbacks of the flush thread return to it by ``call_soon_threadsafe``.
After a crash: offsets may be a few seconds old, and no file is ahead of the log.
Corresponds to the scheduled persist tasks of org.apache.rocketmq.broker.BrokerController.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.pop.consumer_order_info_manager import ConsumerOrderInfoManager
from spark_rocket.broker.pop.pop_service import PopService
from spark_rocket.broker.state.config_files import ConfigFile, ConfigSaver
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.message_request_mode_manager import MessageRequestModeManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.transactions.transactional_message_service import TransactionalMessageService, TransactionMark
from spark_rocket.store.delay.schedule_message_service import OffsetMark, ScheduleMessageService
from spark_rocket.store.delay.timer_store import TimerMessageStore
from spark_rocket.store.message_store import MessageStore

_log = logging.getLogger(__name__)


def saved_time(environment: BrokerEnvironment) -> int:
    """The time of a snapshot of the offsets, taken before it.

    0 on a slave: its offsets are as old as its master's last response, by the master's clock.
    """
    return 0 if environment.config.is_slave else environment.clock()


def state_files(
    environment: BrokerEnvironment,
    *,
    topics: TopicConfigManager,
    groups: SubscriptionGroupManager,
    offsets: ConsumerOffsetManager,
    modes: MessageRequestModeManager,
    schedule: ScheduleMessageService,
    order_info: ConsumerOrderInfoManager,
) -> dict[str, ConfigFile]:
    """The files by their content."""
    directory = environment.config.store.store_path / "config"

    def offsets_text() -> dict[str, Any]:
        return offsets.file_snapshot(saved_time(environment))

    return {
        "topics": ConfigFile(directory / "topics.json", topics.text, topics.load),
        "offsets": ConfigFile(directory / "consumerOffset.json", offsets_text, offsets.load),
        "groups": ConfigFile(directory / "subscriptionGroup.json", groups.text, groups.load),
        "delays": ConfigFile(directory / "delayOffset.json", schedule.snapshot, schedule.load),
        "order": ConfigFile(directory / "consumerOrderInfo.json", order_info.snapshot, order_info.load),
        "modes": ConfigFile(directory / "messageRequestMode.json", modes.snapshot, modes.load),
    }


class StateSaver(ConfigSaver):
    """Saves one broker's state."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        store: MessageStore,
        files: Mapping[str, ConfigFile],
        *,
        offsets: ConsumerOffsetManager,
        order_info: ConsumerOrderInfoManager,
        schedule_message_service: ScheduleMessageService,
        transactions: TransactionalMessageService | None,
        timer_store: TimerMessageStore | None,
        pop_service: PopService | None,
    ) -> None:
        """The last three are None on a slave, which only copies its master's progress."""
        super().__init__(environment.loop, files)
        self._environment = environment
        self._tasks = environment.tasks
        self._store = store
        self._offsets = offsets
        self._order_info = order_info
        self._schedule = schedule_message_service
        self._transactions = transactions
        self._timer_store = timer_store
        self._pop_service = pop_service
        self._saving_offsets = asyncio.Lock()
        self._unflushed = ""
        self._flushing_timer = False

    # --- for requests -------------------------------------------------------------------------------------------

    def problem(self, name: str) -> str:
        """The reason why a file cannot be written at present; empty if it can."""
        unflushed = self._unflushed if name == "offsets" else ""
        return unflushed or super().problem(name)

    async def saved(self, *names: str) -> str:
        """Wait until these files contain the changes made so far; returns the first problem, or an empty string."""
        problems = [await (self._offsets_saved() if name == "offsets" else self.file_saved(name)) for name in names]
        return next(filter(None, problems), "")

    # --- periodically -------------------------------------------------------------------------------------------

    def save_offsets(self) -> None:
        if self._transactions is not None:
            settled = self._transactions.mark()
            if settled is not None:
                self._tasks.spawn(self._confirm_transactions(self._transactions, settled))
        if self._offsets.dirty:

            async def save() -> None:
                await self._offsets_saved()

            self._tasks.spawn(save())

    async def _confirm_transactions(self, transactions: TransactionalMessageService, mark: TransactionMark) -> None:
        if await self._flushed(mark.physical_offset):  # otherwise the next save retries
            transactions.confirm(mark)

    async def _offsets_saved(self) -> str:
        """Save the present offsets; returns the problem if that failed. Sequential: no save replaces newer offsets."""
        offsets = self._offsets
        async with self._saving_offsets:
            if not offsets.dirty:
                return await self.file_saved("offsets")
            offsets.dirty = False
            now = saved_time(self._environment)  # all pops until now are in the snapshot, and some later ones
            snapshot = {**await offsets.snapshot_in_steps(), "savedAt": now}
            position = 0 if self._pop_service is None else self._pop_service.log.position
            if not await self._flushed(position):  # check points must be on disk before the offsets beyond them
                offsets.dirty = True
                name = self._files["offsets"].path.name
                self._unflushed = f"{name} could not be written: the store could not be flushed"
                return self._unflushed
            self._unflushed = ""
            return await self.save("offsets", snapshot)

    async def _flushed(self, position: int) -> bool:
        """Wait until the log is flushed up to a position; False if the flush failed."""
        store, loop = self._store, self._loop
        if position <= store.flushed_where:
            return True
        flushed: asyncio.Future[bool] = loop.create_future()

        def note(ok: bool) -> None:
            """Called by the flush thread."""
            with suppress(RuntimeError):  # the loop has closed: the last state was saved at the stop
                loop.call_soon_threadsafe(flushed.set_result, ok)

        store.when_flushed(position, note)
        return await flushed

    def save_order(self) -> None:
        """Save the order info; called often, since after a kill only the file shows which queues are blocked."""
        if self._order_info.dirty:
            self._order_info.dirty = False
            self.save_in_time("order")

    def save_delay_offsets(self) -> None:
        """Save the delivered offsets, once the delivered messages are on disk."""
        mark = self._schedule.mark()
        if mark is not None:
            self._tasks.spawn(self._confirm_deliveries(mark))

    async def _confirm_deliveries(self, mark: OffsetMark) -> None:
        if await self._flushed(mark.physical_offset):
            self._schedule.confirm(mark, self._environment.clock())
            self.save("delays")

    def flush_timer(self) -> None:
        if self._timer_store is not None and self._timer_store.dirty and not self._flushing_timer:
            self._flushing_timer = True
            self._tasks.spawn(self._flush_timer_in_thread(self._timer_store))

    async def _flush_timer_in_thread(self, timer: TimerMessageStore) -> None:
        try:
            await asyncio.to_thread(timer.flush)
        except OSError as error:
            _log.error("The timer's progress could not be flushed: %s", error)
        finally:
            self._flushing_timer = False

    # --- at the stop --------------------------------------------------------------------------------------------

    def save_all(self) -> None:
        """Write everything to disk. Failures are logged, and do not prevent saving the other files."""
        flushed = self._flush_all()
        self.close()
        for name, file in self._files.items():
            if flushed or name != "offsets":
                try:
                    file.save()
                except OSError as error:
                    _log.error("%s could not be written at stop: %s", file.path, error)

    def _flush_all(self) -> bool:
        """Flush deliveries, settled transactions and check points, then confirm them; False if the flush failed."""
        mark = self._schedule.mark()
        settled = None if self._transactions is None else self._transactions.mark()
        popped = self._pop_service is not None and self._pop_service.log.position > self._store.flushed_where
        if mark is not None or settled is not None or popped:
            try:
                self._store.flush()
            except OSError as error:
                _log.error("The last delayed messages will be delivered again: the store was not flushed: %s", error)
                return False
        if mark is not None:
            self._schedule.confirm(mark, self._environment.clock())
        if settled is not None and self._transactions is not None:
            self._transactions.confirm(settled)
        return True
