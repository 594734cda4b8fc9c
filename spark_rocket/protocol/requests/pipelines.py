"""The requests that each pipeline sends, and the permissions that follow from them.

``PIPELINES`` is the only declaration. The tables of the guides are generated from it (tools/generated_tables), and
``tests/permissions`` compares it with what pipelines send, and runs each pipeline with exactly these permissions.

A resource has the name of the option that names it (``subscribe``, ``ledgerTopic``); ``NAMES`` has the defaults. The
sink's own topics exist: without them, it sends more requests to create them, which need Create.

Pure values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_rocket.model import READER_GROUP, SCHEDULE_TOPIC, TIMER_TOPIC
from spark_rocket.protocol.requests import BROKER_REQUESTS, REQUESTS
from spark_rocket.protocol.requests.needs import Action, Pair, Permission, PlainAccess, Resource
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.command import RemotingCommand

SUBSCRIBE = "subscribe"
TOPIC = "topic"
DEAD_LETTER_TOPIC = "deadLetterTopic"
DLQ_TOPIC = "%DLQ%consumerGroup"
STAGING_TOPIC = "stagingTopic"
LEDGER_TOPIC = "ledgerTopic"
CONSUMER_GROUP = "consumerGroup"
LEDGER_GROUP = "ledgerGroup"
FORMER_GROUP = "ledgerTopic-ID"
"""The group of a query of earlier versions."""
ANY = "*"
"""Each topic, or each group."""

NAMES: Mapping[str, str] = {
    CONSUMER_GROUP: READER_GROUP,
    STAGING_TOPIC: "ROCKET_SINK_STAGING",
    LEDGER_TOPIC: "ROCKET_SINK_LEDGER",
    LEDGER_GROUP: "ROCKET_SINK_LEDGER",
}
"""The names of resources whose options have a default."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request of a pipeline, with the topic and the group that it names."""

    code: Code
    topic: str = ""
    group: str = ""
    is_optional: bool = False
    """Whether the pipeline does without it if it is refused."""

    def request(self) -> RemotingCommand:
        """A request with the fields that decide the needs."""
        fields = {"topic": self.topic, "b": self.topic, "consumerGroup": self.group, "group": self.group}
        return RemotingCommand.request(self.code, {name: value for name, value in fields.items() if value})

    def pairs_at_any_server(self) -> tuple[Pair, ...]:
        """The permissions that the request needs of a server with accounts."""
        return tuple(dict.fromkeys(REQUESTS[self.code].pairs(self.request(), lambda _: self.topic or None)))

    def pairs(self) -> tuple[Pair, ...]:
        """The permissions that the request needs. Name servers have no accounts."""
        return self.pairs_at_any_server() if self.code in BROKER_REQUESTS else ()


class Granted(NamedTuple):
    """A resource and the permissions on it: actions of ACL 2.0, or PUB and SUB of ACL 1.0."""

    resource: Resource
    name: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PipelineRequests:
    """The requests of a pipeline."""

    name: str
    sent: tuple[SentRequest, ...]

    def policies(self) -> list[Granted]:
        """The least permissions of ACL 2.0."""
        needed = [
            (pair.resource, pair.name, pair.actions) for one in self.sent if not one.is_optional for pair in one.pairs()
        ]
        return [Granted(*where, tuple(action.value for action in actions)) for where, actions in _fewest(needed)]

    def plain_permissions(self) -> list[Granted]:
        """The least permissions of ACL 1.0. Empty: any account is sufficient."""
        found: dict[tuple[Resource, str], set[Permission]] = {}
        for one in self.sent:
            row = REQUESTS[one.code]
            if one.is_optional or row.plain_access is not PlainAccess.PERMISSIONS:
                continue
            for pair in one.pairs():
                if pair.permission is not None:
                    found.setdefault((pair.resource, pair.name), set()).add(pair.permission)
        return [
            Granted(*where, tuple(each.value for each in Permission if each in permissions))
            for where, permissions in found.items()
        ]


_Where = tuple[Resource, str]


def _fewest(needed: Sequence[tuple[Resource, str, tuple[Action, ...]]]) -> list[tuple[_Where, list[Action]]]:
    """The fewest actions on each resource so that each need has one of its own."""
    alternatives: dict[_Where, list[tuple[Action, ...]]] = {}
    for resource, name, actions in needed:
        alternatives.setdefault((resource, name), []).append(actions)
    found = []
    for where, each in alternatives.items():
        chosen: set[Action] = set()
        for actions in sorted(each, key=len):
            if chosen.isdisjoint(actions):
                chosen.add(actions[0])
        found.append((where, [action for action in Action if action in chosen]))
    return found


# --- parts of pipelines -----------------------------------------------------------------------------------------------


def _reads(topic: str = SUBSCRIBE) -> tuple[SentRequest, ...]:
    return (
        SentRequest(Code.GET_ROUTEINFO_BY_TOPIC, topic),
        SentRequest(Code.GET_KVLIST_BY_NAMESPACE),
        SentRequest(Code.GET_MAX_OFFSET, topic),
        SentRequest(Code.GET_MIN_OFFSET, topic),
        SentRequest(Code.PULL_MESSAGE, topic, CONSUMER_GROUP),
    )


def _writes(topic: str) -> tuple[SentRequest, ...]:
    return (SentRequest(Code.GET_ROUTEINFO_BY_TOPIC, topic), SentRequest(Code.SEND_BATCH_MESSAGE, topic))


_READ = _reads()
_STAGES_AND_PUBLISHES = (
    # The place of the ledger.
    SentRequest(Code.GET_KV_CONFIG),
    SentRequest(Code.GET_BROKER_CLUSTER_INFO),
    SentRequest(Code.GET_ROUTEINFO_BY_TOPIC, LEDGER_TOPIC),
    SentRequest(Code.GET_ROUTEINFO_BY_TOPIC, STAGING_TOPIC),
    # Rows are staged, decided in the ledger, and published.
    *_writes(TOPIC),
    SentRequest(Code.GET_TOPIC_CONFIG, TOPIC, is_optional=True),
    SentRequest(Code.GET_MAX_OFFSET, TOPIC),
    SentRequest(Code.GET_MIN_OFFSET, TOPIC),  # this and the next one after a crash
    SentRequest(Code.PULL_MESSAGE, TOPIC, LEDGER_GROUP),
    SentRequest(Code.SEND_MESSAGE_V2, STAGING_TOPIC),
    SentRequest(Code.PULL_MESSAGE, STAGING_TOPIC, LEDGER_GROUP),
    SentRequest(Code.GET_MAX_OFFSET, LEDGER_TOPIC),
    SentRequest(Code.GET_MIN_OFFSET, LEDGER_TOPIC),
    SentRequest(Code.SEND_MESSAGE_V2, LEDGER_TOPIC),
    SentRequest(Code.PULL_MESSAGE, LEDGER_TOPIC, LEDGER_GROUP),
    SentRequest(Code.UPDATE_CONSUMER_OFFSET, LEDGER_TOPIC, LEDGER_GROUP),
    SentRequest(Code.GET_BROKER_CONFIG, is_optional=True),
)
_CLUSTER = SentRequest(Code.GET_BROKER_CLUSTER_INFO)
_ALL_GROUPS = (_CLUSTER, SentRequest(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
_ALL_TOPICS = (SentRequest(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), SentRequest(Code.GET_ALL_TOPIC_CONFIG))
_STATE_OF_GROUPS = (
    *_ALL_GROUPS,
    SentRequest(Code.GET_CONSUMER_CONNECTION_LIST, "", ANY),
    SentRequest(Code.GET_CONSUME_STATS, "", ANY),
)

# --- pipelines --------------------------------------------------------------------------------------------------------

READ = PipelineRequests("read", _READ)
STREAM = PipelineRequests(
    "stream",
    (
        *_READ,
        SentRequest(Code.GET_EARLIEST_MSG_STORETIME, SUBSCRIBE),
        SentRequest(Code.QUERY_CONSUMER_OFFSET, SUBSCRIBE, CONSUMER_GROUP),
        SentRequest(Code.UPDATE_CONSUMER_OFFSET, SUBSCRIBE, CONSUMER_GROUP),
    ),
)
TIME = PipelineRequests("time", (*_READ, SentRequest(Code.SEARCH_OFFSET_BY_TIMESTAMP, SUBSCRIBE)))
GROUP = PipelineRequests("group", (*_READ, SentRequest(Code.QUERY_CONSUMER_OFFSET, SUBSCRIBE, CONSUMER_GROUP)))
LOOK_UP = PipelineRequests(
    "lookup",
    (*_READ, SentRequest(Code.QUERY_MESSAGE, SUBSCRIBE), SentRequest(Code.GET_BROKER_CONFIG, is_optional=True)),
)
DEAD_LETTERS = PipelineRequests("deadLetters", (*_READ, *_writes(DEAD_LETTER_TOPIC)))
WRITE = PipelineRequests("write", _writes(TOPIC))
EXACTLY_ONCE = PipelineRequests("exactlyOnce", _STAGES_AND_PUBLISHES)
EXACTLY_ONCE_STREAM = PipelineRequests(
    "exactlyOnceStream",
    (
        *_STAGES_AND_PUBLISHES,
        SentRequest(Code.QUERY_CONSUMER_OFFSET, LEDGER_TOPIC, LEDGER_GROUP),
        SentRequest(Code.QUERY_CONSUMER_OFFSET, LEDGER_TOPIC, FORMER_GROUP, is_optional=True),
    ),
)
EXACTLY_ONCE_DELAYED = PipelineRequests(
    "exactlyOnceDelayed",
    (
        *EXACTLY_ONCE_STREAM.sent,
        SentRequest(Code.SEND_MESSAGE_V2, TOPIC),
        # Where delayed rows wait.
        *(
            request
            for topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
            for request in (
                SentRequest(Code.GET_ROUTEINFO_BY_TOPIC, topic),
                SentRequest(Code.GET_MAX_OFFSET, topic),
                SentRequest(Code.GET_MIN_OFFSET, topic),
                SentRequest(Code.PULL_MESSAGE, topic, LEDGER_GROUP),
            )
        ),
    ),
)
MESSAGES_VIEW = PipelineRequests(
    "messagesView", (SentRequest(Code.GET_ROUTEINFO_BY_TOPIC, SUBSCRIBE), SentRequest(Code.QUERY_MESSAGE, SUBSCRIBE))
)
DLQ_VIEW = PipelineRequests("dlqView", _reads(DLQ_TOPIC))
LAG_VIEW = PipelineRequests(
    "lagView",
    (
        *_ALL_GROUPS,
        SentRequest(Code.GET_CONSUMER_CONNECTION_LIST, "", CONSUMER_GROUP),
        SentRequest(Code.GET_CONSUME_STATS, "", CONSUMER_GROUP),
    ),
)
VIEWS = PipelineRequests(
    "views",
    (
        *_STATE_OF_GROUPS,
        *_ALL_TOPICS,
        SentRequest(Code.GET_TOPIC_STATS_INFO, ANY),
        SentRequest(Code.GET_BROKER_RUNTIME_INFO),
        SentRequest(Code.GET_PRODUCER_CONNECTION_LIST),
    ),
)
LAG = PipelineRequests(
    "lag",
    (
        _CLUSTER,
        SentRequest(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, is_optional=True),
        SentRequest(Code.GET_CONSUMER_CONNECTION_LIST, "", CONSUMER_GROUP),
        SentRequest(Code.GET_CONSUME_STATS, "", CONSUMER_GROUP),
        SentRequest(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        SentRequest(Code.QUERY_CONSUME_TIME_SPAN, SUBSCRIBE, CONSUMER_GROUP, is_optional=True),
        # How many messages arrive, for the estimate.
        SentRequest(Code.GET_ALL_TOPIC_CONFIG, is_optional=True),
        SentRequest(Code.GET_TOPIC_STATS_INFO, SUBSCRIBE, is_optional=True),
    ),
)
CONSOLE = PipelineRequests(
    "console",
    (
        *_STATE_OF_GROUPS,
        *_ALL_TOPICS,
        SentRequest(Code.GET_TOPIC_STATS_INFO, ANY),
        SentRequest(Code.GET_BROKER_RUNTIME_INFO),
        SentRequest(Code.QUERY_TOPIC_CONSUME_BY_WHO, ANY),
        # Sizes of messages and ages of lags are sampled now and then.
        SentRequest(Code.GET_ROUTEINFO_BY_TOPIC, ANY, is_optional=True),
        SentRequest(Code.QUERY_CONSUME_QUEUE, ANY, is_optional=True),
        SentRequest(Code.QUERY_CONSUME_TIME_SPAN, ANY, ANY, is_optional=True),
    ),
)
EXPORT = PipelineRequests("export", _READ)
DOCTOR = PipelineRequests(
    "doctor",
    (
        _CLUSTER,
        SentRequest(Code.GET_BROKER_RUNTIME_INFO, is_optional=True),
        *(one for one in _READ if one.code is not Code.GET_KVLIST_BY_NAMESPACE),
        SentRequest(Code.QUERY_CONSUMER_OFFSET, SUBSCRIBE, CONSUMER_GROUP),
        SentRequest(Code.HEART_BEAT),
        SentRequest(Code.GET_ROUTEINFO_BY_TOPIC, TOPIC),
        SentRequest(Code.SEND_MESSAGE_V2, TOPIC),
        SentRequest(Code.UNREGISTER_CLIENT),
        SentRequest(Code.PULL_MESSAGE, TOPIC, CONSUMER_GROUP, is_optional=True),
    ),
)

PIPELINES: tuple[PipelineRequests, ...] = (
    READ, STREAM, TIME, GROUP, LOOK_UP, DEAD_LETTERS, WRITE, EXACTLY_ONCE, EXACTLY_ONCE_STREAM,
    EXACTLY_ONCE_DELAYED, MESSAGES_VIEW, DLQ_VIEW, LAG_VIEW, VIEWS, LAG, CONSOLE, EXPORT, DOCTOR,
)  # fmt: skip
