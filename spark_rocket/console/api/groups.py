"""Endpoints of consumer groups: the list, a group with lag, members and queues, resets and other changes.

Corresponds to ConsumerController of RocketMQ's dashboard.
"""

from __future__ import annotations

from typing import Any

from spark_rocket.client.admin import QueueProgress
from spark_rocket.common.attributes import pick
from spark_rocket.common.system import now_ms
from spark_rocket.common.units import future_text
from spark_rocket.console.api.context import ApiContext, ApiRequest, confirmed, page_of, place
from spark_rocket.console.responses import Refused
from spark_rocket.console.sampler import GROUPS
from spark_rocket.console.state import GroupRecord, queue_label
from spark_rocket.errors import ClientError
from spark_rocket.model import RETRY_PREFIX, MessageQueue

_COLUMNS = ("name", "kind", "members", "lag", "rate", "topics")
_DRAWN = 8  # queues
_SETTINGS = (
    "consume_enable retryQueues=retry_queue_nums retries=retry_max_times ordered=consume_message_orderly"
    " broadcast=consume_broadcast_enable"
)
EARLIEST, LATEST = 0, -1


def _place(progress: QueueProgress) -> tuple[bool, MessageQueue]:
    """The sort key of a queue: retry topics come last."""
    return progress.queue.topic.startswith(RETRY_PREFIX), progress.queue


class GroupApi:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._sampler = context.sampler

    def list(self, request: ApiRequest) -> dict[str, Any]:
        self._sampler.note_view(GROUPS)
        own = request.flag("own")
        with self._sampler.lock:
            rows = [record.to_json() for record in self._sampler.groups.values() if own or not record.is_own]
        return {
            "known": self._sampler.is_known(GROUPS),
            "refresh": self._context.refresh_ms(),
            **self._sampler.problems(),
            **page_of(rows, request, names=_COLUMNS),
        }

    def names(self, request: ApiRequest) -> dict[str, Any]:
        with self._sampler.lock:
            return {"names": sorted(name for name, record in self._sampler.groups.items() if not record.is_own)}

    def show(self, request: ApiRequest) -> dict[str, Any]:
        """Return a group's present state; with ``known`` the cached sample, if any, for a fast first display."""
        group = request.path["group"]
        known = self._sampler.groups.get(group) if request.flag("known") else None
        refresh = 0 if known is not None else self._context.fresh_ms()
        record = known or self._record(group)
        with self._sampler.lock:
            shown = {"refresh": refresh, "group": record.to_json(), **self._details(record)}
        if known is not None and known.state is None:  # unknown, not empty
            shown |= {"queues": None, "members": None, "subscriptions": None}
        return shown

    def _record(self, group: str) -> GroupRecord:
        record = self._sampler.fresh_group(group)
        if record is None:
            raise ClientError(
                f"Unknown group {group!r}.",
                remedy="It may have been deleted: see the list.",
                code="NO_SUCH_GROUP",
            )
        return record

    def _details(self, record: GroupRecord) -> dict[str, Any]:
        state = record.state
        if state is None:
            return {"queues": [], "members": [], "subscriptions": [], "series": record.lag.to_json(), "drawn": 0}
        by_lag = sorted(state.queues, key=lambda q: (-q.lag, *_place(q)))
        labels = [queue_label(progress.queue) for progress in by_lag[:_DRAWN]]
        return {
            "queues": [
                place(progress.queue)
                | pick(progress, "end=broker_offset committed=consumer_offset lag lastConsumed=last_timestamp?")
                | {"delay": record.delays.get(progress.queue, 0) if progress.lag else 0}
                for progress in sorted(state.queues, key=_place)
            ],
            "members": [pick(member, "id=client_id address language version brokers") for member in state.members],
            "subscriptions": [
                {"topic": name} | pick(data, "expression=sub_string type=expression_type")
                for name, data in sorted(state.subscriptions.items())
            ],
            **pick(state, "consume_type message_model"),
            "series": record.lag.to_json(["total", *sorted(labels)]),
            "drawn": len(labels),
            "configs": {name: pick(config, _SETTINGS) for name, config in sorted(record.info.configs.items())},
        }

    # --- changes ----------------------------------------------------------------------------------------------

    def put(self, request: ApiRequest) -> dict[str, Any]:
        group = request.text("group").strip()
        self._context.changing.create_group(
            group,
            ordered=request.flag("ordered") if "ordered" in request.body else None,
            retry_max_times=request.number("retries", 16, least=-1) if "retries" in request.body else None,
        )
        self._sampler.ask_lists_again()
        return {"done": f"Group {group} exists on all brokers."}

    def delete(self, request: ApiRequest) -> dict[str, Any]:
        group = request.path["group"]
        confirmed(request, group)
        self._context.changing.delete_group(group, offsets=True)
        with self._sampler.lock:
            self._sampler.groups.pop(group, None)
        self._sampler.ask_lists_again()
        return {"done": f"Deleted group {group} with its offsets."}

    def plan(self, request: ApiRequest) -> dict[str, Any]:
        group, topic, moment = self._reset(request)
        plan = self._context.admin.plan_reset(group, topic, moment)
        rows = [place(each.queue) | pick(each, "committed target moved=change") for each in plan]
        changes = [each.change or 0 for each in plan]
        record = self._sampler.fresh_group(group)
        return {
            "rows": rows,
            "again": sum(max(-change, 0) for change in changes),
            "skipped": sum(max(change, 0) for change in changes),
            "members": len(record.state.members) if record is not None and record.state is not None else 0,
        }

    def reset(self, request: ApiRequest) -> dict[str, Any]:
        group, topic, moment = self._reset(request)
        online = request.flag("online")
        found: dict[MessageQueue, int] = self._context.changing.reset_offsets(group, topic, moment, online=online)
        self._sampler.fresh_group(group)
        return {"done": f"Reset group {group} in {len(found)} queues of {topic}."}

    def _reset(self, request: ApiRequest) -> tuple[str, str, int]:
        to = request.text("to")
        moments = {"earliest": EARLIEST, "latest": LATEST}
        moment = moments[to] if to in moments else request.number("timestamp", least=1)
        if to not in (*moments, "time"):
            raise Refused(f"Invalid reset target {to[:40]!r}.", remedy="Use earliest, latest or a time.")
        if to == "time" and (ahead := future_text(moment, now_ms())):
            raise Refused(f"The time of the reset is {ahead}.", remedy="Use a time in the past, or latest.")
        return request.path["group"], request.text("topic"), moment
