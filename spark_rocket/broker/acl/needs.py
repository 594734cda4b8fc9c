"""Permissions required by each request code.

* ``NEEDS``: the request requires permissions on topics and groups, see below.
* ``OPEN``: any valid account is sufficient; the response has no message data, and nothing is changed.
* All other codes, including those added in future, require an account with ``admin: true``.

==================================================  ====================================================================
send 10, 310, 320, reply 324, 325, recall 370       PUB on the topic
send to ``%RETRY%group``                            SUB on the group
send back 36                                        SUB on the group, and on the topic of the message at the offset
end of a transaction 37                             PUB on the half message's topic
pull 11, 361; pop, ack, peek etc.                   SUB on the topic and on the group
offsets 15                                          SUB on the topic and on the group
query 12, 33                                        SUB on the topic; for 33, that of the message at the offset
heartbeat 34                                        SUB on each consumer's group and its topics
35, 38, 41, 42                                      SUB on the group
==================================================  ====================================================================

A topic ``%RETRY%group`` belongs to that group. All accounts may send to the trace topic and to reply topics.

Apache's ACL 1.0 does not check requests that pop, ack, peek, reply, lock queues, end a transaction or view a message by
id, nor the message that is sent back. It has a list of administrators' codes, which does not include codes added later.

Requests with an offset (33, 36, 37) are handled in ``control``. Thread-safety: pure functions.
Corresponds to PlainAccessResource.parse.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_rocket.acl.rules import GROUP, PUB, SUB, Need, Needs, for_all, need_of_topic
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, QueryAssignmentRequestBody
from spark_rocket.protocol.wire.bodies.client import HeartbeatData
from spark_rocket.protocol.wire.bodies.consumer import BatchAckMessageRequestBody
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.request_limits import body_of


def _sent(*fields: str) -> Callable[[RemotingCommand], Needs]:
    """Needs of a send: the topics in all of these fields must be permitted."""

    def needs(request: RemotingCommand) -> Needs:
        ext = request.ext_fields
        return tuple(
            [need_of_topic(topic, PUB) for field in fields if (topic := ext.get(field)) and not for_all(topic)]
        )

    return needs


def _read(request: RemotingCommand) -> Needs:
    """Needs of a read: the fields ``topic`` and ``consumerGroup``, if present."""
    ext = request.ext_fields
    topic, group = ext.get("topic"), ext.get("consumerGroup")
    if topic and group:
        return (need_of_topic(topic, SUB), (GROUP, group, SUB))
    return (*((need_of_topic(topic, SUB),) if topic else ()), *(((GROUP, group, SUB),) if group else ()))


def _group(field: str) -> Callable[[RemotingCommand], Needs]:
    def needs(request: RemotingCommand) -> Needs:
        group = request.ext_fields.get(field)
        return ((GROUP, group, SUB),) if group else ()

    return needs


def _heartbeat(request: RemotingCommand) -> Needs:
    found: dict[Need, None] = {}
    for consumer in body_of(request, HeartbeatData).consumer_data_set:
        found[(GROUP, consumer.group_name, SUB)] = None
        for subscription in consumer.subscription_data_set:
            found[need_of_topic(subscription.topic, SUB)] = None
    return tuple(found)


def _locked(request: RemotingCommand) -> Needs:
    group = body_of(request, LockBatchRequestBody).consumer_group if request.body else None
    return ((GROUP, group, SUB),) if group else ()


def _assigned(request: RemotingCommand) -> Needs:
    asked = body_of(request, QueryAssignmentRequestBody)
    return (need_of_topic(asked.topic, SUB), (GROUP, asked.consumer_group, SUB))


def _acked(request: RemotingCommand) -> Needs:
    found: dict[Need, None] = {}
    for ack in body_of(request, BatchAckMessageRequestBody).acks if request.body else ():
        found[(GROUP, ack.consumer_group, SUB)] = None
        found[need_of_topic(ack.topic, SUB)] = None
    return tuple(found)


NEEDS: dict[int, Callable[[RemotingCommand], Needs]] = {
    RequestCode.SEND_MESSAGE: _sent("topic", "b"),  # the processor accepts both names, and uses the last one
    RequestCode.SEND_MESSAGE_V2: _sent("b"),
    RequestCode.SEND_BATCH_MESSAGE: _sent("b"),
    RequestCode.SEND_REPLY_MESSAGE: _sent("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _sent("b"),
    RequestCode.RECALL_MESSAGE: _sent("topic"),
    RequestCode.PULL_MESSAGE: _read,
    RequestCode.LITE_PULL_MESSAGE: _read,
    RequestCode.QUERY_MESSAGE: _read,
    RequestCode.UPDATE_CONSUMER_OFFSET: _read,
    RequestCode.POP_MESSAGE: _read,
    RequestCode.PEEK_MESSAGE: _read,
    RequestCode.ACK_MESSAGE: _read,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _read,
    RequestCode.NOTIFICATION: _read,
    RequestCode.BATCH_ACK_MESSAGE: _acked,
    RequestCode.QUERY_ASSIGNMENT: _assigned,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _group("consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group("consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: _locked,
    RequestCode.UNLOCK_BATCH_MQ: _locked,
}


OPEN: frozenset[int] = frozenset(
    {
        RequestCode.QUERY_BROKER_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_CONFIG_LIST,
        RequestCode.GET_TOPIC_NAME_LIST,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_TIMER_METRICS,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.POLLING_INFO,
    }
)
