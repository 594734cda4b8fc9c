"""The rows of requests that brokers send to clients. Clients have no bounds and no access control."""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.requests.request_type import RawBody, RequestType, table
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.headers.admin import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from spark_rocket.protocol.wire.headers.membership import NotifyConsumerIdsChangedRequestHeader
from spark_rocket.protocol.wire.headers.producer import CheckTransactionStateRequestHeader, ReplyMessageRequestHeader

SENT_TO_CLIENTS: Mapping[int, RequestType] = table(
    RequestType(code=Code.CHECK_TRANSACTION_STATE, header=CheckTransactionStateRequestHeader, needs=()),
    RequestType(code=Code.NOTIFY_CONSUMER_IDS_CHANGED, header=NotifyConsumerIdsChangedRequestHeader, needs=()),
    RequestType(code=Code.RESET_CONSUMER_CLIENT_OFFSET, header=ResetOffsetRequestHeader, needs=()),
    RequestType(code=Code.GET_CONSUMER_STATUS_FROM_CLIENT, header=GetConsumerStatusRequestHeader, needs=()),
    RequestType(
        code=Code.PUSH_REPLY_MESSAGE_TO_CLIENT, header=ReplyMessageRequestHeader, body=RawBody.MESSAGE, needs=()
    ),
)
"""Request code -> its row."""
