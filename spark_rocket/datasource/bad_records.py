"""What becomes of messages whose bodies cannot be decoded (``badRecords``), and how many there were.

=============  =========================================================================================
fail           an error that names topic, queue, offset and reason
null           a row whose body columns are null
column         the same, with the body in the column ``badRecordColumn``
drop           no row
deadLetter     no row; the message is sent to ``deadLetterTopic`` before Spark is given its batch: its body and its
               properties, and beside them where it was and why it is there. At least once, as all writing
=============  =========================================================================================

Belongs to one task; a log line at its end says how many. Corresponds to Spark's parse modes, and to DLQs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_rocket.datasource.body_formats.settings import BadRecords, BodySettings
from spark_rocket.datasource.offsets import name
from spark_rocket.datasource.options import ReadOptions, WriteOptions
from spark_rocket.errors import RecordError
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.datasource")

# Properties of a dead letter.
ORIGIN_TOPIC, ORIGIN_BROKER = "ROCKET_ORIGIN_TOPIC", "ROCKET_ORIGIN_BROKER"
ORIGIN_QUEUE, ORIGIN_OFFSET = "ROCKET_ORIGIN_QUEUE", "ROCKET_ORIGIN_OFFSET"
ORIGIN_ID, REASON = "ROCKET_ORIGIN_MSG_ID", "ROCKET_BAD_RECORD_REASON"
# What would make it more than a plain message, or has columns of its own.
_NOT_KEPT = frozenset(
    {"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TRAN_MSG", "TAGS", "KEYS"}
    | {"UNIQ_KEY", "INNER_BATCH", "INNER_NUM", "REAL_TOPIC", "REAL_QID"}
)
_LARGEST = 12 * 1024 * 1024
# Columns of the message that say where it is, and those that a dead letter takes along.
PLACE = ("topic", "brokerName", "queueId", "queueOffset")
LETTER = ("tags", "keys", "properties", "msgId")


class BadRecordCounter:
    """The policy, applied batch by batch."""

    def __init__(self, options: ReadOptions, settings: BodySettings) -> None:
        self._options = options
        self._settings = settings
        self._messages = self._bad = 0
        self._first = self._last = ""

    def needed(self) -> tuple[str, ...]:
        """The message's columns that this looks at."""
        return (*PLACE, *LETTER) if self._settings.bad_records is BadRecords.DEAD_LETTER else PLACE

    def take(self, batch: pa.RecordBatch, bad: dict[int, str]) -> Sequence[int]:
        """Do with a batch's bad records what is to be done; those that get no row are returned."""
        self._messages += batch.num_rows
        if not bad:
            return ()
        self._bad += len(bad)
        indexes = sorted(bad)
        self._first = self._first or _place(batch, indexes[0])
        self._last = _place(batch, indexes[-1])
        policy = self._settings.bad_records
        if policy is BadRecords.FAIL:
            raise RecordError(
                f"the message {_place(batch, indexes[0])} cannot be decoded as {self._settings.format.value}: "
                f"{bad[indexes[0]]}.",
                remedy="badRecords=null, column, drop or deadLetter go on past such messages; see docs/datasource.md.",
            )
        if policy is BadRecords.DEAD_LETTER:
            self._send(batch, indexes, bad)
        return indexes if policy in (BadRecords.DROP, BadRecords.DEAD_LETTER) else ()

    def report(self) -> None:
        """Say how many there were, at the end of the task."""
        if self._bad:
            what = {
                BadRecords.DROP: "were dropped",
                BadRecords.DEAD_LETTER: f"were sent to {self._settings.dead_letter_topic}",
            }.get(self._settings.bad_records, "have no values")
            log.warning(
                "%d of %d messages could not be decoded as %s and %s (badRecords=%s): the first is %s, the last %s",
                self._bad,
                self._messages,
                self._settings.format.value,
                what,
                self._settings.bad_records.value,
                self._first,
                self._last,
            )

    def _send(self, batch: pa.RecordBatch, indexes: list[int], bad: dict[int, str]) -> None:
        from spark_rocket.datasource.writer import write_rows

        letters = batch.take(pa.array(indexes))
        places = letters.select(list(PLACE)).to_pylist()
        properties = []
        for index, place, kept, msg_id in zip(
            indexes, places, letters.column("properties"), letters.column("msgId").to_pylist(), strict=True
        ):
            origin = {
                ORIGIN_TOPIC: place["topic"],
                ORIGIN_BROKER: place["brokerName"],
                ORIGIN_QUEUE: str(place["queueId"]),
                ORIGIN_OFFSET: str(place["queueOffset"]),
                ORIGIN_ID: msg_id,
                REASON: bad[index],
            }
            old = [(key, value) for key, value in kept.as_py() if key not in _NOT_KEPT and key not in origin]
            properties.append([*old, *origin.items()])
        frame = pa.RecordBatch.from_arrays(
            [
                letters.column("body"),
                letters.column("tags"),
                letters.column("keys"),
                pa.array(properties, pa.map_(pa.string(), pa.string())),
            ],
            names=["body", "tags", "keys", "properties"],
        )
        options = self._options
        assert self._settings.dead_letter_topic is not None
        write_rows(
            iter([frame]),
            WriteOptions(
                name_server=options.name_server,
                topic=self._settings.dead_letter_topic,
                producer_group="spark_rocket_dead_letters",
                write_id=None,
                max_message_size=_LARGEST,
                send_batch_size=1000,
                send_batch_bytes=1 << 20,
                max_requests_in_flight=4,
                request_timeout_ms=options.request_timeout_ms,
                retry_timeout_ms=options.retry_timeout_ms,
            ),
            # Where the first one is names the rows: the same letters again get the same ids.
            f"dead letters of {_place(batch, indexes[0])}",
            "",
        )


def _place(batch: pa.RecordBatch, index: int) -> str:
    topic, broker, queue, offset = (batch.column(column)[index].as_py() for column in PLACE)
    return f"{name(MessageQueue(topic, broker, queue))} at {offset}"


def kept_rows(count: int, dropped: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """A mask of all but the dropped."""
    mask = np.ones(count, np.bool_)
    mask[list(dropped)] = False
    return mask
