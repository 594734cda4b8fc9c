"""What becomes of messages whose bodies cannot be decoded (``badRecords``), and how many there were.

=============  =========================================================================================
fail           an error that names topic, queue, offset and reason
null           a row whose body columns are null
column         the same, with the body in the column ``badRecordColumn``
drop           no row
deadLetter     no row; the message is sent to ``deadLetterTopic`` before Spark is given its batch
               (``dead_letters.py``). At least once, as all writing
=============  =========================================================================================

Belongs to one task; a log line at its end says how many. Corresponds to Spark's parse modes, and to DLQs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_rocket.datasource.bodies.settings import BadRecords, BodySettings
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.read.dead_letters import LETTER, PLACE, place, send_letters
from spark_rocket.errors import RecordError

log = logging.getLogger("spark_rocket.datasource")


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
        self._first = self._first or place(batch, indexes[0])
        self._last = place(batch, indexes[-1])
        policy = self._settings.bad_records
        if policy is BadRecords.FAIL:
            raise RecordError(
                f"the message {place(batch, indexes[0])} cannot be decoded as {self._settings.format.value}: "
                f"{bad[indexes[0]]}.",
                remedy="badRecords=null, column, drop or deadLetter go on past such messages; see docs/datasource.md.",
            )
        if policy is BadRecords.DEAD_LETTER:
            assert self._settings.dead_letter_topic is not None
            send_letters(batch, bad, self._options, self._settings.dead_letter_topic)
        return indexes if policy in (BadRecords.DROP, BadRecords.DEAD_LETTER) else ()

    def report(self) -> None:
        """Say how many there were, at the end of the task."""
        if self._bad:
            what = {
                BadRecords.FAIL: "fail the task",
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


def kept_rows(count: int, dropped: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """A mask of all but the dropped."""
    mask = np.ones(count, np.bool_)
    mask[list(dropped)] = False
    return mask
