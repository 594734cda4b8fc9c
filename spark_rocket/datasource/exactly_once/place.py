"""The ledger's place: found, and created once for a cluster.

There is one ledger, and it is never created a second time while it could exist. What is known about it:

==================================  ====================================================================================
name servers and brokers show       then
==================================  ====================================================================================
a complete entry (``entry.py``)     it is that queue. Without a route: EXACTLY_ONCE.LEDGER_UNAVAILABLE. On another
                                    broker: EXACTLY_ONCE.LEDGER_ENTRY
a ledger topic, no complete entry   it is that queue: an entry was lost, an older version made it, or a driver died
a staging topic only                the ledger's broker is unavailable: EXACTLY_ONCE.LEDGER_UNAVAILABLE
nothing                             create it, if all name servers, all known brokers and their masters respond, else
                                    EXACTLY_ONCE.CLUSTER_INCOMPLETE
==================================  ====================================================================================

It is created in this order: an entry with the broker alone, the ledger topic, its first record with the ledger's id,
the complete entry, the staging topic. Nothing is decided before all of it. The first record of the queue is the same
for all drivers, so those that create it at once agree, and a driver that finds a part completes it.

The staging topic is created on all masters, and on those that join later, also while the ledger's broker is
unavailable. So it exists then, even if all name servers have lost their entries. What remains unknown: a cluster whose
name servers have lost their entries, while all brokers that have the sink's topics are unavailable and no longer
registered.

With ``ledgerBroker`` the place is given (``given_place.py``).

Functions of one driver's process.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

from spark_rocket.client.admin import Admin, Failures
from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.entry import LedgerEntries, LedgerEntry
from spark_rocket.datasource.exactly_once.first_record import LedgerPlace, id_of
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers
from spark_rocket.datasource.exactly_once.sink_topics import STAGING_QUEUES, SinkTopics
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.route import MASTER_ID
from spark_rocket.protocol.wire.codes import ResponseCode

log = logging.getLogger("spark_rocket.datasource")


def find_ledger(options: WriteOptions, brokers: Brokers) -> LedgerPlace:
    """Find the ledger; create it, its entry and the staging topic where they are missing.

    One attempt: what may succeed later is a retriable error.
    """
    with Admin(
        options.name_server, request_timeout=options.request_timeout_ms / 1000, **options.connection.arguments()
    ) as admin:
        if options.ledger_broker is None:
            return _Finder(options, brokers, admin).find()
        from spark_rocket.datasource.exactly_once.given_place import GivenPlace  # few sinks need it

        return GivenPlace(options, brokers, admin).find()


def with_existing_ledger(options: WriteOptions) -> WriteOptions:
    """Return the options with the names of the ledger that the cluster has: with the namespace, otherwise without it.

    A query that ran with full names and an earlier ledger continues with that one: it is never created a second time.
    """
    namespace = options.namespace
    without = replace(
        options,
        staging_topic=namespace.unwrap(options.staging_topic),
        ledger_topic=namespace.unwrap(options.ledger_topic),
        ledger_group=namespace.unwrap(options.ledger_group),
    )
    if without.ledger_topic == options.ledger_topic or options.ledger_broker is not None:
        return options
    with Admin(
        options.name_server, request_timeout=options.request_timeout_ms / 1000, **options.connection.arguments()
    ) as admin:
        if _has_ledger(admin, options) or not _has_ledger(admin, without):
            return options
    log.info("the ledger %s without namespace %s exists, and is used", without.ledger_topic, namespace.name)
    return without


def _has_ledger(admin: Admin, options: WriteOptions) -> bool:
    entries = LedgerEntries(admin, options.ledger_topic, options.name_server)
    found = entries.read() is not None
    return found or bool(SinkTopics(admin, options.name_server).queues(options.ledger_topic, entries.silent))


class _Finder:
    def __init__(self, options: WriteOptions, brokers: Brokers, admin: Admin) -> None:
        self._brokers = brokers
        self._admin = admin
        self._ledger = options.ledger_topic
        self._staging = options.staging_topic
        self._topics = SinkTopics(admin, options.name_server)
        self._name_server = options.name_server
        self._entries = LedgerEntries(admin, options.ledger_topic, options.name_server)

    def find(self) -> LedgerPlace:
        entry = self._entries.read()
        places = self._topics.queues(self._ledger, self._entries.silent)
        if len(places) > 1:
            raise condition(
                "EXACTLY_ONCE.LEDGER_QUEUES", topic=self._ledger, count=len(places),
                where=", ".join(queue.name for queue in places),
            )  # fmt: skip
        staging = {queue.broker_name for queue in self._topics.queues(self._staging, self._entries.silent)}
        if entry is not None and entry.ledger:
            return self._named(entry, places, staging)
        if places:
            place = LedgerPlace(places[0], id_of(self._brokers, places[0]))
        elif staging:
            self._spread(staging)
            raise self._away(f"{self._staging} has one")
        else:
            place = self._create(entry)
        self._entries.write(LedgerEntry(place.queue.broker_name, place.ledger))
        self._spread(staging)
        return place

    def _named(self, entry: LedgerEntry, places: list[MessageQueue], staging: set[str]) -> LedgerPlace:
        """The place that a complete entry names. Entries and staging topics are completed even without its broker."""
        for queue in places:
            if queue.broker_name != entry.broker:
                problem = f"it names broker {entry.broker}, and the topic is on {queue.broker_name}."
                raise self._entries.wrong(problem, None)
        self._entries.write(entry)
        if places:
            self._spread(staging)
            return LedgerPlace(places[0], entry.ledger)
        with suppress(RocketError):
            self._spread(staging)
        raise self._away(f"its entry at the name servers names broker {entry.broker}")

    def _away(self, evidence: str) -> RocketError:
        unavailable = condition(
            "EXACTLY_ONCE.LEDGER_UNAVAILABLE", topic=self._ledger, evidence=evidence, name_server=self._name_server,
            commands=self._topics.commands(self._ledger, 1, "BROKER"),
        )  # fmt: skip
        unavailable.retriable = True
        return unavailable

    # --- creating -------------------------------------------------------------------------------------------------

    def _create(self, entry: LedgerEntry | None) -> LedgerPlace:
        masters = self._masters()
        broker = entry.broker if entry is not None else min(masters)
        if broker not in masters:
            raise self._incomplete([f"broker {broker}, where another driver began to create the ledger"])
        self._entries.write_to_all(LedgerEntry(broker))
        self._masters()  # another driver may have created it before it saw this entry
        self._topics.create(self._ledger, 1, broker)
        queue = MessageQueue(self._ledger, broker, 0)
        return LedgerPlace(queue, id_of(self._brokers, queue))

    def _masters(self) -> dict[str, str]:
        """The address of each broker's master. All have reported that they have neither ledger nor staging topic.

        Raises EXACTLY_ONCE.CLUSTER_INCOMPLETE if something does not respond, or has one of them.
        """
        missing: list[str] = []
        silent: Failures = dict(self._entries.silent)
        masters: dict[str, str | None] = {}
        for server, info in self._admin.cluster_info_of_each(failed=silent).items():
            if not info.broker_addr_table:
                missing.append(f"no broker is registered at name server {server}")
            for broker, data in info.broker_addr_table.items():
                masters[broker] = data.broker_addrs.get(MASTER_ID) or masters.get(broker)
        missing += [f"name server {server}: {problem.message}" for server, problem in silent.items()]
        for broker, address in sorted(masters.items()):
            problem = self._has(address) if address else "it has no master now"
            missing += [f"broker {broker}: {problem}"] if problem else []
        if missing:
            raise self._incomplete(missing)
        return {broker: address for broker, address in masters.items() if address}

    def _has(self, address: str) -> str:
        """What a master has or why it does not report it; empty if it has neither topic."""
        for topic in (self._ledger, self._staging):
            try:
                if self._admin.topic_config(topic, broker=address) is not None:
                    return f"it has {topic}, but no name server shows it"
            except RocketError as problem:
                if problem.response_code != ResponseCode.NO_PERMISSION:  # then its routes must suffice
                    return problem.message
        return ""

    def _incomplete(self, missing: list[str]) -> RocketError:
        incomplete = condition(
            "EXACTLY_ONCE.CLUSTER_INCOMPLETE", topic=self._ledger, staging=self._staging, missing="; ".join(missing)
        )
        incomplete.retriable = True
        return incomplete

    def _spread(self, staging: set[str]) -> None:
        """Create the staging topic on the masters that lack it."""
        silent: Failures = dict(self._entries.silent)
        infos = self._admin.cluster_info_of_each(failed=silent).values()
        masters = {
            broker
            for info in infos
            for broker, data in info.broker_addr_table.items()
            if MASTER_ID in data.broker_addrs
        }
        created = set(staging)
        refusal: RocketError | None = None
        for broker in sorted(masters - staging):
            try:
                self._topics.create(self._staging, STAGING_QUEUES, broker)
                created.add(broker)
            except RocketError as problem:
                refusal = problem
                log.info("%s is not created on broker %s: %s", self._staging, broker, problem)
        if refusal is not None and not created:
            raise refusal
