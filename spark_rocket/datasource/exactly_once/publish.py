"""Publishing a decided epoch: staged blocks become messages of their target queues, each row once.

Lanes (``lanes.py``) are published in parallel, the blocks of a lane one after another; the next staged block is pulled
while one is sent. So the memory is that of two blocks for each of ``LANES`` threads.

What happens to a send that fails:

===============================  =======================================================================================
refused as too large             its rows are sent in halves, down to single rows, else EXACTLY_ONCE.TARGET_REFUSES
refused for another reason       retried after a pause, within ``retryTimeout``
no answer, or SYSTEM_ERROR       it may be stored: reach the broker, wait for ``gracePeriod``, read the lane back, and
                                 continue after the stored rows. Never a blind retry
stored, but not yet durable      a later SEND_OK of that broker confirms it (``Brokers.confirm``), and the lane is read
                                 back
queue or topic deleted           EXACTLY_ONCE.TARGET_GONE
===============================  =======================================================================================

Before each send ``fence`` checks that this publisher still owns the epoch.

A ``Publisher`` belongs to one ``commit``. After a crash another one reads back and continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.lanes import BlockPart, Lane, is_body_of, lanes_of
from spark_rocket.datasource.exactly_once.manifest import Epoch, Manifest, StagedBlock
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers, Timing, is_refused, mark_retriable
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.write.row_encoder import Block
from spark_rocket.errors import (
    DataSourceError,
    MessageTooLargeError,
    QueueNotFoundError,
    RocketError,
    TopicNotFoundError,
)
from spark_rocket.model import MessageQueue, SendStatus
from spark_rocket.protocol.wire.codes import ResponseCode

LANES = 8
# Messages before a recorded end that are read, too: a promoted slave may have had a shorter queue.
_READ_BACK_MESSAGES = 10_000

log = logging.getLogger("spark_rocket.datasource")


class Publisher:
    """Publishes one epoch."""

    def __init__(
        self,
        brokers: Brokers,
        epoch: Epoch,
        manifest: Manifest,
        staging: str,
        timing: Timing,
        fence: Callable[[], None],
    ) -> None:
        self._brokers = brokers
        self._epoch = epoch
        self._manifest = manifest
        self._staging = staging
        self._timing = timing
        self._fence = fence
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._unconfirmed: set[str] = set()
        self.recovered: list[Lane] = []
        """Lanes with a request whose outcome was unknown."""
        self.lanes = lanes_of(manifest.blocks, epoch)
        self.published = 0

    @property
    def duplicates(self) -> int:
        return sum(lane.duplicates for lane in self.lanes)

    # --- sending ----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Send the missing rows until all rows are durable."""
        while True:
            self._each([lane for lane in self.lanes if not lane.is_complete], self._publish_lane)
            if not self._unconfirmed:
                return
            brokers, self._unconfirmed = self._unconfirmed, set()
            for broker in sorted(brokers):
                self._brokers.confirm(broker, self._staging, self._timing)
            self.read_back([lane for lane in self.lanes if lane.queue.broker_name in brokers])

    def _each(self, lanes: Sequence[Lane], work: Callable[[Lane], None]) -> None:
        """Work on lanes in parallel. The first failure stops all."""

        def one(lane: Lane) -> None:
            if self._failure is None:
                try:
                    work(lane)
                except BaseException as error:
                    self._failure = self._failure or error

        if len(lanes) < 2:
            for lane in lanes:
                work(lane)
            return
        with ThreadPoolExecutor(min(LANES, len(lanes)), "rocket-publish") as pool:
            pool.map(one, lanes)
        if self._failure is not None:
            raise self._failure

    def _publish_lane(self, lane: Lane) -> None:
        deadline = self._timing.deadline()
        while not lane.is_complete:
            try:
                for block, body in self._bodies(lane):
                    for piece in lane.pieces(block, body):
                        self._send(lane, block, piece)
                        deadline.reset()
            except DataSourceError:
                raise
            except RocketError as error:
                self._recover(lane, error, deadline)

    def _bodies(self, lane: Lane) -> Iterator[tuple[StagedBlock, memoryview]]:
        """The staged bodies from the lane's next block on; each is asked for while the one before is sent."""
        blocks = lane.blocks[lane.next_block :]
        coming = self._staged_later(blocks[0])
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            asked = [coming]
            body = self._timing.deadline().call(
                lambda block=block, asked=asked: (asked.pop() if asked else self._staged_later(block))(),  # type: ignore[misc]
                f"to read the staged blocks of {lane.queue.name}",
            )
            if following is not None:
                coming = self._staged_later(following)
            if not is_body_of(block, body, self._epoch):
                assert block.staged is not None
                raise condition("DATA_LOSS.STAGED_BLOCK", queue=block.staged.name, offset=block.offset)
            yield block, body

    def _staged_later(self, block: StagedBlock) -> Callable[[], memoryview]:
        assert block.staged is not None
        return self._brokers.staged_later(block.staged, block.offset)

    def _send(self, lane: Lane, block: StagedBlock, piece: BlockPart) -> None:
        with self._lock:
            if self._failure is not None:
                raise DataSourceError("another queue of the epoch could not be published.")
            self._fence()
        queue = lane.queue
        rows = Block(queue.topic, queue, piece.body, piece.rows, block.first_row, block.sys_flag, block.is_delayed)
        try:
            result = self._brokers.publish(rows, queue)
        except MessageTooLargeError:
            lane.limit = len(piece.body) // 2 if piece.rows > 1 else 0
            raise
        lane.sent(piece)
        with self._lock:
            self.published += piece.rows
            if result.status is not SendStatus.SEND_OK:
                self._unconfirmed.add(queue.broker_name)

    def _recover(self, lane: Lane, error: RocketError, deadline: RetryDeadline) -> None:
        """Handle a failed send: wait, and read back if its outcome is unknown."""
        queue = lane.queue
        if isinstance(error, MessageTooLargeError) and lane.limit:
            log.info("%s refused a block as too large: continuing with up to %d bytes", queue.name, lane.limit)
            return
        if isinstance(error, TopicNotFoundError | QueueNotFoundError):
            if self._brokers.lacks(queue):
                raise condition("EXACTLY_ONCE.TARGET_GONE", queue=queue.name, problem=error.message) from error
            error.retriable = True
        if error.response_code == ResponseCode.MESSAGE_ILLEGAL or isinstance(error, MessageTooLargeError):
            raise condition("EXACTLY_ONCE.TARGET_REFUSES", queue=queue.name, problem=error.message) from error
        deadline.wait(mark_retriable(error), f"to publish to {queue.name}")
        if not is_refused(error):
            self.settle([lane])
            self.read_back([lane])
            if lane not in self.recovered:
                self.recovered.append(lane)

    # --- reading back -----------------------------------------------------------------------------------------

    def check(self, lanes: Sequence[Lane]) -> None:
        """Read these lanes back before DONE, and publish rows that a broker has lost again."""
        self.read_back(lanes)
        while missing := [lane for lane in lanes if not lane.is_complete]:
            self.settle(missing)  # the broker may not show them yet
            self.read_back(missing)
            self.publish()

    def settle(self, lanes: Sequence[Lane]) -> None:
        """Wait until earlier sends are stored and readable, or will never be stored.

        Reach the brokers, wait for the grace period, and confirm a message that is sent after it.
        """
        deadline = self._timing.deadline()
        brokers = {lane.queue.broker_name: lane.queue for lane in lanes}
        for broker, queue in brokers.items():
            deadline.call(lambda queue=queue: self._ends(queue), f"to reach {broker}")  # type: ignore[misc]
        self._timing.sleep(self._timing.grace)
        for broker in sorted(brokers):
            self._brokers.confirm(broker, self._staging, self._timing)

    def read_back(self, lanes: Sequence[Lane]) -> None:
        """Find the stored rows of these lanes."""
        self._each(lanes, self._read_back)

    def _read_back(self, lane: Lane) -> None:
        lane.forget()
        for queue in lane.sources:
            recorded = self._manifest.ends.get(queue, 0)
            deadline = self._timing.deadline()
            start, end = deadline.call(
                lambda queue=queue: self._ends(queue),  # type: ignore[misc]
                f"to read back {queue.name}",
            )
            if recorded < start or end < recorded - _READ_BACK_MESSAGES:
                raise condition(
                    "EXACTLY_ONCE.READ_BACK_GONE", queue=queue.name, recorded=recorded, start=start, end=end
                )
            middle = min(recorded, end)
            for low, high in ((max(start, middle - _READ_BACK_MESSAGES), middle), (middle, end)):
                seen = 0
                for ids in self._brokers.ids(queue, low, high):
                    lane.feed(queue, ids)
                    seen += len(ids)
            if seen < end - middle:  # a missing message may be a row of the epoch
                missing = end - middle - seen
                raise condition(
                    "EXACTLY_ONCE.READ_BACK_GAP", queue=queue.name, count=missing, first=middle, last=end - 1
                )
        lane.finish_read()

    def _ends(self, queue: MessageQueue) -> tuple[int, int]:
        """The start and end of a queue. A topic without messages may not exist: the first send creates it."""
        try:
            return self._brokers.start(queue), self._brokers.end(queue)
        except TopicNotFoundError as error:
            if self._manifest.ends.get(queue, 0) == 0 and self._brokers.lacks(queue):
                return 0, 0
            error.retriable = True
            raise

    def check_staged(self) -> None:
        """Raise DATA_LOSS.STAGED_BLOCK if a needed block is gone, before more rows are published."""
        needed = [block for lane in self.lanes for block in lane.blocks[lane.next_block :]]
        first: dict[MessageQueue, int] = {}
        for block in needed:
            assert block.staged is not None
            first[block.staged] = min(block.offset, first.get(block.staged, block.offset))
        deadline = self._timing.deadline()
        for queue, offset in first.items():
            deadline.call(
                lambda queue=queue, offset=offset: self._brokers.staged_later(queue, offset)(),  # type: ignore[misc]
                f"to read the staged blocks in {queue.name}",
            )
