"""The rows of POP: messages that are popped, acknowledged, or wait, and the queues that consumers get."""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.requests import state
from spark_rocket.protocol.requests.messages import FILTER_HEADER
from spark_rocket.protocol.requests.needs import POPPED, Action, cluster, group, in_body, topic
from spark_rocket.protocol.requests.request_type import KIB, MIB, RequestType, table
from spark_rocket.protocol.wire.bodies.assignment import QueryAssignmentRequestBody, SetMessageRequestModeRequestBody
from spark_rocket.protocol.wire.bodies.consumer import BatchAckMessageRequestBody as _Acks
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.headers.consumer import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PopMessageRequestHeader,
)

_READ = (topic(Action.SUB), group(Action.SUB))
#: A redelivered message is acked in the retry topic of POP.
_SETTLE = (topic(Action.SUB, where=POPPED), group(Action.SUB))

POP: Mapping[int, RequestType] = table(
    RequestType(
        code=Code.POP_MESSAGE,
        header=PopMessageRequestHeader,
        max_header_bytes=FILTER_HEADER,
        state=(
            state.HELD_POPS,
            state.CONSUMER_GROUPS,
            state.CONSUMER_OFFSETS,
            state.GROUP_TOPICS,
            state.GROUP_COUNTS,
            state.ORDERED_POPS,
        ),
        needs=_READ,
    ),
    RequestType(
        code=Code.NOTIFICATION,
        header=NotificationRequestHeader,
        max_header_bytes=FILTER_HEADER,
        state=(state.HELD_POPS,),
        needs=_READ,
    ),
    RequestType(code=Code.PEEK_MESSAGE, header=PeekMessageRequestHeader, state=(state.CONSUMER_GROUPS,), needs=_READ),
    RequestType(
        code=Code.POLLING_INFO,
        header=PollingInfoRequestHeader,
        state=(state.CONSUMER_GROUPS,),
        needs=(group(Action.GET), topic(Action.GET)),
    ),
    RequestType(code=Code.ACK_MESSAGE, header=AckMessageRequestHeader, state=(state.ACKS,), needs=_SETTLE),
    RequestType(
        code=Code.BATCH_ACK_MESSAGE,
        body=_Acks,
        max_body_bytes=MIB,
        max_entries={"acks": 1_000, "acks.b": 4 * MIB},
        state=(state.ACKS,),
        needs=(
            group(
                Action.SUB,
                where=in_body(_Acks, lambda body: [ack.consumer_group for ack in body.acks]),
            ),
            topic(Action.SUB, where=in_body(_Acks, lambda body: [ack.topic for ack in body.acks])),
        ),
    ),
    RequestType(
        code=Code.CHANGE_MESSAGE_INVISIBLETIME,
        header=ChangeInvisibleTimeRequestHeader,
        state=(state.ACKS,),
        needs=_SETTLE,
    ),
    # A slave refuses it (broker/processors/refusals.py); a master has no handler for it.
    RequestType(code=Code.POP_ROLLBACK, needs=(cluster(Action.UPDATE),)),
    RequestType(
        code=Code.QUERY_ASSIGNMENT,
        body=QueryAssignmentRequestBody,
        max_body_bytes=64 * KIB,
        state=(state.ASSIGNMENT_ROUTES,),
        needs=(
            topic(Action.SUB, where=in_body(QueryAssignmentRequestBody, lambda body: [body.topic])),
            group(Action.SUB, where=in_body(QueryAssignmentRequestBody, lambda body: [body.consumer_group])),
        ),
    ),
    RequestType(
        code=Code.SET_MESSAGE_REQUEST_MODE,
        body=SetMessageRequestModeRequestBody,
        max_body_bytes=64 * KIB,
        state=(state.REQUEST_MODES,),
        needs=(
            topic(Action.UPDATE, where=in_body(SetMessageRequestModeRequestBody, lambda body: [body.topic])),
            group(Action.UPDATE, where=in_body(SetMessageRequestModeRequestBody, lambda body: [body.consumer_group])),
        ),
    ),
    RequestType(code=Code.GET_ALL_MESSAGE_REQUEST_MODE, state=(state.LARGE_RESPONSES,), needs=(cluster(Action.GET),)),
)
"""Request code -> its row."""
