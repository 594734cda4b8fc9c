"""Saving what the broker keeps in ``config/*.json`` and in the timer's files, from time to time and at the stop.

What a file says must be true of the store that a power failure leaves: offsets that passed a check point wait until
that is on disk, and so do what was delivered and which transactions are settled. What cannot be flushed is delivered
again. A file that cannot be written is tried again by a timer (:class:`ConfigSaver`), and requests that change what is
in it are answered with the problem until then.

Thread-safety: the event loop's; what the flush thread calls comes back to it by ``call_soon_threadsafe``.
After a crash: offsets may be a few seconds old, nothing is ahead of the log. Corresponds to the scheduled persist tasks
of org.apache.rocketmq.broker.BrokerController.
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
    """Saves one broker's state; files go by the names that they have in ``BrokerParts.files``."""

    def __init__(self, service: BrokerParts) -> None:
        super().__init__(service.loop, service.files)
        self._service = service
        self._saving_offsets = asyncio.Lock()
        self._unflushed = ""
        self._flushing_timer = False

    # --- for requests -------------------------------------------------------------------------------------------

    def problem(self, name: str) -> str:
        """Why a file is not written at present; empty if it is."""
        unflushed = self._unflushed if name == "offsets" else ""
        return unflushed or super().problem(name)

    async def saved(self, *names: str) -> str:
        """Wait until these files have the changes made so far; the first one's problem if that failed, else empty."""
        problems = [await (self._offsets_saved() if name == "offsets" else self.file_saved(name)) for name in names]
        return next(filter(None, problems), "")

    # --- from time to time --------------------------------------------------------------------------------------

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
        if await self._flushed(mark.physical_offset):  # else it is tried again the next time
            self._service.transactions.confirm(mark)

    async def _offsets_saved(self) -> str:
        """Save the offsets of now; the problem if that failed. One at a time, so that none replaces newer ones."""
        service, offsets = self._service, self._service.offsets
        async with self._saving_offsets:
            if not offsets.dirty:
                return await self.file_saved("offsets")
            offsets.dirty = False
            snapshot = service.offsets_snapshot()
            position = 0 if service.pop is None else service.pop.log.position
            if not await self._flushed(position):  # no offset may be on disk before the check points that it passed
                offsets.dirty = True
                name = self._files["offsets"].path.name
                self._unflushed = f"{name} could not be written: the store could not be flushed"
                return self._unflushed
            self._unflushed = ""
            return await self.save("offsets", snapshot)

    async def _flushed(self, position: int) -> bool:
        """Wait until the log is on disk up to a position; False if it could not be flushed."""
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
        """Soon, since after a kill only the file says that a queue is blocked."""
        service = self._service
        if service.order.dirty:
            service.order.dirty = False
            self.save("order")

    def save_delay_offsets(self) -> None:
        """Remember what was delivered, once it is on disk."""
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
            service.spawn(self._flush_timer_aside(service.timer))

    async def _flush_timer_aside(self, timer: TimerMessageStore) -> None:
        try:
            await asyncio.to_thread(timer.flush)
        except OSError as error:
            _log.error("The timer's progress could not be put on disk: %s", error)
        finally:
            self._flushing_timer = False

    # --- at the stop --------------------------------------------------------------------------------------------

    def save_all(self) -> None:
        """Bring everything to disk; what cannot be written is logged, for the others are worth saving all the same."""
        flushed = self._flush_all()
        self.close()
        for name, file in self._files.items():
            if flushed or name != "offsets":
                try:
                    file.save()
                except OSError as error:
                    _log.error("%s could not be written at stop: %s", file.path, error)

    def _flush_all(self) -> bool:
        """Put what was delivered, settled or popped on disk, so that it may be remembered as that; False if not."""
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
        """How far transactions are. A slave has what its master says: it sees half messages come, and settles none."""
        return None if self._service.config.is_slave else self._service.transactions.mark()
