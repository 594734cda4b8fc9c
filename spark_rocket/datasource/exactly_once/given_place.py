"""The ledger's place where name servers store no entries: given by ``ledgerTopic``, ``ledgerBroker``, ``ledgerQueue``.

Spark gives a Python sink no place in the checkpoint. What keeps the ledger's place is the cluster itself, by two facts
that outlive the messages: the end of a queue never moves back, and nothing is staged before the ledger exists.

=======================================  ===============================================================================
name servers and brokers show            then
=======================================  ===============================================================================
the given queue, with records            it is the ledger
no route of its broker                   EXACTLY_ONCE.LEDGER_UNAVAILABLE, retried
its broker without this queue            EXACTLY_ONCE.LEDGER_PLACE
the given queue, never used, and         another option was given before: EXACTLY_ONCE.LEDGER_PLACE
- another queue of the ledger topic
  that was used, or
- a staging queue that was used, or
- an entry that names another broker
the given queue, never used, alone       it becomes the ledger: its first record has the ledger's id
=======================================  ===============================================================================

Then each broker of the staging topic gets a message, so that each of them tells of the ledger. Neither topic is
created. What remains unknown: a place that changes while all brokers with used queues of both topics are unavailable.

Functions of one driver's process.
"""

from __future__ import annotations

from contextlib import suppress

from spark_rocket.client.admin import Admin
from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.entry import NAMESPACE, LedgerEntry
from spark_rocket.datasource.exactly_once.first_record import LedgerPlace, id_of
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers
from spark_rocket.datasource.exactly_once.sink_topics import STAGING_QUEUES, SinkTopics
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue


class GivenPlace:
    """Finds the ledger at the place that options give, or begins it there."""

    def __init__(self, options: WriteOptions, brokers: Brokers, admin: Admin) -> None:
        self._brokers = brokers
        self._admin = admin
        self._queue = MessageQueue(options.ledger_topic, options.ledger_broker or "", options.ledger_queue)
        self._staging = options.staging_topic
        self._topics = SinkTopics(admin, options.name_server)
        self._name_server = options.name_server

    def find(self) -> LedgerPlace:
        """One attempt: what may succeed later is a retriable error."""
        queues = self._topics.queues(self._queue.topic, {})
        if self._queue not in queues:
            raise self._missing([queue.queue_id for queue in queues if queue.broker_name == self._queue.broker_name])
        staging = self._topics.queues(self._staging, {})
        if not staging:
            commands = self._topics.commands(self._staging, STAGING_QUEUES, "BROKER")
            problem = "with ledgerBroker, the sink creates no topics, or its brokers are unavailable."
            raise condition("EXACTLY_ONCE.NO_TOPIC", topic=self._staging, problem=problem, commands=commands)
        is_new = not self._brokers.end(self._queue)
        if is_new:
            self._check_unused(queues, staging)
        place = LedgerPlace(self._queue, id_of(self._brokers, self._queue))
        self._check_alone(queues, is_new=is_new)
        self._mark(staging)
        return place

    def _missing(self, ids: list[int]) -> RocketError:
        if ids:
            return self._wrong(f"the topic has the queues {', '.join(map(str, ids))} on {self._queue.broker_name}")
        unavailable = condition(
            "EXACTLY_ONCE.LEDGER_UNAVAILABLE", topic=self._queue.topic, name_server=self._name_server,
            evidence=f"ledgerBroker and ledgerQueue name {self._queue.name}",
            commands=self._topics.commands(self._queue.topic, 1, self._queue.broker_name),
        )  # fmt: skip
        unavailable.retriable = True
        return unavailable

    def _wrong(self, problem: str) -> RocketError:
        return condition("EXACTLY_ONCE.LEDGER_PLACE", queue=self._queue.name, problem=problem, staging=self._staging)

    def _check_unused(self, queues: list[MessageQueue], staging: list[MessageQueue]) -> None:
        """Raise EXACTLY_ONCE.LEDGER_PLACE if there is a ledger at another place, or was one at this place."""
        used = [queue for queue, end in self._brokers.ends([*queues, *staging]).items() if end]
        named = {entry.broker for entry in self._entries()} - {self._queue.broker_name}
        if not self._brokers.end(self._queue):  # no other driver has begun it since
            if used:
                raise self._wrong(f"it was never used, but {used[0].name} was: a ledger exists, or existed, elsewhere")
            if named:
                raise self._wrong(f"it was never used, and an entry of the name servers names broker {min(named)}")

    def _check_alone(self, queues: list[MessageQueue], *, is_new: bool) -> None:
        """Raise EXACTLY_ONCE.LEDGER_PLACE if another queue of the topic was used, too: two drivers began a ledger."""
        try:
            used = [queue for queue, end in self._brokers.ends(queues).items() if end and queue != self._queue]
        except RocketError:
            if is_new:
                raise
            return  # its broker is unavailable
        if used:
            raise self._wrong(f"{used[0].name} was used, too")

    def _entries(self) -> list[LedgerEntry]:
        entries = []
        for text in self._admin.kv_config_of_each(NAMESPACE, self._queue.topic, failed={}).values():
            with suppress(ValueError):
                entries.append(LedgerEntry.decode(text))
        return entries

    def _mark(self, staging: list[MessageQueue]) -> None:
        """Store a message in the staging topic of each broker that has none."""
        ends = self._brokers.ends(staging)
        used = {queue.broker_name for queue, end in ends.items() if end}
        for queue in staging:
            if queue.broker_name not in used:
                self._brokers.append(queue, b"barrier")
                used.add(queue.broker_name)
