"""The rows of sends, transactions, pulls and queries for messages."""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.requests import state
from spark_rocket.protocol.requests.needs import (
    Action,
    Need,
    Permission,
    Resource,
    cluster,
    fields,
    group,
    stored_at,
    topic,
)
from spark_rocket.protocol.requests.request_type import KIB, RawBody, RequestType, table
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.protocol.wire.headers.admin import ResumeCheckHalfMessageRequestHeader
from spark_rocket.protocol.wire.headers.consumer import ConsumerSendMsgBackRequestHeader
from spark_rocket.protocol.wire.headers.messages import (
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from spark_rocket.protocol.wire.headers.producer import (
    EndTransactionRequestHeader,
    RecallMessageRequestHeader,
    SendMessageRequestHeader,
)
from spark_rocket.protocol.wire.headers.pull import PullMessageRequestHeader

# Message properties have at most 32,767 bytes; clients that escape JSON as ASCII send six for one.
_PROPERTIES_HEADER = 256 * KIB
# A filter expression has at most 65,536 characters (protocol/filter/tags.py).
FILTER_HEADER = 256 * KIB


def _send(code: int, *needs: Need, one_letter: bool = False) -> RequestType:
    return RequestType(
        code=code,
        header=SendMessageRequestHeader,
        one_letter=one_letter,
        body=RawBody.MESSAGE_BATCH,
        max_header_bytes=_PROPERTIES_HEADER,
        max_body_bytes=MAX_FRAME_LENGTH,  # maxMessageSize is smaller and a setting; the processor checks it
        state=(state.TOPICS,),
        needs=needs,
    )


def _reply(code: int, *needs: Need, one_letter: bool = False) -> RequestType:
    return RequestType(
        code=code,
        header=SendMessageRequestHeader,
        one_letter=one_letter,
        body=RawBody.MESSAGE,
        max_header_bytes=_PROPERTIES_HEADER,
        max_body_bytes=MAX_FRAME_LENGTH,
        state=(state.RELAYED_REQUESTS, state.TOPICS),
        needs=needs,
    )


def _pull(code: int) -> RequestType:
    return RequestType(
        code=code,
        header=PullMessageRequestHeader,
        max_header_bytes=FILTER_HEADER,
        state=(
            state.HELD_PULLS,
            state.CONSUMER_GROUPS,
            state.CONSUMER_OFFSETS,
            state.GROUP_TOPICS,
            state.GROUP_COUNTS,
        ),
        needs=(topic(Action.SUB), group(Action.SUB)),
    )


MESSAGES: Mapping[int, RequestType] = table(
    # The processor accepts both names of the topic, and uses the last one.
    _send(Code.SEND_MESSAGE, topic(Action.PUB, where=fields("topic", "b"))),
    _send(Code.SEND_MESSAGE_V2, topic(Action.PUB, where=fields("b")), one_letter=True),
    _send(Code.SEND_BATCH_MESSAGE, topic(Action.PUB, where=fields("b")), one_letter=True),
    _reply(Code.SEND_REPLY_MESSAGE, topic(Action.PUB)),
    _reply(Code.SEND_REPLY_MESSAGE_V2, topic(Action.PUB, where=fields("b")), one_letter=True),
    RequestType(
        code=Code.CONSUMER_SEND_MSG_BACK,
        header=ConsumerSendMsgBackRequestHeader,
        state=(state.TOPICS, state.CONSUMER_GROUPS, state.GROUP_COUNTS),
        # The message is delivered to the group again, so the sender must be able to read it. Apache checks the group.
        needs=(
            group(Action.SUB, where=fields("group")),
            topic(Action.SUB, where=stored_at(ConsumerSendMsgBackRequestHeader, lambda header: header.offset)),
        ),
    ),
    RequestType(
        code=Code.END_TRANSACTION,
        header=EndTransactionRequestHeader,
        needs=(
            topic(Action.PUB, where=stored_at(EndTransactionRequestHeader, lambda header: header.commit_log_offset)),
        ),
    ),
    RequestType(
        code=Code.RESUME_CHECK_HALF_MESSAGE,
        header=ResumeCheckHalfMessageRequestHeader,
        needs=(cluster(Action.UPDATE),),
    ),
    RequestType(code=Code.RECALL_MESSAGE, header=RecallMessageRequestHeader, needs=(topic(Action.PUB),)),
    _pull(Code.PULL_MESSAGE),
    _pull(Code.LITE_PULL_MESSAGE),
    RequestType(code=Code.QUERY_MESSAGE, header=QueryMessageRequestHeader, needs=(topic(Action.SUB, Action.GET),)),
    RequestType(
        code=Code.VIEW_MESSAGE_BY_ID,
        header=ViewMessageRequestHeader,
        needs=(
            Need(
                Resource.TOPIC,
                (Action.GET,),
                stored_at(ViewMessageRequestHeader, lambda header: header.offset),
                Permission.SUB,  # the response has the message
            ),
        ),
    ),
    RequestType(
        code=Code.QUERY_CONSUME_QUEUE,
        header=QueryConsumeQueueRequestHeader,
        state=(state.LARGE_RESPONSES,),
        needs=(topic(Action.GET),),
    ),
)
"""Request code -> its row."""
