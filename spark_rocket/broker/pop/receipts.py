"""Which receipts are taken, and how the others are refused.

Apache's broker takes any that it can read: forged ones go into its revive log, where they find no check point, or wait
in its timer for ever. Here a receipt must be one that this broker may have given.

Thread-safety: pure functions.
"""

from __future__ import annotations

from spark_rocket.broker.pop.acks import MAX_SPAN
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.ids import ExtraInfo
from spark_rocket.protocol.wire.codes import ResponseCode

_CLOCKS_APART_MS = 24 * 3600 * 1000  # a clock may be set back while messages are out


def check_receipt(receipt: ExtraInfo, offset: int, broker: str, queues: int, now: int, longest_invisible: int) -> None:
    """RefusedError unless this broker, which has so many revive queues, may have given it for that offset."""
    if receipt.broker_name != broker:
        raise bad_receipt(f"it is of the broker {receipt.broker_name[:100]}, this is {broker}")
    if receipt.revive_queue_id >= queues and not receipt.is_order:
        raise bad_receipt(f"there is no revive queue {receipt.revive_queue_id}")
    if receipt.pop_time > now + _CLOCKS_APART_MS:
        raise bad_receipt("it is from the future")
    if receipt.invisible_time > longest_invisible and not receipt.is_order:
        raise bad_receipt(f"nothing is invisible for {receipt.invisible_time} ms")
    if not 0 <= offset - receipt.start_offset < MAX_SPAN:
        raise bad_receipt(f"{offset} is no offset of a check point that begins at {receipt.start_offset}")


def bad_receipt(why: str) -> RefusedError:
    """29: it was not given by this broker."""
    return RefusedError(
        f"extraInfo is no receipt of this broker: {why}",
        response_code=ResponseCode.INVALID_PARAMETER,
        remedy="Send back what the broker gave with the message.",
    )


def too_late(why: str) -> RefusedError:
    """208: what it stands for is not out any more."""
    return RefusedError(
        why,
        response_code=ResponseCode.NO_MESSAGE,
        remedy="It cannot be made invisible for longer; if it was not acked, it comes again.",
    )
