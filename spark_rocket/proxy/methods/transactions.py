"""EndTransaction: commits and rollbacks of producers, and checks of undecided transactions.

The transaction id of SendMessage contains the position of the half message, ``<offset in the half topic>-<offset in the
log>-<broker>``. END_TRANSACTION (37) needs nothing else, so a transaction can be ended after a restart of the broker
and without a time limit. (Apache's proxy stores this in memory for 30 s.) The broker refuses an id that does not belong
to a half message of the topic's producers.

Producers have no groups. A transaction belongs to its topic, as in Apache's proxy, and checks can go to any producer of
the topic. A broker's CHECK_TRANSACTION_STATE (39) becomes a RecoverOrphanedTransactionCommand of Telemetry.

Corresponds to org.apache.rocketmq.proxy.grpc.v2.transaction.EndTransactionActivity and
proxy.service.transaction.TransactionId.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from spark_rocket.common.logs import RateLimited
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.producer import CheckTransactionStateRequestHeader
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster
from spark_rocket.proxy.messages.message_out import body_of, properties_of, write_message
from spark_rocket.proxy.messages.names import topic_of
from spark_rocket.proxy.messages.statuses import StatusError, refusal_of, status
from spark_rocket.proxy.messaging import Family
from spark_rocket.proxy.methods.client_registry import ClientRegistry
from spark_rocket.proxy.transport.proxy_context import ProxyContext

_often = RateLimited(logging.getLogger(__name__))

_Code = definitions.Code
_RESOLUTIONS = {
    int(definitions.TransactionResolution.COMMIT): TRANSACTION_COMMIT,
    int(definitions.TransactionResolution.ROLLBACK): TRANSACTION_ROLLBACK,
}
_SERVER_CHECK = int(definitions.TransactionSource.SOURCE_SERVER_CHECK)
_MAX_OFFSET = (1 << 63) - 1


def transaction_id(sent: Mapping[str, str], broker_name: str) -> str:
    """Return the transaction id of a half message, from the broker's response to its send."""
    return make_transaction_id(int(sent["queueOffset"]), int(sent["msgId"][-16:], 16), broker_name)


def make_transaction_id(half_offset: int, log_offset: int, broker_name: str) -> str:
    """Return the transaction id of the half message at these offsets of the half topic and of the log."""
    return f"{half_offset}-{log_offset}-{broker_name}"


def parse_transaction_id(text: str) -> tuple[str, str, str] | None:
    """Parse a transaction id: offsets in the half topic and the log, and the broker's name. None if it is malformed."""
    half_offset, _, rest = text.partition("-")
    log_offset, _, broker_name = rest.partition("-")
    if not broker_name or not (_is_offset(half_offset) and _is_offset(log_offset)):
        return None
    return half_offset, log_offset, broker_name


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _MAX_OFFSET


class TransactionFamily(Family):
    """Ends transactions, and checks undecided ones."""

    def __init__(self, cluster: ProxyCluster, clients: ClientRegistry) -> None:
        self._cluster = cluster
        self._clients = clients
        cluster.on_push[RequestCode.CHECK_TRANSACTION_STATE] = self.recover

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"EndTransaction": self.end_transaction}

    async def end_transaction(self, context: ProxyContext, request: Any) -> Any:
        topic = topic_of(request.topic)
        decision = _RESOLUTIONS.get(request.resolution)
        parts = parse_transaction_id(request.transaction_id)
        if parts is None:
            raise StatusError(
                _Code.INVALID_TRANSACTION_ID, "malformed transaction id: use the id in the response of SendMessage"
            )
        if not await self._cluster.is_broker(parts[2]):
            raise StatusError(
                _Code.INVALID_TRANSACTION_ID,
                f"broker {parts[2][:80]!r} of the transaction id is not in this cluster",
            )
        if decision is not None:  # otherwise it stays undecided until a check
            await self._decide(topic, decision, parts, request)
        return definitions.EndTransactionResponse(status=status(_Code.OK))

    async def _decide(self, topic: str, decision: int, parts: tuple[str, str, str], request: Any) -> None:
        half_offset, log_offset, broker = parts
        ext = {
            "topic": topic,
            "producerGroup": topic,
            "tranStateTableOffset": half_offset,
            "commitLogOffset": log_offset,
            "commitOrRollback": str(decision),
            "fromTransactionCheck": "true" if request.source == _SERVER_CHECK else "false",
            "msgId": request.message_id,
            "transactionId": request.transaction_id,
        }
        response = await self._cluster.ask(broker, RequestCode.END_TRANSACTION, ext)
        if response.code == ResponseCode.SYSTEM_ERROR:  # unknown half message, another producer's, or already ended
            raise StatusError(_Code.INVALID_TRANSACTION_ID, response.remark or "unknown transaction")
        if response.code == ResponseCode.ILLEGAL_OPERATION:
            raise StatusError(_Code.PRECONDITION_FAILED, response.remark or "the transaction cannot be ended now")
        if response.code != ResponseCode.SUCCESS:
            raise refusal_of(response)

    def recover(self, broker: str, request: RemotingCommand) -> None:
        """Relay CHECK_TRANSACTION_STATE (39) to a producer of the topic. Without one, the broker retries."""
        header = CheckTransactionStateRequestHeader.from_ext(request.ext_fields)
        record = view_record(request.body)
        topic = str(record.topic, "utf-8")
        command = definitions.TelemetryCommand()
        recovery = command.recover_orphaned_transaction_command
        recovery.transaction_id = make_transaction_id(header.tran_state_table_offset, header.commit_log_offset, broker)
        body = body_of(record, self._clients.max_body_size)
        write_message(recovery.message, record, properties_of(record), topic, body)
        if not self._clients.ask_producer_of(topic, command):
            text = "cannot check a transaction of topic %s: no producer has an open Telemetry stream"
            _often.warning(topic, text, topic)
