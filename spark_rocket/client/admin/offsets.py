"""Offsets of groups: query, reset, clone.

A reset of an offline group commits the offsets. An online group is reset by its brokers (request code 222). Brokers of
5.x with ``useServerSideResetOffset``, their default, receive the offset of each queue, move the group immediately and
ignore commits of its members until they know the new offset. Other brokers send the members a time, and these move
themselves.

``timestamp_ms``: the first messages stored at or after it; 0 or a time before all of them is the beginning, -1 the end.

Corresponds to DefaultMQAdminExt.{resetOffsetNew, resetOffsetByQueueId, cloneGroupOffset}.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.client.admin.base import AdminBase, Query, done
from spark_rocket.client.admin.brokers import BROKER_SETTINGS
from spark_rocket.client.admin.group_rows import PlannedReset, QueueLag
from spark_rocket.client.admin.groups import client_ids, connection_query
from spark_rocket.errors import BrokerError, ClientError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.consumer import ResetOffsetBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.headers.admin import CloneGroupOffsetRequestHeader, ResetOffsetRequestHeader

END = -1


class OffsetAdmin(AdminBase):
    def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the group's next offsets, None for queues without one."""
        return {queue: self._reader.committed_offset(group, queue) for queue in self.queues(topic)}

    def consumer_lag(self, group: str, topic: str) -> list[QueueLag]:
        """Return the lag of a group, queue by queue."""
        return [
            QueueLag(queue, *ends, self._reader.committed_offset(group, queue))
            for queue, ends in self.offsets(topic).items()
        ]

    def plan_reset(self, group: str, topic: str, timestamp_ms: int) -> list[PlannedReset]:
        """Return the offsets that ``reset_offsets`` would set, queue by queue; nothing is changed."""
        return [
            PlannedReset(queue, self._reader.committed_offset(group, queue), self._at(queue, timestamp_ms))
            for queue in self.queues(topic)
        ]

    def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, online: bool = False
    ) -> dict[MessageQueue, int]:
        """Reset a group to the first messages stored at or after a time, -1 for the end; return the new offsets.

        Rejected while consumers are online, because they would get duplicates or skip messages, unless ``online``.
        """
        is_online = self._is_online(group, topic, online)
        targets = {queue: self._at(queue, timestamp_ms) for queue in self.queues(topic)}
        return self._reset(group, topic, targets, timestamp_ms, is_online)

    def reset_offsets_to(
        self, group: str, offsets: Mapping[MessageQueue, int], *, online: bool = False
    ) -> dict[MessageQueue, int]:
        """Reset a group to given offsets; other queues stay unchanged. ``online``: as in ``reset_offsets``."""
        if not offsets:
            return {}
        topics = {queue.topic for queue in offsets}
        if len(topics) != 1:
            raise ClientError(f"The queues belong to {len(topics)} topics.", remedy="Reset one topic at a time.")
        topic = topics.pop()
        is_online = self._is_online(group, topic, online)
        ends = self.offsets(topic)
        for queue, offset in offsets.items():
            low, high = ends.get(queue, (0, -1))
            if not low <= offset <= high:
                there = f"valid offsets are {low} to {high}" if high >= 0 else "the queue does not exist"
                raise ClientError(
                    f"Cannot reset group {group!r} to offset {offset} of queue {queue.queue_id} of topic {topic!r} on"
                    f" {queue.broker_name}: {there}.",
                    remedy="Use an offset of an existing message, or the end of the queue.",
                )
        return self._reset(group, topic, dict(offsets), None, is_online)

    def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Set one group's offsets in a topic to those of another."""
        header = CloneGroupOffsetRequestHeader(src_group=source, dest_group=target, topic=topic, offline=False)
        code, what = RequestCode.CLONE_GROUP_OFFSET, f"the offsets of {source} for {target}"
        for address in self._topic_masters(topic).values():
            self._ask(address, Query(code, what, done, header, topic=topic))

    def _at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        if timestamp_ms < 0:
            return self._reader.max_offset(queue)
        if timestamp_ms == 0:
            return self._reader.min_offset(queue)
        return self._reader.offset_for_time(queue, timestamp_ms)

    def _is_online(self, group: str, topic: str, allowed: bool) -> bool:
        members = client_ids(self._ask_each(self._topic_masters(topic), connection_query(group), None).values())
        if members and not allowed:
            raise BrokerError(
                f"Group {group!r} has online consumers: {', '.join(members)}.",
                remedy="Stop them first, or allow a reset while they are online (online=True).",
                response_code=ResponseCode.ILLEGAL_OPERATION,
            )
        return bool(members)

    def _reset(
        self, group: str, topic: str, targets: dict[MessageQueue, int], timestamp_ms: int | None, is_online: bool
    ) -> dict[MessageQueue, int]:
        if not is_online:
            return self._commit_all(group, topic, targets)
        by_broker: dict[str, dict[MessageQueue, int]] = {}
        for queue, offset in targets.items():
            by_broker.setdefault(queue.broker_name, {})[queue] = offset
        by_time = [broker for broker in by_broker if not self._resets_by_itself(broker)]
        if by_time and timestamp_ms is None:
            raise BrokerError(
                f"Group {group!r} has online consumers, and broker {by_time[0]!r} resets online groups only to a time.",
                remedy="Stop them first, or reset to a time.",
                response_code=ResponseCode.ILLEGAL_OPERATION,
            )
        done: dict[MessageQueue, int] = {}
        for broker, queues in by_broker.items():
            if broker in by_time:
                done |= self._invoke_reset(group, topic, broker, END if timestamp_ms is None else timestamp_ms)
                continue
            for queue, offset in queues.items():
                done |= self._invoke_reset(group, topic, broker, END, queue.queue_id, offset)
        return done

    def _commit_all(self, group: str, topic: str, targets: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        for queue, offset in targets.items():
            self._reader.commit_offset(group, queue, offset)
            # An earlier reset is pending at the members: the broker ignores commits, but reports success.
            if self._reader.committed_offset(group, queue) != offset and self._resets_by_itself(queue.broker_name):
                self._invoke_reset(group, topic, queue.broker_name, END, queue.queue_id, offset)
        return targets

    def _resets_by_itself(self, broker: str) -> bool:
        settings = self._ask(self._address(broker), BROKER_SETTINGS).values
        return settings.get("useServerSideResetOffset") == "true"

    def _invoke_reset(
        self,
        group: str,
        topic: str,
        broker: str,
        timestamp_ms: int,
        queue_id: int = -1,
        offset: int | None = None,
    ) -> dict[MessageQueue, int]:
        header = ResetOffsetRequestHeader(
            group=group, topic=topic, timestamp=timestamp_ms, is_force=True, queue_id=queue_id, offset=offset
        )
        code, what = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, f"the reset of group {group}"
        query = Query(
            code, what, lambda response: ResetOffsetBody.from_json(response.body).offset_table, header, topic=topic
        )
        return self._ask(self._address(broker), query)
