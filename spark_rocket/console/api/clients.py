"""Endpoints of clients: connected producers, and the running information of a consumer.

Corresponds to ProducerController and to ConsumerController.getConsumerRunningInfo of RocketMQ's dashboard.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from spark_rocket.client.admin import Failures, is_system_group
from spark_rocket.common.attributes import pick
from spark_rocket.console.api.context import ApiContext, ApiRequest, page_of, place
from spark_rocket.console.responses import Refused, RequestProblem, describe, failures_json
from spark_rocket.console.secrets import shown
from spark_rocket.errors import RemotingError, RocketError
from spark_rocket.model import TOOLS_PRODUCER_GROUP
from spark_rocket.protocol.wire.bodies.consumer import ConsumerRunningInfo
from spark_rocket.protocol.wire.codes import ResponseCode

_COLUMNS = ("name", "client", "address", "language", "version", "lastHeartbeat")
_SEARCHED = ("name", "client", "address")
_MEMBER = "client=client_id address language version brokers lastHeartbeat=last_heartbeat_ms"
MAX_RUNNING_QUERIES = 3
"""Concurrent queries of running information: a client that does not respond occupies a thread for 10 s."""
MAX_QUEUES = 500
MAX_STACK_CHARACTERS = 256 << 10
NOT_ONLINE = frozenset({int(ResponseCode.CONSUMER_NOT_ONLINE)})


class ClientApi:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._running = threading.BoundedSemaphore(MAX_RUNNING_QUERIES)

    # --- producers --------------------------------------------------------------------------------------------

    def producers(self, request: ApiRequest) -> dict[str, Any]:
        """Return the connected producers. ``topic``: only those that are connected to a broker of the topic.

        Brokers of 4.x report only the producers of a given group: ``search``, if it is the name of a group.
        """
        search, topic = request.text("search", "").strip(), request.text("topic", "").strip()
        failed: Failures = {}
        found = self._context.admin.producer_groups(failed=failed)
        old = sorted(name for name, e in failed.items() if e.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        for name in old:
            del failed[name]
        if old and search:
            heartbeats = {member.client_id: member.last_heartbeat_ms for member in found.get(search, [])}
            members = self._context.admin.producers(search, failed=failed)
            found[search] = [replace(one, last_heartbeat_ms=heartbeats.get(one.client_id)) for one in members]
        route = self._context.admin.topic_route(topic).broker_datas if topic else None
        brokers = None if route is None else {broker.broker_name for broker in route}
        own = request.flag("own")
        rows = [
            {"name": group} | pick(member, _MEMBER)
            for group, members in found.items()
            if own or not (group == TOOLS_PRODUCER_GROUP or is_system_group(group))
            for member in members
            if brokers is None or brokers.intersection(member.brokers)
        ]
        return {
            "refresh": self._context.refresh_ms(),
            "unlisted": old,
            "failed": failures_json(failed),
            **page_of(rows, request, names=_COLUMNS, searched=_SEARCHED),
        }

    # --- one member of a group --------------------------------------------------------------------------------

    def member(self, request: ApiRequest) -> dict[str, Any]:
        """Return a member of a group and its running information. ``stacks``: with the stacks of its threads."""
        group, client = request.path["group"], request.text("client")
        stacks = request.flag("stacks")
        info: ConsumerRunningInfo | None = None
        trouble: RequestProblem | None = None
        with self._one_query():
            try:
                info = self._context.admin.consumer_running_info(group, client, stacks=stacks)
            except RocketError as error:
                trouble = _no_running_info(client, error)
        return {
            "refresh": self._context.refresh_ms(),
            "trouble": None if trouble is None else trouble.to_json(),
            "info": None if info is None else _running(info),
        }

    @contextmanager
    def _one_query(self) -> Iterator[None]:
        if not self._running.acquire(blocking=False):
            raise Refused(
                f"Too many pending queries of running information ({MAX_RUNNING_QUERIES}).",
                remedy="Retry in a few seconds.",
                code="CONSOLE_BUSY",
            )
        try:
            yield
        finally:
            self._running.release()


def _no_running_info(client: str, error: RocketError) -> RequestProblem:
    """Describe the error of a query that a broker forwarded to a client."""
    known = describe(error)
    if error.response_code in NOT_ONLINE or isinstance(error, RemotingError):  # not the client, but a broker
        return known
    return RequestProblem(
        "NO_RUNNING_INFO",
        f"Client {client} does not report its running information. {known.text}",
        "Consumers of RocketMQ's Java clients, of this package and of the gRPC proxy report it. Spark streams and most"
        " other clients do not.",
        known.status,
        known.response,
    )


def _running(info: ConsumerRunningInfo) -> dict[str, Any]:
    """The names of a queue's values are those of the page."""
    held = (
        "committed=commit_offset cached=cached_msg_count cachedMiB=cached_msg_size_in_mib first=cached_msg_min_offset"
        " last=cached_msg_max_offset locked dropped lastPull=last_pull_timestamp? lastConsume=last_consume_timestamp?"
    )
    popped = "unacknowledged=wait_ack_count dropped lastPop=last_pop_timestamp?"
    rates = (
        "pullTime=pull_rt pullRate=pull_tps consumeTime=consume_rt consumeRate=consume_ok_tps"
        " failedRate=consume_failed_tps failed=consume_failed_msgs"
    )
    return {
        "properties": {name: shown(name, value) for name, value in sorted(info.properties.items())},
        "subscriptions": [
            pick(data, "topic expression=sub_string type=expression_type")
            for data in sorted(info.subscription_set, key=lambda data: data.topic)
        ],
        "queueCount": len(info.mq_table) + len(info.mq_pop_table),
        "queues": [place(q) | pick(each, held) for q, each in sorted(info.mq_table.items())[:MAX_QUEUES]],
        "popQueues": [place(q) | pick(each, popped) for q, each in sorted(info.mq_pop_table.items())[:MAX_QUEUES]],
        "rates": [{"topic": topic} | pick(each, rates) for topic, each in sorted(info.status_table.items())],
        "stacks": None if info.jstack is None else info.jstack[:MAX_STACK_CHARACTERS],
        "stacksCut": info.jstack is not None and len(info.jstack) > MAX_STACK_CHARACTERS,
    }
