"""The exception hierarchy of the package.

Every error has three attributes beside its message, for code and for people:

``code``
    a stable upper-case name (``TOPIC_NOT_FOUND``), the same in Python, in logs and on the command line; codes of the
    data source have a second part (``DATA_LOSS.TOPIC_DELETED``);
``retriable``
    whether the same call may succeed when it is retried;
``remedy``
    one sentence with the action to take. It is part of ``str(error)``.

Errors caused by an error response of a broker or name server also carry ``response_code`` (protocol ``ResponseCode``).
Corresponds to RocketMQ's MQClientException, MQBrokerException, RemotingException and StoreException families.
Thread-safety: instances are not shared. They can be pickled, because Spark passes them between processes.
"""

from __future__ import annotations

import warnings
from typing import Any


class RenamedCode(str):
    """A code with a new name. For one version it also equals its former name."""

    former: str

    def __new__(cls, code: str, former: str) -> RenamedCode:
        made = super().__new__(cls, code)
        made.former = former
        return made

    def __eq__(self, other: object) -> bool:
        if other == self.former:
            warnings.warn(f"the code {self.former} is now {self}", DeprecationWarning, stacklevel=2)
            return True
        return str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return RenamedCode, (str(self), self.former)


class RocketError(Exception):
    """Base class of all errors of the package."""

    code: str = "ROCKET_ERROR"
    retriable: bool = False

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        response_code: int | None = None,
        retriable: bool | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.response_code = response_code
        if retriable is not None:
            self.retriable = retriable
        if code is not None:
            self.code = code

    @property
    def text(self) -> str:
        """The message and the remedy, without the code: for people."""
        return f"{self.message} {self.remedy}".rstrip()

    def __str__(self) -> str:
        """Return everything, and a former code at the end: tools may search logs for it."""
        former = f" [{self.code.former}]" if isinstance(self.code, RenamedCode) else ""
        return f"[{self.code}] {self.text}{former}"

    def __reduce__(self) -> tuple[Any, ...]:
        state = {
            "remedy": self.remedy,
            "response_code": self.response_code,
            "retriable": self.retriable,
            "code": self.code,
        }
        return _rebuild, (type(self), self.message, state)


def _rebuild(cls: type[RocketError], message: str, state: dict[str, Any]) -> RocketError:
    error = cls.__new__(cls)
    RocketError.__init__(error, message, **state)
    return error


class ProtocolError(RocketError):
    """Bytes that violate the protocol. The only error that ``spark_rocket.protocol`` raises."""

    code = "PROTOCOL_ERROR"


class RowProtocolError(ProtocolError):
    """A row that cannot be encoded as a message; ``row`` is its index in the encoded columns."""

    code = "PROTOCOL_ERROR_IN_ROW"

    def __init__(self, message: str, *, row: int = -1, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.row = row

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"row": self.row})


class RunTooLargeError(ProtocolError):
    """Records whose decompressed bodies exceed the size limit of one decoding.

    The records before ``queue_offset`` fit: split the run there. The first record of a run is always decoded or
    rejected permanently, so repeated splitting terminates.
    """

    code = "PROTOCOL_RUN_TOO_LARGE"

    def __init__(self, message: str, *, queue_offset: int = -1, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.queue_offset = queue_offset

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"queue_offset": self.queue_offset})


class ConfigError(RocketError):
    """An invalid configuration file or value; the message names the file and the line."""

    code = "CONFIG_ERROR"


class MissingExtraError(ConfigError):
    """A package of an extra that is not installed; the remedy is the command that installs it."""

    code = "MISSING_EXTRA"


class StateError(RocketError):
    """A component that was used before its start, used after its shutdown, or started twice; or a queue that is not
    assigned to this consumer.
    """

    code = "ILLEGAL_STATE"


# --- remoting ---------------------------------------------------------------------------------------------------


class RemotingError(RocketError):
    """A failure of communication between two processes."""

    code = "REMOTING_ERROR"
    retriable = True


class RemotingConnectError(RemotingError):
    """The connection to the address failed, or was lost before the response. Check the address, and that a server
    listens on it.
    """

    code = "CONNECT_FAILED"


class RemotingTimeoutError(RemotingError):
    """No response before the timeout. The request may have been executed: a resent message may be a duplicate."""

    code = "REQUEST_TIMEOUT"


class RemotingTooMuchRequestError(RemotingError):
    """The limit of requests in flight was reached, and no slot became free before the timeout. Have fewer requests in
    flight.
    """

    code = "TOO_MANY_REQUESTS"


# --- client -----------------------------------------------------------------------------------------------------


class ClientError(RocketError):
    """A client call that failed, before or after the exchange with a server; an invalid argument, which it names."""

    code = "CLIENT_ERROR"


class NameServerUnreachableError(ClientError):
    """No name server responded. Check the address; known brokers stay in use."""

    code = "NAME_SERVER_UNREACHABLE"
    retriable = True


class TopicNotFoundError(ClientError):
    """No broker has registered a route for the topic. Create it, or enable ``autoCreateTopicEnable`` at the broker."""

    code = "TOPIC_NOT_FOUND"


class QueueNotFoundError(ClientError):
    """The topic has no such queue on that broker. Fetch the queues of the topic again."""

    code = "QUEUE_NOT_FOUND"


class MessageTooLargeError(ClientError):
    """A message or batch above the size limit of the brokers. Split it, or raise the limit on both sides."""

    code = "MESSAGE_TOO_LARGE"


class IllegalNameError(ClientError):
    """A group or topic name that RocketMQ does not allow. Use only letters, digits, %, |, _ and -, stay within its
    length, and do not use the broker's own names.
    """

    code = "ILLEGAL_NAME"


class IllegalMessageError(ClientError):
    """An invalid message: without a body, or with contradicting delivery times or delay levels."""

    code = "ILLEGAL_MESSAGE"


class SendForbiddenError(ClientError):
    """A hook of the application rejected the send."""

    code = "SEND_FORBIDDEN"


class RequestTimeoutError(ClientError):
    """No reply to a request message before the timeout. Its consumer may have acted on it."""

    code = "NO_REPLY"
    retriable = True


class GroupInUseError(ClientError):
    """A second producer or consumer of the same group in one client instance. Have at most one of each."""

    code = "GROUP_IN_USE"


class BrokerError(ClientError):
    """An error response of a broker or name server, with its ``response_code`` and remark. Retriable: codes of busy and
    stopping brokers (2, 14, 215, 1500, and 1 if the remark reports it).
    """

    code = "BROKER_ERROR"


class ProxyUnsupportedError(BrokerError):
    """A request that a proxy does not forward. Use the address of a name server."""

    code = "PROXY_UNSUPPORTED"


class SubscriptionRefusedError(BrokerError):
    """A subscription that a broker does not support or cannot evaluate. Correct the SQL92 expression, or set
    ``enablePropertyFilter=true`` at the brokers.
    """

    code = "SUBSCRIPTION_REFUSED"


# --- store ------------------------------------------------------------------------------------------------------


class StoreError(RocketError):
    """A failure of the store on disk."""

    code = "STORE_ERROR"


class StoreLockedError(StoreError):
    """Another process has the store directory open."""

    code = "STORE_LOCKED"


class StoreCorruptError(StoreError):
    """Corrupt data on disk that recovery cannot repair safely; the message names the file and the offset."""

    code = "STORE_CORRUPT"


class StoreNotWritableError(StoreError):
    """The store accepts no writes at the moment: it is shutting down, full, or not running."""

    code = "STORE_NOT_WRITABLE"
    retriable = True


# --- broker -----------------------------------------------------------------------------------------------------


class RefusedError(RocketError):
    """A request that the broker rejects with ``response_code``; the message is the remark of the response."""

    code = "REQUEST_REFUSED"

    def __init__(self, message: str, response_code: int | None = None, **more: Any) -> None:
        super().__init__(message, response_code=response_code, **more)


# --- data source ------------------------------------------------------------------------------------------------


class DataSourceError(RocketError):
    """Base class of the errors of ``format("rocket")``."""

    code = "DATA_SOURCE_ERROR"


class OptionError(DataSourceError):
    """An unknown, missing or out-of-range option."""

    code = "BAD_OPTION"


class SchemaError(DataSourceError):
    """Columns that the source does not have, or that the sink cannot write."""

    code = "BAD_SCHEMA"


class OffsetsError(DataSourceError):
    """Offsets that do not match the topic, or an unreadable checkpoint."""

    code = "BAD_OFFSETS"


class DataLossError(DataSourceError):
    """Messages that the query still needed are gone; the message names them and the action to take."""

    code = "DATA_LOSS"


class ExactlyOnceError(DataSourceError):
    """The exactly-once sink cannot continue without the risk of a duplicate or a loss; the message gives the reason."""

    code = "EXACTLY_ONCE"


class RecordError(DataSourceError):
    """A message whose body does not match ``bodyFormat``; the error message identifies it."""

    code = "BAD_RECORD"


class RowError(DataSourceError):
    """A row that cannot be written; the message names the row and the limit."""

    code = "BAD_ROW"
