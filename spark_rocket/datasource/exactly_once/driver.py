"""What a driver of the exactly-once sink does: before the first task, and after the last one.

Tasks do not import this module: the clients of an administrator cost a new worker 0.1 s of CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_rocket.datasource.exactly_once.commit import Commit
from spark_rocket.datasource.exactly_once.first_record import LedgerPlace
from spark_rocket.datasource.exactly_once.ledger import Ledger
from spark_rocket.datasource.exactly_once.place import find_ledger, with_existing_ledger
from spark_rocket.datasource.exactly_once.sink_brokers import Timing, brokers_for
from spark_rocket.datasource.exactly_once.sink_topics import warn_of_settings
from spark_rocket.datasource.exactly_once.staging import Staged
from spark_rocket.datasource.options.options import WriteOptions


def check_topics(options: WriteOptions) -> tuple[WriteOptions, LedgerPlace]:
    """Find the sink's topics, or create them, before the first task.

    Returns the options with their names, and the ledger's place.
    """
    deadline = Timing.of(options).deadline()
    options = deadline.call(lambda: with_existing_ledger(options), "to find the ledger")
    return options, _place_of(options)


def _place_of(options: WriteOptions) -> LedgerPlace:
    brokers = brokers_for(options)
    return Timing.of(options).deadline().call(lambda: find_ledger(options, brokers), "to find the ledger")


def commit_epoch(
    options: WriteOptions, messages: Sequence[object], *, is_stream: bool, place: LedgerPlace | None = None
) -> None:
    """Commit the blocks that the tasks staged. ``place``: the ledger's, if this process has just found it."""
    staged = [message for message in messages if isinstance(message, Staged)]
    if not staged:
        return
    epoch = staged[0].epoch
    brokers, timing = brokers_for(options), Timing.of(options)
    place = place or _place_of(options)
    queue, topic = place.queue, options.staging_topic
    ledger = Ledger(brokers, queue, topic, epoch.query, timing, is_stream=is_stream, ledger=place.ledger)
    commit = Commit(brokers, ledger, epoch, topic, timing)
    manifest = commit.run([block for message in staged for block in message.blocks])
    if manifest is not None and commit.is_new_run:
        queues = [queue, *(each for block in manifest.blocks for each in (block.target, block.staged) if each)]
        warn_of_settings(options, {each.broker_name for each in queues})
