"""Handle messages whose bodies cannot be decoded (``badRecords``), and count them.

=============  =========================================================================================
fail           an error with topic, queue, offset and reason
null           a row whose body columns are null
column         a row whose body columns are null, with the body in the column ``badRecordColumn``
drop           no row
deadLetter     no row; the message is sent to ``deadLetterTopic`` before Spark receives its batch, at least
               once, like all writes
=============  =========================================================================================

A dead letter has the body, tags, keys and properties of the message, and these properties:

==========================  =======================================================================================
ROCKET_ORIGIN_TOPIC,        position of the message
ROCKET_ORIGIN_BROKER,
ROCKET_ORIGIN_QUEUE,
ROCKET_ORIGIN_OFFSET
ROCKET_ORIGIN_MSG_ID        its ``msgId``
ROCKET_BAD_RECORD_REASON    the reason, in one short line
ROCKET_LEFT_OUT             names of properties that did not fit, the largest first
ROCKET_BODY_LENGTH          the length of the body, if the dead letter has only its first bytes
==========================  =======================================================================================

Every message must be able to become a dead letter, or it would stop its query again and again. Bytes that separate
properties are therefore replaced, properties that do not fit are omitted, and a body that the topic's brokers reject is
truncated. Bodies above RocketMQ's usual limit can only have been stored compressed, and are compressed again.

Belongs to one task; a log line at its end has the counts. Corresponds to Spark's parse modes, and to the DLQ topics of
consumer groups.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_rocket.datasource.bodies.decoding import one_line
from spark_rocket.datasource.options.bodies import BadRecords, BodySettings
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.errors import RecordError, RowError
from spark_rocket.model import (
    BAD_RECORD_BODY_LENGTH,
    BAD_RECORD_BROKER,
    BAD_RECORD_LEFT_OUT,
    BAD_RECORD_MSG_ID,
    BAD_RECORD_OFFSET,
    BAD_RECORD_PROPERTIES,
    BAD_RECORD_QUEUE,
    BAD_RECORD_REASON,
    BAD_RECORD_TOPIC,
    KEYS,
    TAGS,
    MessageQueue,
)
from spark_rocket.protocol.namespace import Namespace
from spark_rocket.protocol.record.properties import PROPERTIES_LIMIT

log = logging.getLogger("spark_rocket.datasource")

# Columns with the position of a message, and columns that its dead letter copies in addition to the body.
POSITION_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset")
COPIED_COLUMNS = ("tags", "keys", "properties", "msgId")

# Properties not copied from the message: they would make more than a plain message of it, or have their own columns.
_NOT_COPIED = frozenset(
    BAD_RECORD_PROPERTIES
    | {"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TRAN_MSG", "TAGS", "KEYS"}
    | {"UNIQ_KEY", "INNER_BATCH", "INNER_NUM", "REAL_TOPIC", "REAL_QID"}
)
_SEPARATORS = re.compile("[\x01\x02]")
_RESERVED_BYTES = 1024  # bytes for the dead letter's id, BAD_RECORD_LEFT_OUT and BAD_RECORD_BODY_LENGTH
_DEFAULT_MAX_BODY_BYTES = 4 * 1024 * 1024
_MAX_BODY_BYTES = 12 * 1024 * 1024
# Body lengths to try if the entire body is rejected.
_TRUNCATED_LENGTHS = (_MAX_BODY_BYTES - 64 * 1024, 1024 * 1024, 64 * 1024, 0)


def place(batch: pa.RecordBatch, index: int) -> str:
    """Format a message's position for messages."""
    topic, broker, queue, offset = (batch.column(column)[index].as_py() for column in POSITION_COLUMNS)
    return f"{MessageQueue(topic, broker, queue).name} at {offset}"


def send_dead_letters(batch: pa.RecordBatch, bad: dict[int, str], options: ReadOptions, topic: str) -> None:
    """Send the bad records of a batch, with the reasons, to ``topic``."""
    from spark_rocket.datasource.options.parse import internal_write
    from spark_rocket.datasource.write.task import send_rows

    indexes = sorted(bad)
    letters = _build_dead_letters(batch.take(pa.array(indexes)), [bad[index] for index in indexes], options.namespace)
    write = internal_write(
        name_server=options.name_server,
        topic=topic,
        producer_group="spark_rocket_dead_letters",
        max_message_size=_MAX_BODY_BYTES,
        send_batch_size=1000,
        send_batch_bytes=1 << 20,
        request_timeout_ms=options.request_timeout_ms,
        retry_timeout_ms=options.retry_timeout_ms,
        compression="zlib",
        compress_above=_DEFAULT_MAX_BODY_BYTES + 1,
        connection=options.connection,
    )
    try:
        # The position of the first one identifies the rows: a retry of the same dead letters uses the same ids.
        send_rows(iter([letters]), write, f"dead letters of {place(batch, indexes[0])}")
        return
    except RowError as error:
        log.warning("sending dead letters one by one, truncated if necessary: %s", error)
    for row, index in enumerate(indexes):
        letter = letters.take(pa.array([row]))
        length = len(letter.column("body")[0].as_py())
        lengths = [length, *(cut for cut in _TRUNCATED_LENGTHS if cut < length)]
        for most in lengths:
            try:
                send_rows(iter([_cut(letter, most)]), write, f"dead letter of {place(batch, index)}")
                break
            except RowError:
                if most == lengths[-1]:
                    raise


def _build_dead_letters(messages: pa.RecordBatch, reasons: list[str], namespace: Namespace) -> pa.RecordBatch:
    tags: list[str | None] = []
    keys: list[str | None] = []
    properties: list[list[tuple[str, str]]] = []
    for message, reason in zip(messages.select([*POSITION_COLUMNS, *COPIED_COLUMNS]).to_pylist(), reasons, strict=True):
        fixed = {
            BAD_RECORD_TOPIC: namespace.wrap(message["topic"]),
            BAD_RECORD_BROKER: message["brokerName"],
            BAD_RECORD_QUEUE: str(message["queueId"]),
            BAD_RECORD_OFFSET: str(message["queueOffset"]),
            BAD_RECORD_REASON: one_line(reason),
        }
        copied = {key: value for key, value in message["properties"] if key not in _NOT_COPIED}
        copied |= {TAGS: message["tags"], KEYS: message["keys"], BAD_RECORD_MSG_ID: message["msgId"]}
        copied, left_out = _fitting(
            {key: _SEPARATORS.sub("\ufffd", value) for key, value in copied.items() if value is not None},
            PROPERTIES_LIMIT - _RESERVED_BYTES - sum(map(_size, fixed.items())),
        )
        tags.append(copied.pop(TAGS, None))
        keys.append(copied.pop(KEYS, None))
        more = {BAD_RECORD_LEFT_OUT: one_line(", ".join(left_out))} if left_out else {}
        properties.append([*(copied | fixed | more).items()])
    return pa.RecordBatch.from_arrays(
        [
            messages.column("body"),
            pa.array(tags, pa.string()),
            pa.array(keys, pa.string()),
            pa.array(properties, pa.map_(pa.string(), pa.string())),
        ],
        names=["body", "tags", "keys", "properties"],
    )


def _size(pair: tuple[str, str]) -> int:
    return len(pair[0].encode()) + len(pair[1].encode()) + 2


def _fitting(pairs: dict[str, str], room: int) -> tuple[dict[str, str], list[str]]:
    """Return the pairs that fit, and the names of those that do not fit or have an empty name."""
    left_out: list[str] = [key for key in pairs if not key]
    used = sum(_size(pair) for pair in pairs.items() if pair[0])
    for pair in sorted(pairs.items(), key=_size, reverse=True):
        if used <= room:
            break
        if pair[0]:
            left_out.append(pair[0])
            used -= _size(pair)
    gone = set(left_out)
    return {key: value for key, value in pairs.items() if key not in gone}, left_out


def _cut(letter: pa.RecordBatch, most: int) -> pa.RecordBatch:
    """Return a dead letter with at most ``most`` bytes of its body."""
    body, properties = letter.column("body")[0].as_py(), letter.column("properties")[0].as_py()
    if len(body) > most:
        properties = [*properties, (BAD_RECORD_BODY_LENGTH, str(len(body)))]
    columns = dict(zip(letter.schema.names, letter.columns, strict=True))
    columns["body"] = pa.array([body[:most]], letter.column("body").type)
    columns["properties"] = pa.array([properties], letter.column("properties").type)
    return pa.RecordBatch.from_pydict(columns, schema=letter.schema)


class BadRecordCounter:
    """Applies the policy to each batch and counts bad records."""

    def __init__(self, options: ReadOptions, settings: BodySettings) -> None:
        self._options = options
        self._settings = settings
        self._messages = self._bad = 0
        self._first = self._last = ""

    def needed(self) -> tuple[str, ...]:
        """Return the message columns that the policy requires."""
        is_dead_letter = self._settings.bad_records is BadRecords.DEAD_LETTER
        return (*POSITION_COLUMNS, *COPIED_COLUMNS) if is_dead_letter else POSITION_COLUMNS

    def take(self, batch: pa.RecordBatch, bad: dict[int, str]) -> Sequence[int]:
        """Apply the policy to a batch's bad records; return the indexes that get no row."""
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
                f"message {place(batch, indexes[0])} cannot be decoded as {self._settings.format.value}: "
                f"{bad[indexes[0]]}.",
                remedy="To continue past such messages, set badRecords to null, column, drop or deadLetter; see "
                "`rocket help typed-rows`.",
            )
        if policy is BadRecords.DEAD_LETTER:
            assert self._settings.dead_letter_topic is not None
            send_dead_letters(batch, bad, self._options, self._settings.dead_letter_topic)
        return indexes if policy in (BadRecords.DROP, BadRecords.DEAD_LETTER) else ()

    def report(self) -> None:
        """Log the counts at the end of the task."""
        if self._bad:
            letters = self._options.namespace.unwrap(self._settings.dead_letter_topic or "")
            what = {
                BadRecords.FAIL: "fail the task",
                BadRecords.DROP: "were dropped",
                BadRecords.DEAD_LETTER: f"were sent to {letters}",
            }.get(self._settings.bad_records, "have no values")
            log.warning(
                "%d of %d messages could not be decoded as %s and %s (badRecords=%s): first %s, last %s",
                self._bad,
                self._messages,
                self._settings.format.value,
                what,
                self._settings.bad_records.value,
                self._first,
                self._last,
            )


def row_mask(count: int, dropped: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of all rows except the dropped ones."""
    mask = np.ones(count, np.bool_)
    mask[list(dropped)] = False
    return mask
