"""Endpoints of topics: the list, a topic with its queues and groups, changes.

Corresponds to TopicController of RocketMQ's dashboard.
"""

from __future__ import annotations

from typing import Any

from spark_rocket.client.admin import Failures
from spark_rocket.client.admin.base import record_failure
from spark_rocket.common.attributes import pick
from spark_rocket.console.api.context import ApiContext, ApiRequest, confirmed, page_of, place
from spark_rocket.console.responses import Refused, failures_json
from spark_rocket.console.sampler import TOPIC, TOPICS
from spark_rocket.console.state import GroupRecord, TopicRecord, is_listed
from spark_rocket.errors import TopicNotFoundError
from spark_rocket.protocol.wire.bodies.route import BrokerData

_COLUMNS = ("name", "queues", "messages", "bytes", "rate", "lastUpdate", "type", "brokers")
_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
_KINDS = ("user", "retry", "dlq", "system", "all")


class TopicApi:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._sampler = context.sampler

    def list(self, request: ApiRequest) -> dict[str, Any]:
        self._sampler.note_view(TOPICS)
        kind = request.text("kind", "user")
        if kind not in _KINDS:
            raise Refused(f"Unknown kind of topics {kind[:40]!r}.", remedy=f"Use {', '.join(_KINDS)}.")
        with self._sampler.lock:
            rows = [r.to_json() for r in self._sampler.topics.values() if is_listed(r.info.kind, kind)]
            counts = dict.fromkeys(_KINDS, 0)
            for record in self._sampler.topics.values():
                counts[record.info.kind.value.lower()] += 1
        counts["all"] = len(self._sampler.topics)
        return {
            "known": self._sampler.is_known(TOPICS),
            "refresh": self._context.refresh_ms(),
            "counts": counts,
            **self._sampler.problems(),
            **page_of(rows, request, names=_COLUMNS),
        }

    def names(self, request: ApiRequest) -> dict[str, Any]:
        """Return the names of topics, for input fields."""
        with self._sampler.lock:
            names = sorted(r.info.name for r in self._sampler.topics.values() if r.info.kind.value != "SYSTEM")
        return {"names": names}

    def show(self, request: ApiRequest) -> dict[str, Any]:
        """Return a topic's present state; with ``known`` the cached sample, if any, for a fast first display."""
        topic = request.path["topic"]
        self._sampler.note_view(TOPIC)  # for its groups
        if request.flag("known"):
            known = self._known(topic)
            if known is not None:
                return known
        record = self._sampler.fresh_topic(topic)
        if record is None:
            raise TopicNotFoundError(f"Unknown topic {topic!r}.", remedy="It may have been deleted: see the list.")
        failed: Failures = {}
        route: list[BrokerData] = []
        groups: list[str] = []
        with record_failure(failed, "the name server"):
            route = self._context.admin.topic_route(topic).broker_datas
            groups = self._context.admin.groups_of(topic, failed=failed)
        with self._sampler.lock:
            readers = [self._reader(self._sampler.groups.get(name), name, topic) for name in groups]
            shown = self._shown(record)
        return shown | {
            "refresh": self._context.fresh_ms(),
            "offsets": shown["offsets"] or [],
            "route": [
                pick(data, "broker=broker_name cluster")
                | {"addresses": {str(broker_id): address for broker_id, address in data.broker_addrs.items()}}
                for data in sorted(route, key=lambda data: data.broker_name)
            ],
            "groups": readers,
            "problems": list(failures_json(failed).values()),
        }

    def _known(self, topic: str) -> dict[str, Any] | None:
        """Return the cached sample. Unknown values are None; the page requests them next."""
        with self._sampler.lock:
            record = self._sampler.topics.get(topic)
            if record is None:
                return None
            readers = [
                self._reader(group, name, topic)
                for name, group in sorted(self._sampler.groups.items())
                if not group.is_own and group.state is not None and topic in group.state.topics
            ]
            return self._shown(record) | {"refresh": 0, "route": None, "groups": readers or None, "problems": []}

    def _shown(self, record: TopicRecord) -> dict[str, Any]:
        """Hold the sampler's lock."""
        queues = None if record.state is None else record.state.queues
        return {
            "topic": record.to_json(),
            "series": record.counts.rates(),
            "offsets": queues
            and [place(q.queue) | pick(q, "min=min_offset max=max_offset lastUpdate=last_stored_ms?") for q in queues],
            "configs": {
                row.broker_name: pick(row, "read_queues write_queues perm order attributes") for row in record.info.rows
            },
            "failed": failures_json(self._sampler.failed),
        }

    def _reader(self, record: GroupRecord | None, name: str, topic: str) -> dict[str, Any]:
        if record is None or record.state is None:
            return {"name": name, "kind": "unknown", "label": "–", "lag": None, "members": None, "rate": None}
        state = record.state
        figures = {"lag": state.lag_of(topic), "members": len(state.members), "rate": record.rate.value}
        return {"name": name, **record.kind_words(), **figures}

    # --- changes ----------------------------------------------------------------------------------------------

    def put(self, request: ApiRequest) -> dict[str, Any]:
        topic = request.text("topic").strip()
        kind = request.text("type", "") or None
        if kind is not None and kind not in _TYPES:
            raise Refused(f"Invalid message type {kind[:40]!r}.", remedy=f"Use {', '.join(_TYPES)}.")
        queues = request.number("queues", 8)
        self._context.changing.create_topic(
            topic,
            queues,
            request.number("perm", 6),
            write_queues=request.number("writeQueues", queues),
            broker=request.text("broker", "") or None,
            order=request.flag("order"),
            message_type=kind,
        )
        self._sampler.ask_lists_again()
        return {"done": f"Topic {topic} has {queues} queues on each broker."}

    def delete(self, request: ApiRequest) -> dict[str, Any]:
        topic = request.path["topic"]
        confirmed(request, topic)
        self._context.changing.delete_topic(topic)
        with self._sampler.lock:
            self._sampler.topics.pop(topic, None)
        self._sampler.ask_lists_again()
        return {"done": f"Deleted topic {topic} with its messages."}
