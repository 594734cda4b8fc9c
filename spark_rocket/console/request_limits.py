"""The parameters of each route and their bounds, in one table, checked before the route's handler runs.

A route without an entry cannot be created. A handler sees only the parameters of its entry, of path, query and body
together, so that none is without a bound. The header of a request has at most 64 KiB (serve.py).

RocketMQ's dashboard has no such bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_rocket.console.responses import Refused, read_json

if TYPE_CHECKING:
    from starlette.requests import Request

KIB = 1024
MIB = 1024 * 1024
MAX_INT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TextLimit:
    most: int
    """Characters."""

    def check(self, name: str, value: object) -> None:
        """Raise Refused if the value is too long; its handler refuses another type."""
        _check_size(name, value, self.most, 0)


@dataclass(frozen=True, slots=True)
class NumberLimit:
    least: int = 0
    most: int = MAX_INT

    def check(self, name: str, value: object) -> None:
        if value is not None and value != "":
            _check_size(name, value, _DIGITS, 0)
            integer(name, value, self.least, self.most)


@dataclass(frozen=True, slots=True)
class CollectionLimit:
    most: int
    """Entries."""
    each: int = 1
    """Values of an entry, in it at any depth."""

    def check(self, name: str, value: object) -> None:
        if isinstance(value, list | dict) and len(value) > self.most:
            raise _too_many(name, len(value), self.most)
        _check_size(name, value, 2 * MIB, self.most * self.each)


Parameter = TextLimit | NumberLimit | CollectionLimit


@dataclass(frozen=True, slots=True)
class RouteLimit:
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    max_body_bytes: int = 0
    """0: the body is not read."""
    max_values: int = 100_000
    """Values in the body at any depth, and commas in its strings, counted before the body is parsed."""

    async def read(self, request: Request) -> tuple[dict[str, str], dict[str, Any]]:
        """Return the known parameters of query and body. Refused if one exceeds its bound, or the body does."""
        for name, value in request.path_params.items():
            self.parameters[name].check(name, value)
        query = self._known(request.query_params.items())
        if not self.max_body_bytes:
            return query, {}
        body = await read_json(request, self.max_body_bytes, self.max_values)
        return query, self._known(body.items())

    def _known(self, given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        known = {name: value for name, value in given if name in self.parameters}
        for name, value in known.items():
            self.parameters[name].check(name, value)
        return known


def integer(name: str, value: Any, least: int, most: int) -> int:
    """Parse a parameter. Refused if it is not an integer of this range."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        raise Refused(f"Invalid {name}: not an integer.", remedy=f"Use an integer for {name}.") from None
    if not least <= found <= most or isinstance(value, bool | float):
        raise Refused(f"Invalid {name} {found}.", remedy=f"Use {least} to {most}.")
    return found


def _check_size(name: str, value: object, characters: int, values: int) -> None:
    """Raise Refused if a value has more characters, or more values in it at any depth."""
    left, count, length = [value], -1, 0
    while left:
        one = left.pop()
        count += 1
        if isinstance(one, str):
            length += len(one)
        elif isinstance(one, dict):
            length += sum(map(len, one))
            left += one.values()
        elif isinstance(one, list):
            left += one
        if length > characters:
            raise Refused(f"Invalid {name}: too long.", remedy=f"Use at most {characters:,} characters for {name}.")
        if count + len(left) > values:
            raise _too_many(name, count + len(left), values)


def _too_many(name: str, count: int, most: int) -> Refused:
    return Refused(f"Invalid {name}: {count:,} entries.", remedy=f"Use at most {most:,} entries for {name}.")


_DIGITS = 20
_NAME = TextLimit(512)  # of a topic or group, with %RETRY% or a namespace
_ADDRESS = TextLimit(512)
_WORD = TextLimit(64)
_FLAG = TextLimit(5)
_TIME = NumberLimit()
_TABLE_PAGE: Mapping[str, Parameter] = {
    "search": TextLimit(512),
    "sort": _WORD,
    "desc": _FLAG,
    "page": NumberLimit(),
    "size": NumberLimit(1, 500),
}
_PLACE: Mapping[str, Parameter] = {"topic": _NAME, "broker": _NAME, "queue": NumberLimit(), "offset": NumberLimit()}
_BROKERS: Mapping[str, Parameter] = {
    "brokers": CollectionLimit(1_000),
    "own": _FLAG,
    "from": CollectionLimit(10_000, 4),  # an account, a user or a white list, as a page has shown it
}
_USER: Mapping[str, Parameter] = {"user": _NAME, **_BROKERS}
_PERMISSION: Mapping[str, Parameter] = {"resource": TextLimit(1_024), "policyType": _WORD, **_USER}
_RESENT: Mapping[str, Parameter] = {"messages": CollectionLimit(200, 5)}
_RESET = RouteLimit({"topic": _NAME, "group": _NAME, "to": _WORD, "timestamp": _TIME, "online": _FLAG}, 4 * KIB)
_ACCOUNTS_BODY = MIB

ROUTE_LIMITS: Mapping[tuple[str, str], RouteLimit] = {
    # --- without data of the cluster
    ("GET", "/api/alive"): RouteLimit(),
    ("GET", "/api/session"): RouteLimit(),
    ("POST", "/api/login"): RouteLimit(
        {"user": TextLimit(256), "password": TextLimit(4 * KIB)}, 4 * KIB
    ),  # before authentication
    ("POST", "/api/logout"): RouteLimit(),
    ("GET", "/api/time"): RouteLimit({"text": TextLimit(128), "zone": TextLimit(128)}),
    # --- brokers, clients, access control
    ("GET", "/api/overview"): RouteLimit(),
    ("GET", "/api/health"): RouteLimit(),
    ("GET", "/api/broker"): RouteLimit({"address": _ADDRESS}),
    ("POST", "/api/broker/settings"): RouteLimit(
        {"address": _ADDRESS, "name": TextLimit(256), "from": TextLimit(64 * KIB), "value": TextLimit(4_096)}, 512 * KIB
    ),
    ("GET", "/api/accounts"): RouteLimit(),
    ("POST", "/api/account"): RouteLimit(
        {
            "account": _NAME,
            "secret": TextLimit(1_024),
            "create": _FLAG,
            "admin": _FLAG,
            "topics": CollectionLimit(2_000),
            "groups": CollectionLimit(2_000),
            "otherTopics": _WORD,
            "otherGroups": _WORD,
            "white": TextLimit(16 * KIB),
            **_BROKERS,
        },
        _ACCOUNTS_BODY,
    ),
    ("DELETE", "/api/account"): RouteLimit({"account": _NAME, "confirm": _NAME, **_BROKERS}, _ACCOUNTS_BODY),
    ("POST", "/api/account/white-list"): RouteLimit({"addresses": CollectionLimit(2_000), **_BROKERS}, _ACCOUNTS_BODY),
    ("POST", "/api/user"): RouteLimit(
        {"password": TextLimit(1_024), "create": _FLAG, "type": _WORD, "status": _WORD, **_USER}, _ACCOUNTS_BODY
    ),
    ("DELETE", "/api/user"): RouteLimit({"confirm": _NAME, **_USER}, _ACCOUNTS_BODY),
    ("POST", "/api/permission"): RouteLimit(
        {"actions": CollectionLimit(16), "decision": _WORD, "sourceIps": CollectionLimit(1_000), **_PERMISSION},
        _ACCOUNTS_BODY,
    ),
    ("DELETE", "/api/permission"): RouteLimit(_PERMISSION, _ACCOUNTS_BODY),
    ("GET", "/api/groups/{group}/member"): RouteLimit({"group": _NAME, "client": TextLimit(1_024), "stacks": _FLAG}),
    ("GET", "/api/producers"): RouteLimit({"topic": _NAME, "own": _FLAG, **_TABLE_PAGE}),
    # --- topics and groups
    ("GET", "/api/topics"): RouteLimit({"kind": _WORD, **_TABLE_PAGE}),
    ("GET", "/api/topic-names"): RouteLimit(),
    ("POST", "/api/topics"): RouteLimit(
        {
            "topic": _NAME,
            "type": _WORD,
            "queues": NumberLimit(1, 1_024),
            "writeQueues": NumberLimit(0, 1_024),
            "perm": NumberLimit(0, 7),
            "broker": _NAME,
            "order": _FLAG,
        },
        4 * KIB,
    ),
    ("GET", "/api/topics/{topic}"): RouteLimit({"topic": _NAME, "known": _FLAG}),
    ("DELETE", "/api/topics/{topic}"): RouteLimit({"topic": _NAME, "confirm": _NAME}, 4 * KIB),
    ("GET", "/api/groups"): RouteLimit({"own": _FLAG, **_TABLE_PAGE}),
    ("GET", "/api/group-names"): RouteLimit(),
    ("POST", "/api/groups"): RouteLimit({"group": _NAME, "ordered": _FLAG, "retries": NumberLimit(-1, 1_000)}, 4 * KIB),
    ("GET", "/api/groups/{group}"): RouteLimit({"group": _NAME, "known": _FLAG}),
    ("DELETE", "/api/groups/{group}"): RouteLimit({"group": _NAME, "confirm": _NAME}, 4 * KIB),
    ("POST", "/api/groups/{group}/plan"): _RESET,
    ("POST", "/api/groups/{group}/reset"): _RESET,
    # --- messages
    ("GET", "/api/messages"): RouteLimit(
        {"topic": _NAME, "by": _WORD, "id": TextLimit(256), "key": TextLimit(1_024), "limit": NumberLimit(1, 256)}
    ),
    ("POST", "/api/messages/search"): RouteLimit(
        {
            "topic": _NAME,
            "begin": _TIME,
            "end": _TIME,
            "text": TextLimit(1_000),
            "tags": TextLimit(64 * KIB),
            "limit": NumberLimit(1, 256),
            "cursor": CollectionLimit(8_192, 6),  # a list of five values for each queue
        },
        MIB,
    ),
    ("POST", "/api/messages"): RouteLimit(
        {
            "topic": _NAME,
            "body": TextLimit(8 * MIB),
            "encoding": _WORD,
            "properties": CollectionLimit(10_000),
            "tags": TextLimit(32 * KIB),
            "keys": TextLimit(32 * KIB),
            "shardingKey": TextLimit(32 * KIB),
            "delay": NumberLimit(),
        },
        8 * MIB,
        max_values=8 * MIB,  # commas in the message
    ),
    ("GET", "/api/message"): RouteLimit(_PLACE),
    ("GET", "/api/message/body"): RouteLimit(_PLACE),
    ("GET", "/api/message/track"): RouteLimit(_PLACE),
    ("GET", "/api/message/trace"): RouteLimit({"id": TextLimit(256)}),
    ("POST", "/api/message/decode"): RouteLimit({"schema": TextLimit(256 * KIB), **_PLACE}, 512 * KIB),
    ("POST", "/api/message/resend"): RouteLimit({"group": _NAME, **_PLACE}, 4 * KIB),
    ("GET", "/api/dead-letters"): RouteLimit(),
    ("POST", "/api/dead-letters/{group}/resend"): RouteLimit({"group": _NAME, **_RESENT}, 256 * KIB),
    ("POST", "/api/dead-letter-topics/{topic}/resend"): RouteLimit({"topic": _NAME, **_RESENT}, 256 * KIB),
}
"""Method and path of a route -> its bounds."""
