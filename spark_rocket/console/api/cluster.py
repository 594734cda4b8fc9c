"""Endpoints of the overview and of the console's health.

Corresponds to ClusterController and DashboardController of RocketMQ's dashboard.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from typing import Any

import spark_rocket
from spark_rocket.client.admin import GroupKind
from spark_rocket.console.api.context import ApiContext, ApiRequest
from spark_rocket.console.avro import can_avro
from spark_rocket.console.sampler import GROUPS, OVERVIEW, TOPICS

_BEGAN = time.time()
_MAX_BEHIND_GROUPS = 8
_STREAMS = (GroupKind.STREAM, GroupKind.STOPPED)


class ClusterApi:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def overview(self, request: ApiRequest) -> dict[str, Any]:
        sampler = self._context.sampler
        sampler.note_view(OVERVIEW)
        with sampler.lock:
            groups = [record for record in sampler.groups.values() if not record.is_own]
            behind = sorted(
                (g for g in groups if g.state and g.state.lag), key=lambda g: -(g.state.lag if g.state else 0)
            )
            topics = [record.to_json() for record in sampler.topics.values()]
            user_topics = [topic for topic in topics if topic["kind"] == "user"]
            dead = [topic["messages"] for topic in topics if topic["kind"] == "dlq"]
            return {
                "known": sampler.is_known(OVERVIEW),
                "refresh": self._context.refresh_ms(),
                "nameServers": [record.to_json() for record in sampler.name_servers.values()],
                "brokers": [record.to_json() for record in sampler.brokers.values()],
                "rates": sampler.rates.to_json(),
                "topics": len(user_topics),
                "deadLetters": None if None in dead else sum(dead),
                "groups": len(groups),
                "online": sum(1 for group in groups if group.kind in (GroupKind.ONLINE, GroupKind.STREAM)),
                "lag": sum(group.state.lag for group in groups if group.state),
                "behind": [group.to_json() for group in behind[:_MAX_BEHIND_GROUPS]],
                "streams": [group.to_json() for group in groups if group.kind in _STREAMS],
                **sampler.problems(),
            }

    def health(self, request: ApiRequest) -> dict[str, Any]:
        """Return the state of this process: its sampling, its duration, its memory."""
        sampler = self._context.sampler
        looking = sampler.looking
        with sampler.lock:
            samples = len(sampler.rates) + sum(len(group.lag) for group in sampler.groups.values())
            numbers = sum(len(g.lag) * (1 + len(g.lag.columns)) for g in sampler.groups.values())
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        now = time.monotonic()
        return {
            "refresh": 2000,
            "version": spark_rocket.__version__,
            "nameServer": self._context.settings.name_server,
            "started": round(_BEGAN * 1000),
            "passes": sampler.passes,
            "passSeconds": round(sampler.last_seconds, 3),
            "interval": round(sampler.interval, 1),
            "looking": sorted(looking),
            "ages": {
                what: round(now - sampler.sampled[what], 1)
                for what in (OVERVIEW, TOPICS, GROUPS)
                if what in sampler.sampled
            },
            "samples": samples,
            "sampleBytes": numbers * 8,
            "memory": memory,
            "threads": threading.active_count(),
            "waiting": self._context.links.waiting,
            "avro": can_avro(),
            "readOnly": self._context.settings.read_only,
            **sampler.problems(),
        }
