"""The Admin class: families of methods, one in each module beside this one, and the methods that need several of them.

Traces are events that clients with tracing write to the trace topic. They are found by the message id, which is one of
the keys of the trace message. A consumption has two records, one before and one after; they become one event.
Corresponds to org.apache.rocketmq.tools.admin.DefaultMQAdminExt and to mqadmin's queryMsgTraceById.
"""

from __future__ import annotations

from dataclasses import replace

from spark_rocket.client.admin.accounts import AccountAdmin
from spark_rocket.client.admin.base import Query, done
from spark_rocket.client.admin.broker_rows import Failures
from spark_rocket.client.admin.brokers import BrokerAdmin
from spark_rocket.client.admin.groups import GroupAdmin
from spark_rocket.client.admin.message_rows import DeadLetterTopic, MessageTrace, MessageTrack, TraceEvent, TrackStatus
from spark_rocket.client.admin.messages import MessageAdmin
from spark_rocket.client.admin.name_servers import NameServerAdmin
from spark_rocket.client.admin.offsets import OffsetAdmin
from spark_rocket.client.admin.topic_rows import TopicKind
from spark_rocket.client.admin.topics import TopicAdmin
from spark_rocket.client.admin.users import UserAdmin
from spark_rocket.errors import TopicNotFoundError
from spark_rocket.model import DLQ_PREFIX, RETRY_PREFIX, TRACE_TOPIC, MessageExt, MessageQueue
from spark_rocket.protocol.filter.tags import TYPE_TAG, parse_tags
from spark_rocket.protocol.message_trace import TraceBean, TraceContext, TraceType, decode_trace_data
from spark_rocket.protocol.wire.bodies.client import BROADCASTING, CONSUME_ACTIVELY, SubscriptionData
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.headers.admin import DeleteSubscriptionGroupRequestHeader

_MAX_RECORDS = 1_000
_OUTCOMES = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED")
_KINDS = {
    TraceType.Pub: "SEND",
    TraceType.SubBefore: "CONSUME",
    TraceType.SubAfter: "CONSUME",
    TraceType.EndTransaction: "END_TRANSACTION",
    TraceType.Recall: "RECALL",
}


class Admin(NameServerAdmin, BrokerAdmin, AccountAdmin, UserAdmin, TopicAdmin, GroupAdmin, OffsetAdmin, MessageAdmin):
    """``with Admin("127.0.0.1:9876") as admin: admin.create_topic("orders", queues=8)``

    Topics are created on brokers, which register them; they are deleted on brokers and on name servers. A ``broker``
    argument is a broker's name or its address.
    """

    def message_trace(self, msg_id: str, *, trace_topic: str = TRACE_TOPIC) -> MessageTrace:
        """Return the traced operations on a message, by the id set by its sender, in order of time.

        Empty if none of its clients traces, or if the message is older than the retention of the trace topic.
        """
        try:
            records = self.query_messages(trace_topic, msg_id, max_num=_MAX_RECORDS)
        except TopicNotFoundError:
            records = []
        events: list[TraceEvent] = []
        for record in records:
            for context in decode_trace_data(record.body):
                for bean in context.trace_beans:
                    if bean.msg_id == msg_id:
                        _add(events, record, context, bean)
        return MessageTrace(msg_id, sorted(events, key=lambda event: event.time_ms))

    def delete_group(
        self, group: str, *, offsets: bool = True, topics: bool = False, cluster: str | None = None
    ) -> list[str]:
        """Delete a group on every master (of the cluster): its settings, and with ``offsets`` its offsets.

        With ``topics``, its retry topic and its dead letters are deleted as well; their names are returned. Online
        consumers recreate the group.
        """
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=offsets, remove_offset=offsets)
        query = Query(RequestCode.DELETE_SUBSCRIPTIONGROUP, f"the deletion of group {group}", done, header)
        for address in self._masters(None, cluster).values():
            self._ask(address, query)
        deleted = []
        for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group) if topics else ():
            try:
                self.topic_route(topic)
            except TopicNotFoundError:
                continue
            self.delete_topic(topic, cluster=cluster)
            deleted.append(topic)
        return deleted

    def message_track(self, message: MessageExt) -> list[MessageTrack]:
        """Return what each group that consumes the topic did with a message, derived from its committed offset.

        An offset beyond the message means that it was consumed, or was sent to the group's retry topic.
        """
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        groups = self.groups_of(message.topic)
        states = self.group_states(groups, topic=message.topic)
        tracks = []
        for group in groups:
            state = states[group]
            subscription = state.subscriptions.get(message.topic)
            if state.message_model == BROADCASTING:
                detail = "each member stores its own offsets"
                tracks.append(MessageTrack(group, TrackStatus.CONSUME_BROADCASTING, detail))
                continue
            committed = self._reader.committed_offset(group, queue)
            where = "no committed offset in the queue" if committed is None else f"committed offset {committed}"
            detail = f"{where}, message offset {message.queue_offset}"
            if committed is not None and committed > message.queue_offset:
                wanted = subscription is None or _wants(subscription, message)
                status = TrackStatus.CONSUMED if wanted else TrackStatus.CONSUMED_BUT_FILTERED
            elif not state.online:
                status = TrackStatus.NOT_ONLINE
            elif state.consume_type == CONSUME_ACTIVELY:
                status = TrackStatus.PULL
            else:
                status = TrackStatus.NOT_CONSUME_YET
            tracks.append(MessageTrack(group, status, detail, committed))
        return tracks

    def dead_letter_topics(self, *, failed: Failures | None = None) -> list[DeadLetterTopic]:
        """Return the groups that have had dead letters, with their current counts, sorted by group."""
        topics = [info for info in self.topic_list(failed=failed) if info.kind is TopicKind.DLQ]
        return [DeadLetterTopic.of(*found) for found in self.topic_states(topics, failed=failed).items()]


def _wants(subscription: SubscriptionData, message: MessageExt) -> bool:
    """Whether a subscription by tags matches a message. Only the broker can evaluate SQL92: always True."""
    if subscription.expression_type != TYPE_TAG:
        return True
    return parse_tags(subscription.sub_string).matches(message.tags)


def _add(events: list[TraceEvent], record: MessageExt, context: TraceContext, bean: TraceBean) -> None:
    """Add an event, or merge it into its other half."""
    after = context.trace_type is TraceType.SubAfter
    event = TraceEvent(
        kind=_KINDS[context.trace_type],
        time_ms=context.time_stamp or record.born_timestamp,
        group=context.group_name,
        client=bean.client_host or record.born_host[0],
        outcome=_outcome(context, bean),
        cost_ms=None if context.trace_type is TraceType.SubBefore else context.cost_time,
        topic=bean.topic,
        tags=bean.tags,
        keys=bean.keys,
        store_host=bean.store_host,
        body_bytes=bean.body_length,
        retry_times=bean.retry_times,
        request_id=context.request_id,
    )
    if context.request_id and event.kind == "CONSUME":
        for place, other in enumerate(events):
            if other.kind == "CONSUME" and other.request_id == context.request_id:
                first, last = (other, event) if after else (event, other)
                events[place] = replace(first, outcome=last.outcome, cost_ms=last.cost_ms)
                return
    events.append(event)


def _outcome(context: TraceContext, bean: TraceBean) -> str | None:
    if context.trace_type is TraceType.SubBefore:
        return None
    if context.trace_type is TraceType.EndTransaction:
        return bean.transaction_state
    if context.trace_type is TraceType.SubAfter and not context.success:
        return _OUTCOMES[context.context_code] if 0 < context.context_code < len(_OUTCOMES) else "FAILED"
    return "SUCCESS" if context.success else "FAILED"
