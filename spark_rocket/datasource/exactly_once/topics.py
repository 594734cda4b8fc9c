"""The staging and the ledger topic: found, or created on first use.

The ledger has one queue on one broker. It is created before the staging topic, and only if that does not exist either:
otherwise its broker is unavailable, and a second ledger elsewhere would not know what the first one decided.

Functions without state. Corresponds to ``mqadmin updateTopic``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from spark_rocket.client.admin import Admin
from spark_rocket.client.consume.reader import Reader
from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.options.connection import connecting
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.errors import RocketError, TopicNotFoundError
from spark_rocket.model import MessageQueue

STAGING_QUEUES = 4  # on each broker

log = logging.getLogger("spark_rocket.datasource")


def ledger_queue(options: WriteOptions, reader: Reader) -> MessageQueue:
    """The ledger's queue. Creates missing topics."""
    ledger = _queues(reader, options.ledger_topic)
    staging = _queues(reader, options.staging_topic)
    if ledger is None and staging is not None:
        unavailable = condition(
            "EXACTLY_ONCE.LEDGER_AWAY", topic=options.ledger_topic, staging=options.staging_topic,
            commands=_commands(options.ledger_topic, 1, options.name_server, "BROKER"),
        )  # fmt: skip
        unavailable.retriable = True
        raise unavailable
    if ledger is None or staging is None:
        with Admin(
            options.name_server, request_timeout=options.request_timeout_ms / 1000,
            **connecting(options.credentials, options.tls),
        ) as admin:  # fmt: skip
            if ledger is None:
                first = min(admin.cluster_info().broker_addr_table, default=None)
                _create(admin, options.ledger_topic, 1, first, options.name_server)
                ledger = reader.refresh(options.ledger_topic)
            if staging is None:
                _create(admin, options.staging_topic, STAGING_QUEUES, None, options.name_server)
    if len(ledger) != 1:
        raise condition("EXACTLY_ONCE.LEDGER_QUEUES", topic=options.ledger_topic, count=len(ledger))
    return ledger[0]


def _queues(reader: Reader, topic: str) -> list[MessageQueue] | None:
    try:
        return reader.refresh(topic)
    except TopicNotFoundError:
        return None


def _create(admin: Admin, topic: str, queues: int, broker: str | None, name_server: str) -> None:
    try:
        admin.create_topic(topic, queues, broker=broker)
    except RocketError as problem:
        commands = _commands(topic, queues, name_server, broker)
        raise condition("EXACTLY_ONCE.NO_TOPIC", topic=topic, problem=problem.message, commands=commands) from problem
    log.info("created topic %s with queues=%d broker=%s", topic, queues, broker or "all")


def _commands(topic: str, queues: int, name_server: str, broker: str | None) -> str:
    where = ("-b ADDRESS_OF_" + broker, f"--broker {broker}") if broker else ("-c CLUSTER", "")
    return (
        f"mqadmin updateTopic -n {name_server!r} {where[0]} -t {topic} -r {queues} -w {queues} -p 6, or "
        f"rocket topic create {topic} -n {name_server!r} --queues {queues} {where[1]}".rstrip()
    )


def warn_of_settings(options: WriteOptions, brokers: Collection[str]) -> None:
    """Log brokers that may lose acknowledged messages, or keep messages for less than ``stagingRetention``."""
    hours = options.staging_retention_ms / 3_600_000
    with Admin(
        options.name_server, request_timeout=options.request_timeout_ms / 1000,
        **connecting(options.credentials, options.tls),
    ) as admin:  # fmt: skip
        for broker in sorted(brokers):
            try:
                config = admin.broker_config(broker)
            except RocketError as problem:
                log.info("durability and retention of %s are unknown: %s", broker, problem)
                continue
            flush, role = config.get("flushDiskType", ""), config.get("brokerRole", "")
            if flush != "SYNC_FLUSH" and role != "SYNC_MASTER":
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
