"""The Admin class, and its last family of methods: message traces.

Each module has one family of methods and builds on the one before: name servers and brokers → accounts → users →
topics → groups → offsets → messages → traces.

Traces are events that clients with tracing write to the trace topic. They are found by the message id, which is one of
the keys of the trace message. A consumption has two records, one before and one after; they become one event.
Thread-safety: all methods. Corresponds to org.apache.rocketmq.tools.admin.DefaultMQAdminExt and to mqadmin's
queryMsgTraceById.
"""

from __future__ import annotations

from dataclasses import replace

from spark_rocket.client.admin.message_rows import MessageTrace, TraceEvent
from spark_rocket.client.admin.messages import MessageAdmin
from spark_rocket.errors import TopicNotFoundError
from spark_rocket.model import TRACE_TOPIC, MessageExt
from spark_rocket.protocol.message_trace import TraceBean, TraceContext, TraceType, decode_trace_data

_MAX_RECORDS = 1_000
_OUTCOMES = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED")
_KINDS = {
    TraceType.Pub: "SEND",
    TraceType.SubBefore: "CONSUME",
    TraceType.SubAfter: "CONSUME",
    TraceType.EndTransaction: "END_TRANSACTION",
    TraceType.Recall: "RECALL",
}


class Admin(MessageAdmin):
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
