"""The staging and the ledger topic: their routes, their creation, and the settings of their brokers.

Corresponds to ``mqadmin updateTopic``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from spark_rocket.client.admin import Admin, Failures
from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.retry_deadline import is_retriable
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.durability import durability

STAGING_QUEUES = 4  # on each broker

log = logging.getLogger("spark_rocket.datasource")


class SinkTopics:
    """Routes and creation of the sink's topics."""

    def __init__(self, admin: Admin, name_server: str) -> None:
        self._admin = admin
        self._name_server = name_server

    def queues(self, topic: str, silent: Failures) -> list[MessageQueue]:
        """The readable queues of a topic that any name server knows, except those in ``silent``."""
        failed = dict(silent)
        routes = self._admin.topic_route_of_each(topic, failed=failed)
        if failed and not routes and len(failed) == len(self._admin.name_servers):
            raise next(iter(failed.values()))
        return sorted({queue for data in routes.values() for queue in TopicRoute.of(topic, data).readable})

    def create(self, topic: str, queues: int, broker: str) -> None:
        """Create a topic on a broker. Raises EXACTLY_ONCE.NO_TOPIC if the broker refuses it."""
        try:
            self._admin.create_topic(topic, queues, broker=broker)
        except RocketError as problem:
            if is_retriable(problem):
                raise
            commands = self.commands(topic, queues, broker)
            raise condition(
                "EXACTLY_ONCE.NO_TOPIC", topic=topic, problem=problem.message, commands=commands
            ) from problem
        log.info("created topic %s with queues=%d on broker %s", topic, queues, broker)

    def commands(self, topic: str, queues: int, broker: str) -> str:
        """How to create a topic by hand."""
        return (
            f"mqadmin updateTopic -n {self._name_server!r} -b ADDRESS_OF_{broker} -t {topic} -r {queues} -w {queues} "
            f"-p 6, or rocket topic create {topic} -n {self._name_server!r} --queues {queues} --broker {broker}"
        )


def warn_of_settings(options: WriteOptions, brokers: Collection[str]) -> None:
    """Log brokers that may lose acknowledged messages, or keep messages for less than ``stagingRetention``."""
    hours = options.staging_retention_ms / 3_600_000
    with Admin(
        options.name_server, request_timeout=options.request_timeout_ms / 1000, **options.connection.arguments()
    ) as admin:
        for broker in sorted(brokers):
            try:
                config = admin.broker_config(broker)
            except RocketError as problem:
                log.info("durability and retention of %s are unknown: %s", broker, problem)
                continue
            flush, role = config.get("flushDiskType", ""), config.get("brokerRole", "")
            if not durability(flush, role).is_durable:
                log.warning(
                    "broker %s acknowledges messages that it could lose (flushDiskType=%s, brokerRole=%s): exactly "
                    "once holds unless its machine fails. Set flushDiskType=SYNC_FLUSH or brokerRole=SYNC_MASTER.",
                    broker, flush, role,
                )  # fmt: skip
            kept = config.get("fileReservedTime", "")
            if kept.isdecimal() and int(kept) < hours:
                log.warning(
                    "broker %s keeps messages for %s hours (fileReservedTime), less than stagingRetention=%.0fh: a "
                    "query that is restarted later after a crash cannot go on", broker, kept, hours,
                )  # fmt: skip
