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
from contextlib import suppress

from spark_rocket.broker.parts import BrokerParts
from spark_rocket.broker.state.config_files import ConfigSaver
from spark_rocket.broker.transactions.service import TransactionMark
from spark_rocket.store.delay.delay_levels import OffsetMark
from spark_rocket.store.delay.timer_store import TimerMessageStore

_log = logging.getLogger(__name__)


class StateSaver(ConfigSaver):
    """Saves one broker's state; the names of files are the keys of ``BrokerParts.files``."""

    def __init__(self, service: BrokerParts) -> None:
        super().__init__(service.loop, service.files)
        self._service = service
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
        service = self._service
        settled = self._settled()
        if settled is not None:
            service.spawn(self._confirm_transactions(settled))
        if service.offsets.dirty:

            async def save() -> None:
                await self._offsets_saved()

            service.spawn(save())

    async def _confirm_transactions(self, mark: TransactionMark) -> None:
        if await self._flushed(mark.physical_offset):  # otherwise the next save retries
            self._service.transactions.confirm(mark)

    async def _offsets_saved(self) -> str:
        """Save the present offsets; returns the problem if that failed. Sequential: no save replaces newer offsets."""
        service, offsets = self._service, self._service.offsets
        async with self._saving_offsets:
            if not offsets.dirty:
                return await self.file_saved("offsets")
            offsets.dirty = False
            now = service.saved_time()  # all pops until now are in the snapshot, and some later ones
            snapshot = {**await offsets.snapshot_in_steps(), "savedAt": now}
            position = 0 if service.pop is None else service.pop.log.position
            if not await self._flushed(position):  # check points must be on disk before the offsets beyond them
                offsets.dirty = True
                name = self._files["offsets"].path.name
                self._unflushed = f"{name} could not be written: the store could not be flushed"
                return self._unflushed
            self._unflushed = ""
            return await self.save("offsets", snapshot)

    async def _flushed(self, position: int) -> bool:
        """Wait until the log is flushed up to a position; False if the flush failed."""
        store, loop = self._service.store, self._service.loop
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
        service = self._service
        if service.order.dirty:
            service.order.dirty = False
            self.save("order")

    def save_delay_offsets(self) -> None:
        """Save the delivered offsets, once the delivered messages are on disk."""
        mark = self._service.schedule.mark()
        if mark is not None:
            self._service.spawn(self._confirm_deliveries(mark))

    async def _confirm_deliveries(self, mark: OffsetMark) -> None:
        service = self._service
        if await self._flushed(mark.physical_offset):
            service.schedule.confirm(mark, service.clock())
            self.save("delays")

    def flush_timer(self) -> None:
        service = self._service
        if service.timer is not None and service.timer.dirty and not self._flushing_timer:
            self._flushing_timer = True
            service.spawn(self._flush_timer_in_thread(service.timer))

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
        service = self._service
        mark, settled = service.schedule.mark(), self._settled()
        popped = service.pop is not None and service.pop.log.position > service.store.flushed_where
        if mark is not None or settled is not None or popped:
            try:
                service.store.flush()
            except OSError as error:
                _log.error("The last delayed messages will be delivered again: the store was not flushed: %s", error)
                return False
        if mark is not None:
            service.schedule.confirm(mark, service.clock())
        if settled is not None:
            service.transactions.confirm(settled)
        return True

    def _settled(self) -> TransactionMark | None:
        """The progress of transactions; None on a slave, which only copies its master's progress."""
        return None if self._service.config.is_slave else self._service.transactions.mark()
