"""The handle with which a message that waits for its time can be recalled.

``v1 topic brokerName timestamp messageId``, separated by blanks, as URL-safe Base64. The timestamp is the message's
TIMER_OUT_MS plus 1, so that a message sent with it as TIMER_DELIVER_MS falls into the same second of the timer; the
message id is its UNIQ_KEY. Further words are ignored, as Apache's broker does.

Thread-safety: pure functions. Corresponds to common.producer.RecallMessageHandle.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

from spark_rocket.errors import ProtocolError

_VERSION = "v1"
_WORDS = 5
_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@dataclass(frozen=True, slots=True)
class RecallMessageHandle:
    """Which message, on which broker, and when it is due."""

    topic: str
    broker_name: str
    timestamp: str
    message_id: str

    def encode(self) -> str:
        """The text that is given to the sender. ProtocolError if a part is not one word."""
        words = (_VERSION, self.topic, self.broker_name, self.timestamp, self.message_id)
        text = " ".join(words)
        if not all(words) or text.count(" ") != _WORDS - 1:
            raise ProtocolError(f"{text!r} makes no recall handle: each part is one word, without blanks.")
        try:
            return urlsafe_b64encode(text.encode()).decode()
        except UnicodeEncodeError as error:
            raise ProtocolError(f"{text!r} makes no recall handle: {error.reason}.") from None

    @classmethod
    def decode(cls, handle: str | None) -> RecallMessageHandle:
        """The handle of a text. ProtocolError for anything else."""
        if handle is None:  # what SendResult says of a message without one
            raise ProtocolError(
                "None is no recall handle.",
                remedy="Only a message with a delivery time that is still to come has one, and not where the broker's "
                "timerWheelEnable is false; a message with a delay level has none.",
            )
        bare = handle.rstrip("=")  # Java takes it with and without padding, and so do we
        refusal = ProtocolError(
            f"{handle[:40]!r} is no recall handle.", remedy="Give SendResult.recall_handle as it is."
        )
        if not bare or len(handle) - len(bare) > 2 or not _ALPHABET.issuperset(bare):
            raise refusal
        try:
            words = urlsafe_b64decode(bare + "=" * (-len(bare) % 4)).decode().split(" ")
        except (binascii.Error, UnicodeDecodeError):
            raise refusal from None
        if words[0] != _VERSION or len(words) < _WORDS or not all(words[1:_WORDS]):
            raise refusal
        return cls(*words[1:_WORDS])
