"""Names of topics and groups in commands: where they are, and their translation for a client with a namespace.

The connections of a client call :class:`NameTranslation` for every command, in both directions. So clients only know
names without the namespace, and no request can omit it. Names are in ext fields (``NAME_FIELDS`` …), in properties of
sent messages, and in JSON bodies of the codes in ``JSON_REQUESTS`` and ``JSON_RESPONSES``. Records in a body stay as
they are: their decoders take the namespace. In responses, lists and maps of names are reduced to those of the namespace
and of the system: others could not be addressed.

A test compares the tables with all headers and bodies.

Thread-safety: pure functions of their arguments; commands are changed in place.
Corresponds to the calls of withNamespace and withoutNamespace in RocketMQ's clients, and to NamespaceRpcHook.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from spark_rocket.protocol.namespace import Namespace, translated_properties
from spark_rocket.protocol.wire.codes import ONE_LETTER_CODES
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.json import dumps_fastjson, loads_tolerant

NAME_FIELDS = frozenset({
    "topic", "originTopic", "consumerGroup", "producerGroup", "group", "groupName", "srcGroup", "destGroup",
})  # fmt: skip
"""Ext fields of headers whose value is a name."""
NAME_LIST_FIELD = "topicList"  # names with ; between, in GET_CONSUME_STATS
STATS_KEY_FIELD = "statsKey"  # topic or topic@group, in VIEW_BROKER_STATS_DATA
SHORT_NAME_FIELDS = ("a", "b")  # of requests with one-letter fields: producer group and topic
_PROPERTIES = ("properties", "i")
_KV_CODES = frozenset({Code.PUT_KV_CONFIG, Code.GET_KV_CONFIG, Code.DELETE_KV_CONFIG})
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"  # the part of the name servers' KV configuration whose keys are topics

BODY_NAMES = frozenset({"topic", "topicName", "group", "groupName", "consumerGroup"})
"""Keys of JSON objects whose value is a name."""
BODY_NAME_LISTS = frozenset({"topicList", "groupList"})
BODY_NAME_MAPS = frozenset({
    "topicConfigTable", "subscriptionGroupTable", "forbiddenTable", "subscriptionTable", "data", "timingCount",
    "statusTable", "offsetTable", "consumeStatsList", "table",
})  # fmt: skip
"""Keys whose value is a map by names or by ``topic@group``, or a list of such maps. Maps by queues need no entry."""
JSON_REQUESTS = frozenset({
    Code.HEART_BEAT, Code.CHECK_CLIENT_CONFIG, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.QUERY_ASSIGNMENT,
    Code.SET_MESSAGE_REQUEST_MODE, Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Code.UPDATE_AND_CREATE_STATIC_TOPIC,
    Code.RESET_CONSUMER_CLIENT_OFFSET,
})  # fmt: skip
JSON_RESPONSES = frozenset({
    Code.GET_ALL_TOPIC_CONFIG, Code.GET_TOPIC_CONFIG, Code.GET_ALL_CONSUMER_OFFSET, Code.LOCK_BATCH_MQ,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_SUBSCRIPTIONGROUP_CONFIG, Code.GET_TOPIC_STATS_INFO,
    Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_CONSUME_STATS,
    Code.GET_KVLIST_BY_NAMESPACE, Code.GET_CONSUMER_STATUS_FROM_CLIENT, Code.INVOKE_BROKER_TO_RESET_OFFSET,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, Code.GET_TOPICS_BY_CLUSTER, Code.QUERY_TOPIC_CONSUME_BY_WHO,
    Code.QUERY_CONSUME_TIME_SPAN, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.GET_CONSUMER_RUNNING_INFO,
    Code.GET_BROKER_CONSUME_STATS, Code.QUERY_CONSUME_QUEUE, Code.GET_ALL_PRODUCER_INFO,
    Code.QUERY_TOPICS_BY_CONSUMER, Code.QUERY_SUBSCRIPTION_BY_CONSUMER, Code.QUERY_ASSIGNMENT,
    Code.GET_TIMER_METRICS,
})  # fmt: skip


class NameTranslation:
    """Puts the namespace before the names in what a client sends, and removes it from what it receives."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self._wrap: Callable[[str], str] = lru_cache(4096)(namespace.wrap)

    def sent_request(self, request: RemotingCommand) -> None:
        """Translate a request that is about to be signed. Full names stay, so this may be repeated."""
        if self.namespace:
            self._wrap_fields(request)
            if request.body and request.code in JSON_REQUESTS:
                request.body = _translated(request, self._wrap, None)
        if self.namespace.v2:
            request.ext_fields["nsd"] = "true"
            request.ext_fields["ns"] = self.namespace.v2

    def received_response(self, code: int, response: RemotingCommand) -> None:
        """Translate the response to a request with this code."""
        namespace = self.namespace
        if not namespace:
            return
        self._unwrap_fields(response)
        if response.remark:
            response.remark = namespace.unwrap_text(response.remark)
        if response.body and code in JSON_RESPONSES:
            # Keys of the name servers' KV configuration are names in one part of it only.
            keep = None if code == Code.GET_KVLIST_BY_NAMESPACE else namespace.has
            response.body = _translated(response, namespace.unwrap, keep)

    def received_request(self, request: RemotingCommand) -> None:
        """Translate a request of a server."""
        if self.namespace:
            self._unwrap_fields(request)
            if request.body and request.code in JSON_REQUESTS:
                request.body = _translated(request, self.namespace.unwrap, self.namespace.has)

    def sent_response(self, code: int, response: RemotingCommand) -> None:
        """Translate the response to a server's request with this code."""
        if self.namespace and response.body and code in JSON_RESPONSES:
            response.body = _translated(response, self._wrap, None)

    def _wrap_fields(self, request: RemotingCommand) -> None:
        fields, wrap = request.ext_fields, self._wrap
        if request.code in ONE_LETTER_CODES:
            for name in SHORT_NAME_FIELDS:
                if name in fields:
                    fields[name] = wrap(fields[name])
        elif request.code in _KV_CODES:
            if fields.get("namespace") == ORDER_NAMESPACE:
                fields["key"] = wrap(fields.get("key", ""))
            return
        else:
            for name in NAME_FIELDS.intersection(fields):
                fields[name] = wrap(fields[name])
            if NAME_LIST_FIELD in fields:
                fields[NAME_LIST_FIELD] = ";".join(map(wrap, fields[NAME_LIST_FIELD].split(";")))
            if STATS_KEY_FIELD in fields:
                fields[STATS_KEY_FIELD] = "@".join(map(wrap, fields[STATS_KEY_FIELD].split("@")))
        for name in _PROPERTIES:
            if name in fields:
                fields[name] = translated_properties(fields[name], wrap)

    def _unwrap_fields(self, command: RemotingCommand) -> None:
        fields, unwrap = command.ext_fields, self.namespace.unwrap
        for name in NAME_FIELDS.intersection(fields):
            fields[name] = unwrap(fields[name])
        if "properties" in fields:
            fields["properties"] = translated_properties(fields["properties"], unwrap)


# --- JSON bodies ----------------------------------------------------------------------------------------------------


def _translated(command: RemotingCommand, translate: Callable[[str], str], keep: Callable[[str], bool] | None) -> bytes:
    """Return a command's body with other names. ``keep``: whether an entry of a list or map of names stays."""
    return dumps_fastjson(_value(loads_tolerant(command.body), translate, keep))


def _value(value: Any, translate: Callable[[str], str], keep: Callable[[str], bool] | None) -> Any:
    if isinstance(value, list):
        return [_value(item, translate, keep) for item in value]
    if not isinstance(value, dict):
        return value
    found: dict[Any, Any] = {}
    for key, item in value.items():
        if isinstance(key, tuple):  # a queue
            found[tuple(_value(dict(key), translate, keep).items())] = _value(item, translate, keep)
        elif key in BODY_NAMES and isinstance(item, str):
            found[key] = translate(item)
        elif key in BODY_NAME_LISTS and isinstance(item, list):
            found[key] = [translate(name) for name in item if keep is None or keep(name)]
        elif key in BODY_NAME_MAPS:
            found[key] = _name_map(item, translate, keep)
        else:
            found[key] = _value(item, translate, keep)
    return found


def _name_map(value: Any, translate: Callable[[str], str], keep: Callable[[str], bool] | None) -> Any:
    if isinstance(value, list):
        return [_name_map(item, translate, keep) if isinstance(item, dict) else item for item in value]
    if not isinstance(value, dict) or any(isinstance(key, tuple) for key in value):
        return _value(value, translate, keep)
    found: dict[Any, Any] = {}
    for key, item in value.items():
        names = str(key).split("@")
        if keep is None or all(map(keep, names)):
            found["@".join(map(translate, names))] = _value(item, translate, keep)
    return found
