"""END_TRANSACTION (37): a producer decides a transaction, by itself or because it was asked (39).
RESUME_CHECK_HALF_MESSAGE (323): one that was given up is asked about again.

Corresponds to org.apache.rocketmq.broker.processor.EndTransactionProcessor, with its order of checks and its remarks,
and to AdminBrokerProcessor.resumeCheckHalfMessage, which takes any message for a half message, decided ones too.
Two refusals are our own: of an offset that is no half message, and of a second decision about the same transaction.
"""

from __future__ import annotations

from contextlib import suppress

from spark_rocket.broker.delivery.delayed import Waiting
from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.broker.transactions.half_messages import IMMUNITY, Half
from spark_rocket.errors import RefusedError
from spark_rocket.model import HALF_TOPIC
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from spark_rocket.remoting.server.server import Channel
from spark_rocket.store.results import PutStatus


class EndTransactionProcessor(Processor):
    """Takes decisions."""

    @answers(RequestCode.END_TRANSACTION)
    def end_transaction(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = EndTransactionRequestHeader.from_ext(request.ext_fields)
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return None  # not decided yet: as Apache's broker, no answer
        service = self._service
        half = Half.view(service.store.look_message_by_offset(header.commit_log_offset))
        if half is None:
            raise _refused("Find prepared transaction message failed")
        if not header.from_transaction_check and self._is_too_late(half):
            raise _refused(
                "the transaction's time of immunity is over, wait to be asked", ResponseCode.ILLEGAL_OPERATION
            )
        if half.group != header.producer_group:
            raise _refused("The producer group wrong")
        if half.record.queue_offset != header.tran_state_table_offset:
            raise _refused("The transaction state table offset wrong")
        transactions = service.transactions
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
        stats = service.stats
        counts = stats.committed if header.commit_or_rollback == TRANSACTION_COMMIT else stats.rolled_back
        with suppress(ValueError):  # rolled back because nobody can tell where it was to go
            topic, _ = half.real_place()
            counts[topic] = counts.get(topic, 0) + 1
        return RemotingCommand.response(request)

    @answers(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    def resume_check(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ResumeCheckHalfMessageRequestHeader.from_ext(request.ext_fields)
        service = self._service
        _, offset = decode_offset_msg_id(header.msg_id or "")
        result = service.transactions.resume(service.store.look_message_by_offset(offset))
        if result.status is not PutStatus.PUT_OK:
            raise _refused(f"Put message back to {HALF_TOPIC} failed. {result.reason}")
        service.message_waits(Waiting(HALF_TOPIC, 0, service.clock()))
        return RemotingCommand.response(request)

    def _is_too_late(self, half: Half) -> bool:
        """A sender that asked for a time of immunity has that time to decide by itself."""
        if not find_property(half.properties, IMMUNITY):
            return False
        timeout = self._service.config.transaction_time_out
        age = self._service.clock() - half.record.born_timestamp
        return age > max(half.immunity_ms(timeout), timeout)


def _refused(why: str, code: ResponseCode = ResponseCode.SYSTEM_ERROR) -> RefusedError:
    return RefusedError(why, response_code=code)
