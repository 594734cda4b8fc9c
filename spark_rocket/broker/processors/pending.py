"""Decisions about messages that are stored but not yet delivered.

* END_TRANSACTION (37): a producer commits or rolls back a transaction, unprompted or in response to a check (39).
* RESUME_CHECK_HALF_MESSAGE (323): checks of an abandoned half message start again.
* RECALL_MESSAGE (370): cancels a timed message.

A recall is also stored as a message: in the timer's topic, due in the same second as the message that it cancels, with
the topic and unique key of that message. Once the recall is acknowledged, the message is not delivered.

Corresponds to org.apache.rocketmq.broker.processor.{EndTransactionProcessor, RecallMessageProcessor}, with the same
order of checks and the same remarks, and to AdminBrokerProcessor.resumeCheckHalfMessage, which accepts any message,
even a decided one. Unlike Apache's broker, END_TRANSACTION is also refused if the offset has no half message, and for a
second decision about the same transaction.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from spark_rocket.broker.delivery.delayed import Waiting
from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.broker.transactions.half_messages import IMMUNITY, Half
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.model import HALF_TOPIC
from spark_rocket.protocol.ids import RecallMessageHandle, decode_offset_msg_id
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from spark_rocket.protocol.record.properties import encode_properties, find_property
from spark_rocket.protocol.wire.codes import PERM_WRITE, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import ResumeCheckHalfMessageRequestHeader
from spark_rocket.protocol.wire.headers.producer import EndTransactionRequestHeader, RecallMessageRequestHeader
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.results import PutStatus

_TAG = "_RECALL_TAG_"


class PendingMessageProcessor(Processor):
    """Commits, rollbacks and recalls of pending messages."""

    @answers(RequestCode.END_TRANSACTION)
    def end_transaction(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = EndTransactionRequestHeader.from_ext(request.ext_fields)
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return None  # not decided yet: no response, as in Apache's broker
        service = self._service
        half = Half.view(service.store.look_message_by_offset(header.commit_log_offset))
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
        with suppress(ValueError):  # a half message without a valid destination can still be rolled back
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
        """Whether the immunity time that the sender requested has expired; until then it may decide unprompted."""
        if not find_property(half.properties, IMMUNITY):
            return False
        timeout = self._service.config.transaction_time_out
        age = self._service.clock() - half.record.born_timestamp
        return age > max(half.immunity_ms(timeout), timeout)

    @answers(RequestCode.RECALL_MESSAGE)
    def recall_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        service, config = self._service, self._service.config
        header = RecallMessageRequestHeader.from_ext(request.ext_fields)
        handle = self._recall_handle(header)
        now = service.clock()
        properties = {
            "TAGS": _TAG,
            "TIMER_DEL_UNIQKEY": f"{handle.topic}+{handle.message_id}",
            "UNIQ_KEY": handle.message_id,
            "TIMER_DELIVER_MS": handle.timestamp,
            "BORN_TIMESTAMP": str(now),
            "PGROUP": header.producer_group or "",
        }
        waiting = service.delays.apply(properties, handle.topic, 0)
        if waiting is None:
            raise _recall_refused("timestamp invalid")
        result = service.store.put_message(
            waiting.topic,
            waiting.queue_id,
            b"0",
            encode_properties(properties),
            born_timestamp=now,
            born_host=parse_address(channel.remote_addr),
        )
        if result.status is not PutStatus.PUT_OK:
            raise RefusedError(f"recall failed, execute error: {result.reason}", ResponseCode.SYSTEM_ERROR)
        service.message_waits(waiting)
        ext = {"msgId": handle.message_id, "MSG_REGION": config.region_id}
        answer = RemotingCommand.response(request, ResponseCode.SUCCESS, None, ext)
        if service.stored.waits:
            service.stored.when_stored(result.end_physical_offset, partial(self._write_recall, channel, answer))
            return None
        return answer

    @staticmethod
    def _write_recall(channel: Channel, answer: RemotingCommand, code: ResponseCode) -> None:
        """Respond with success whatever ``code`` is: a stored recall is valid, as in Apache's broker."""
        channel.write(answer)

    def _recall_handle(self, header: RecallMessageRequestHeader) -> RecallMessageHandle:
        """Decode the handle and check that the recall is permitted and the message still pending."""
        service, config = self._service, self._service.config
        if not config.recall_message_enable:
            raise RefusedError("recall failed, operation is forbidden", ResponseCode.NO_PERMISSION)
        writable = config.broker_permission & PERM_WRITE or config.allow_recall_when_broker_not_writeable
        if service.clock() < config.start_accept_send_request_time_stamp or not writable:
            raise _recall_refused("broker service not available", ResponseCode.SERVICE_NOT_AVAILABLE)
        if service.topics.get(header.topic) is None:
            raise _recall_refused(f"the topic[{header.topic}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        try:
            handle = RecallMessageHandle.decode(header.recall_handle)
        except ProtocolError:
            raise RefusedError("recall handle is invalid", ResponseCode.ILLEGAL_OPERATION) from None
        if handle.topic != header.topic:
            raise _recall_refused("topic not match")
        if handle.broker_name != config.broker_name:
            raise _recall_refused("broker service not available")
        digits = handle.timestamp.isascii() and handle.timestamp.isdigit() and len(handle.timestamp) < 20
        left = int(handle.timestamp) - service.clock() if digits else 0
        if not 0 < left < config.timer_max_delay_sec * 1000:
            raise _recall_refused("timestamp invalid")
        return handle


def _refused(why: str, code: ResponseCode = ResponseCode.SYSTEM_ERROR) -> RefusedError:
    return RefusedError(why, code)


def _recall_refused(why: str, code: ResponseCode = ResponseCode.ILLEGAL_OPERATION) -> RefusedError:
    return RefusedError(f"recall failed, {why}", code)
