"""END_TRANSACTION (37): a producer commits or rolls back a transaction, unprompted or in response to a check (39); and
RESUME_CHECK_HALF_MESSAGE (323): checks of an abandoned half message start again.

Corresponds to EndTransactionProcessor, with the same order of checks and the same remarks, and to
AdminBrokerProcessor.resumeCheckHalfMessage, which accepts any message, even a decided one. Unlike Apache's broker,
END_TRANSACTION is also refused if the offset has no half message, and for a second decision about the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from spark_rocket.broker.delivery.delivery_timers import DeliveryTimers
from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.transactions.half_messages import IMMUNITY, HalfMessage
from spark_rocket.broker.transactions.transactional_message_service import TransactionalMessageService
from spark_rocket.errors import RefusedError
from spark_rocket.model import HALF_TOPIC
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import ResumeCheckHalfMessageRequestHeader
from spark_rocket.protocol.wire.headers.producer import EndTransactionRequestHeader
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import PutStatus


@dataclass(eq=False, kw_only=True)
class EndTransactionProcessor(Processor):
    """Decisions about half messages."""

    config: BrokerConfig
    clock: Callable[[], int]
    store: MessageStore
    stats: BrokerStats
    transactions: TransactionalMessageService
    delivery_timers: DeliveryTimers

    @handles(RequestCode.END_TRANSACTION)
    def end_transaction(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = EndTransactionRequestHeader.from_ext(request.ext_fields)
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return None  # not decided yet: no response, as in Apache's broker
        half = HalfMessage.view(self.store.look_message_by_offset(header.commit_log_offset))
        if half is None:
            raise _refused("Find prepared transaction message failed")
        if not header.from_transaction_check and self._is_too_late(half):
            raise _refused(
                "the transaction's immunity time has expired, wait for the check", ResponseCode.ILLEGAL_OPERATION
            )
        if half.group != header.producer_group:
            raise _refused("The producer group wrong")
        if half.record.queue_offset != header.tran_state_table_offset:
            raise _refused("The transaction state table offset wrong")
        transactions = self.transactions
        if transactions.is_decided(half):
            raise _refused("The transaction was decided before")
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            result = transactions.commit(half)
        else:
            result = transactions.rollback(half)
        if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
            raise _refused(result.reason, ResponseCode.SERVICE_NOT_AVAILABLE)
        if result.status is not PutStatus.PUT_OK:
            raise _refused(result.reason, ResponseCode.MESSAGE_ILLEGAL)
        stats = self.stats
        counts = stats.committed if header.commit_or_rollback == TRANSACTION_COMMIT else stats.rolled_back
        with suppress(ValueError):  # a half message without a valid destination can still be rolled back
            topic, _ = half.real_place()
            counts[topic] = counts.get(topic, 0) + 1
        return RemotingCommand.response(request)

    @handles(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    def resume_check(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ResumeCheckHalfMessageRequestHeader.from_ext(request.ext_fields)
        _, offset = decode_offset_msg_id(header.msg_id or "")
        result = self.transactions.resume(self.store.look_message_by_offset(offset))
        if result.status is not PutStatus.PUT_OK:
            raise _refused(f"Put message back to {HALF_TOPIC} failed. {result.reason}")
        self.delivery_timers.expect(HALF_TOPIC, self.clock())
        return RemotingCommand.response(request)

    def _is_too_late(self, half: HalfMessage) -> bool:
        """Whether the immunity time that the sender requested has expired; until then it may decide unprompted."""
        if not find_property(half.properties, IMMUNITY):
            return False
        timeout = self.config.transaction_time_out
        age = self.clock() - half.record.born_timestamp
        return age > max(half.immunity_ms(timeout), timeout)


def _refused(why: str, code: ResponseCode = ResponseCode.SYSTEM_ERROR) -> RefusedError:
    return RefusedError(why, code)
