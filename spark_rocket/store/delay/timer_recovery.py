"""What the timer's files say at a start: where the timer log ends, and the wheel that follows from it.

The wheel is always made anew from the timer log, so that it does not matter how the last owner stopped. The timer log
is believed as far as the checkpoint says that it was flushed; behind that each unit must name a message of the timer's
queue, which is how a unit is told from what a power failure left of one. A unit that is none where the log is believed,
or a log that is shorter than that, is damage: the timer log is then made anew from the queue. So is one that begins
behind that: it was being made anew when it was left. Behind what is believed the read time may have been later than the
one that is remembered: what then had room on the wheel may have none now, and is enqueued again.

Corresponds to TimerMessageStore.recover and recoverAndRevise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spark_rocket.store.delay.timer_log import MAGIC_DELETE, UNIT_SIZE, TimerLog, sound
from spark_rocket.store.delay.timer_wheel import SLOT_TYPE, Slots


class TimerLogDamageError(Exception):
    """The timer log is not what was flushed; says what is wrong, and where."""


def find_end(
    log: TimerLog, believed: int, max_physical_offset: int, wheel_end_ms: int, number_of: Callable[[int, int], int]
) -> tuple[int, int]:
    """Where the next unit goes, and the number of the queue's first message behind those of unbelieved units (or 0).

    ``number_of``: the number in the timer's queue of the message with an offset and size, −1 if there is none.
    Unbelieved units of messages that are not in the commit log, which a power failure has shortened, are left out, and
    all from the first that is not before ``wheel_end_ms``. So are the last ones if they name messages that units before
    them name: a stop that was not finished set them apart.
    """
    files = log.files
    if not files.files and believed % files.file_size == 0:
        return believed, 0  # made anew, and nothing waited
    if believed > files.end_offset:
        raise TimerLogDamageError(f"{files.directory} ends at {files.end_offset}, but was flushed up to {believed}")
    if believed < files.min_offset:
        raise TimerLogDamageError(f"{files.directory} begins at {files.min_offset}, but was flushed up to {believed}")
    end, next_offset, highest = files.min_offset, 0, -1
    for positions, units in log.blocks(files.min_offset):
        good = sound(positions, units)
        good &= units["offset_py"].astype(np.int64) + units["size_py"] <= max_physical_offset
        bad = np.flatnonzero(~good)
        count = int(bad[0]) if len(bad) else len(units)
        known = min(int(np.searchsorted(positions, believed)), count)
        if known:
            end = int(positions[known - 1]) + UNIT_SIZE
            highest = max(highest, int(units["offset_py"][:known].max()))
        for i in range(known, count):
            offset = int(units["offset_py"][i])
            number = number_of(offset, int(units["size_py"][i]))
            if number < 0 or int(units["write_time"][i]) + int(units["delay"][i]) >= wheel_end_ms:
                count = i
                break
            next_offset = max(next_offset, number + 1)
            if offset > highest:
                end, highest = int(positions[i]) + UNIT_SIZE, offset
        if count < len(units):
            place = int(positions[count])
            if place < believed:
                file = files.find(place)
                raise TimerLogDamageError(f"{file.path if file else files.directory} has no unit at {place}")
            break
    return end, next_offset


def build_slots(log: TimerLog, read_time_ms: int, precision_ms: int, count: int) -> Slots:
    """The wheel of what is in a timer log, from a time on. TimerLogDamageError if a chain is not whole."""
    slots = np.zeros(count, SLOT_TYPE)
    first_number = read_time_ms // precision_ms
    for positions, units in log.blocks(log.files.min_offset, log.position):
        numbers = (units["write_time"].astype(np.int64) + units["delay"]) // precision_ms
        chosen = np.flatnonzero(numbers >= first_number)
        if not len(chosen):
            continue
        if int(numbers[chosen].max()) >= first_number + count:  # timerPrecisionMs was larger
            raise TimerLogDamageError(f"{log.files.directory} has units of times that are beyond the wheel")
        chosen = chosen[np.argsort(numbers[chosen], kind="stable")]
        numbers, positions, units = numbers[chosen], positions[chosen], units[chosen]
        index = numbers % count
        heads = np.append(True, numbers[1:] != numbers[:-1])
        previous = np.append(-1, positions[:-1])
        known = slots["time"][index] == numbers
        previous[heads] = np.where(known, slots["last"][index], -1)[heads]
        links = units["prev_pos"]
        gone = (previous < 0) & (links < log.files.min_offset)  # the file of the one before was removed
        wrong = np.flatnonzero((links != previous) & ~gone)
        if len(wrong):
            place = int(positions[wrong[0]])
            raise TimerLogDamageError(f"{log.files.directory} has a unit at {place} that continues no other")
        new = heads & ~known
        slots["first"][index[new]] = positions[new]
        slots["time"][index] = numbers
        slots["last"][index] = positions  # of several the last, as assigning does
        np.add.at(slots["num"], index, np.where(units["magic"] & MAGIC_DELETE, -1, 1))
    return slots
