"""The one exception tree of the package.

Every error carries three things beside its text, so that code and people can act on it:

``code``
    a stable upper-case name (``TOPIC_NOT_FOUND``), the same in Python, in logs and on the command line; the data
    source's have a second part (``DATA_LOSS.TOPIC_DELETED``);
``retriable``
    whether the same call may succeed if it is simply made again;
``remedy``
    one sentence that says what to do. It is part of ``str(error)``.

Errors that come from a broker's or name server's answer also carry ``response_code`` (protocol ``ResponseCode``).
Corresponds to RocketMQ's MQClientException, MQBrokerException, RemotingException and StoreException families.
Thread-safety: instances are not shared. They pickle, because Spark carries them between processes.
"""

from __future__ import annotations

from typing import Any


class RocketError(Exception):
    """Root of the tree."""

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

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        return f"{text} {self.remedy}" if self.remedy else text

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
    """Bytes that are not what the protocol says. The only error that ``spark_rocket.protocol`` raises."""

    code = "PROTOCOL_ERROR"


class RowProtocolError(ProtocolError):
    """A row of a column that cannot be written as a message; ``row`` is its index in what was to be encoded."""

    code = "PROTOCOL_ERROR_IN_ROW"

    def __init__(self, message: str, *, row: int = -1, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.row = row

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"row": self.row})


class RunTooLargeError(ProtocolError):
    """Records whose bodies inflate to more than is decoded at once.

    Those before ``queue_offset`` can be: cut the run there. The first record of a run is always decoded or refused for
    good, so cutting comes to an end.
    """

    code = "PROTOCOL_RUN_TOO_LARGE"

    def __init__(self, message: str, *, queue_offset: int = -1, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.queue_offset = queue_offset

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"queue_offset": self.queue_offset})


class ConfigError(RocketError):
    """A configuration file or value that cannot be used; the text names the file and the line."""

    code = "CONFIG_ERROR"


class StateError(RocketError):
    """A component used before its start or after its shutdown, or started twice."""

    code = "ILLEGAL_STATE"


# --- remoting ---------------------------------------------------------------------------------------------------


class RemotingError(RocketError):
    """Something between two processes, not in either of them."""

    code = "REMOTING_ERROR"
    retriable = True


class RemotingConnectError(RemotingError):
    """No connection to the address could be made, or it was lost before the answer."""

    code = "CONNECT_FAILED"


class RemotingTimeoutError(RemotingError):
    """No answer within the time allowed. The request may have been carried out."""

    code = "REQUEST_TIMEOUT"


class RemotingTooMuchRequestError(RemotingError):
    """The bound on requests in flight was reached and no place came free in time."""

    code = "TOO_MANY_REQUESTS"


# --- client -----------------------------------------------------------------------------------------------------


class ClientError(RocketError):
    """The client cannot do what was asked, before or after talking to a server."""

    code = "CLIENT_ERROR"


class NameServerUnreachableError(ClientError):
    """None of the name servers answered."""

    code = "NAME_SERVER_UNREACHABLE"
    retriable = True


class TopicNotFoundError(ClientError):
    """No broker has a route for the topic."""

    code = "TOPIC_NOT_FOUND"


class QueueNotFoundError(ClientError):
    """The topic has no such queue on that broker."""

    code = "QUEUE_NOT_FOUND"


class MessageTooLargeError(ClientError):
    """A message or batch above the size that brokers take."""

    code = "MESSAGE_TOO_LARGE"


class IllegalNameError(ClientError):
    """A group's or topic's name that RocketMQ does not allow."""

    code = "ILLEGAL_NAME"


class IllegalMessageError(ClientError):
    """A message that is none: without a body, or with times or a delay level that exclude each other."""

    code = "ILLEGAL_MESSAGE"


class SendForbiddenError(ClientError):
    """A hook of the application refused the send."""

    code = "SEND_FORBIDDEN"


class RequestTimeoutError(ClientError):
    """No reply to a request message in time. Whoever consumed it may have acted on it."""

    code = "NO_REPLY"
    retriable = True


class GroupInUseError(ClientError):
    """A second producer or consumer of a group in one client instance."""

    code = "GROUP_IN_USE"


class BrokerError(ClientError):
    """A broker or name server answered with an error code; ``response_code`` and its remark say which."""

    code = "BROKER_ERROR"


class SubscriptionRefusedError(BrokerError):
    """A broker cannot choose a consumer's messages as its subscription says."""

    code = "SUBSCRIPTION_REFUSED"


# --- store ------------------------------------------------------------------------------------------------------


class StoreError(RocketError):
    """The store on disk."""

    code = "STORE_ERROR"


class StoreLockedError(StoreError):
    """Another process has the store directory open."""

    code = "STORE_LOCKED"


class StoreCorruptError(StoreError):
    """Bytes on disk that recovery must not guess about; the text names file and offset."""

    code = "STORE_CORRUPT"


class StoreNotWritableError(StoreError):
    """The store takes no writes now: shutting down, full, or not running."""

    code = "STORE_NOT_WRITABLE"
    retriable = True


# --- broker -----------------------------------------------------------------------------------------------------


class RefusedError(RocketError):
    """A request that the broker answers with an error code; ``response_code`` says which, the text is the remark."""

    code = "REQUEST_REFUSED"

    def __init__(self, message: str, response_code: int | None = None, **more: Any) -> None:
        super().__init__(message, response_code=response_code, **more)


# --- data source ------------------------------------------------------------------------------------------------


class DataSourceError(RocketError):
    """``format("rocket")``."""

    code = "DATA_SOURCE_ERROR"


class OptionError(DataSourceError):
    """An option that is unknown, missing or out of its range."""

    code = "BAD_OPTION"


class SchemaError(DataSourceError):
    """Columns that the source does not have, or that the sink cannot write."""

    code = "BAD_SCHEMA"


class OffsetsError(DataSourceError):
    """Offsets that do not fit the topic, or a checkpoint that cannot be read."""

    code = "BAD_OFFSETS"


class DataLossError(DataSourceError):
    """Messages that the query still needed are gone; the text says which and what to do."""

    code = "DATA_LOSS"


class ExactlyOnceError(DataSourceError):
    """The exactly-once sink cannot go on without risking a duplicate or a loss; the text says why."""

    code = "EXACTLY_ONCE"


class RecordError(DataSourceError):
    """A message whose body is not what ``bodyFormat`` says; the text names it."""

    code = "BAD_RECORD"


class RowError(DataSourceError):
    """A row that cannot be written; the text names the row and the limit."""

    code = "BAD_ROW"
