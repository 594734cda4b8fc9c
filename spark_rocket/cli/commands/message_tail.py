"""``rocket message tail``: follow a topic like ``tail -f``, without joining a consumer group.

Each queue is read by offset with a long poll. There is no group, no heartbeat and no committed offset, so consumers are
not affected. Messages of different queues are shown in the order of their arrival; the first ones of ``--last`` or
``--from`` are ordered by time. Unavailable brokers are retried, from the start on. New queues and brokers are found
every ten seconds and read from the start time of the command. Messages that cannot be decoded are reported and skipped.

Exit status: 0 for Ctrl-C or the end, 1 for a failure, with --no-follow also for an unavailable broker.
Corresponds to mqadmin's consumeMessage and printMsg.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, TypeVar

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import exclusive, json_option, past, whole
from spark_rocket.cli.commands import message_show
from spark_rocket.cli.commands.message_show import body_option
from spark_rocket.cli.connect import Link, complete_topics, connection
from spark_rocket.cli.text import print_problem
from spark_rocket.common.system import now_ms
from spark_rocket.errors import RocketError

if TYPE_CHECKING:
    from spark_rocket.client import Admin, PullResult, Reader
    from spark_rocket.client.admin import Failures
    from spark_rocket.model import MessageExt, MessageQueue
    from spark_rocket.protocol.record.messages import UndecodableError

_T = TypeVar("_T")

SUSPEND_MS = 10_000
REFRESH_INTERVAL_S = 10.0
RETRY_DELAY_S = 1.0
_MAX_LONG_POLLS = 256  # with more queues, each queue is polled at intervals
_PAGE = 32
_NAME_SERVER = "the name server"
_MAX_CLOCK_SKEW_MS = 10_000  # queues that are found late are read from so long before the start


def _start(text: str) -> int:
    """A type: a time, ``earliest`` as 0, or ``latest`` as -1."""
    return {"earliest": 0, "latest": -1}[text] if text in ("earliest", "latest") else past(text)


@click.command("tail")
@click.argument("topic", shell_complete=complete_topics)
@click.option("--tags", metavar="TAGS", help="only messages with these tags, as in 'a || b'")
@click.option("--sql", metavar="EXPRESSION", help="only messages that match this SQL92 expression")
@click.option(
    "-l", "--last", "last", type=whole(0, 100_000, "number of messages"), metavar="N", help="show the last N first"
)
@click.option("--from", "begin", type=_start, metavar="TIME", help="start at a time, 2h (ago), earliest or latest")
@click.option("--queue", metavar="BROKER/ID", help="only this queue")
@click.option(
    "--max", "most", type=whole(1, 1_000_000_000, "number of messages"), metavar="N", help="stop after N messages"
)
@click.option("--no-follow", is_flag=True, help="stop after the existing messages")
@click.option("--long", "is_long", is_flag=True, help="show all fields of each message")
@connection
@body_option
@json_option
def tail(
    link: Link,
    topic: str,
    tags: str | None,
    sql: str | None,
    last: int | None,
    begin: int | None,
    queue: str | None,
    most: int | None,
    no_follow: bool,
    is_long: bool,
    form: str,
    as_json: bool,
) -> int:
    """Show messages as they arrive until Ctrl-C, one per line: store time, queue, #tags, !keys and body.

    Starts with the next message unless --last or --from is given.

    \b
    rocket message tail orders --tags paid --last 10
    rocket message tail orders --from 1h --sql "amount > 100" --json | jq .body
    """
    exclusive({"--last": last, "--from": begin})
    exclusive({"--tags": tags, "--sql": sql})
    exclusive({"--json": as_json, "--long": is_long})
    from spark_rocket.cli.commands.message import find_queue

    with link.admin() as admin, link.reader() as reader:
        only = None if queue is None else find_queue(admin, topic, queue)
        reader.queues(topic)  # fail early for an unknown topic
        if sql is not None:
            reader.check_filter(topic, sql)
        follower = _Follower(admin, reader, topic, only, tags, sql)
        shown = 0
        try:
            for message in follower.messages(last, begin, follow=not no_follow):
                message_show.put(message, form, is_long, as_json)
                shown += 1
                if most is not None and shown >= most:
                    break
        except KeyboardInterrupt:
            pass  # pending pulls end with their connections
    if no_follow and follower.failed:
        show.print_failures(follower.failed)
        return 1
    return 0


class _Follower:
    """The position of each queue, and its pull requests."""

    def __init__(
        self,
        admin: Admin,
        reader: Reader,
        topic: str,
        only: MessageQueue | None,
        tags: str | None,
        sql: str | None,
    ) -> None:
        from spark_rocket.protocol.filter.tags import parse_tags

        self._admin = admin
        self._reader = reader
        self._topic = topic
        self._only = only
        self._tags = tags or "*"
        self._sql = sql
        self._wanted = parse_tags(self._tags)
        self._offsets: dict[MessageQueue, int] = {}
        self._unavailable: set[str] = set()
        self._begin_ms = 0
        self._failed: Failures = {}

    @property
    def failed(self) -> Failures:
        """The failures of brokers at the start, only of the selected queue's broker if one is selected."""
        only = self._only
        return {name: why for name, why in self._failed.items() if only is None or name == only.broker_name}

    def messages(self, last: int | None, begin: int | None, *, follow: bool) -> Iterator[MessageExt]:
        self._begin_ms = now_ms() - _MAX_CLOCK_SKEW_MS if begin is None or begin < 0 else begin
        every = self._admin.offsets(self._topic, failed=self._failed)
        ends = {queue: ends for queue, ends in every.items() if self._only in (None, queue)}
        self._offsets = {queue: high for queue, (_, high) in ends.items()}
        if last:
            yield from reversed(self._last(last))
        elif begin is not None and begin >= 0:
            yield from self._since(begin, ends)
        if follow:
            for broker, error in self.failed.items():
                self._report_unavailable(broker, error)
            yield from self._follow()

    def _last(self, count: int) -> list[MessageExt]:
        """Return the newest messages of all queues, newest first."""
        from spark_rocket.protocol.record.messages import UndecodableError

        failed = dict(self._failed)
        newest = self._admin.messages_by_time(
            self._topic, queue=self._only, limit=count, tags=self._tags, sql=self._sql, failed=failed
        )
        for where, error in failed.items():
            if isinstance(error, UndecodableError):
                print_problem(f"{where}: {error.message}")
            else:
                self._failed[where] = error
        return newest

    def _since(self, begin: int, ends: dict[MessageQueue, tuple[int, int]]) -> Iterator[MessageExt]:
        """Yield the existing messages of all queues in the order of time."""
        parts = []
        for queue, (low, high) in ends.items():
            first = low if begin == 0 or low >= high else self._reader.offset_for_time(queue, begin)
            parts.append(self._between(queue, first, high))
        yield from heapq.merge(*parts, key=lambda message: message.store_timestamp)

    def _between(self, queue: MessageQueue, first: int, end: int) -> Iterator[MessageExt]:
        from spark_rocket.protocol.record.messages import UndecodableError

        while first < end:
            try:
                yield from self._admin.messages_between(queue, first, end, tags=self._tags, sql=self._sql)
            except UndecodableError as error:
                first = _after(queue, first, error)
            else:
                return

    def _follow(self) -> Iterator[MessageExt]:
        waiting: dict[Future[PullResult], MessageQueue] = {}
        retry_at: dict[MessageQueue, float] = {}
        last_refresh = time.monotonic()
        refresh: Future[tuple[dict[MessageQueue, int], Failures]] | None = None
        while True:
            now = time.monotonic()
            if refresh is not None and refresh.done():
                self._take_queues(*refresh.result())
                refresh, last_refresh = None, now
            elif refresh is None and now - last_refresh >= REFRESH_INTERVAL_S:
                refresh = _in_background(self._new_queues)  # an unresponsive broker must not block the others
            busy = set(waiting.values())
            for queue in [one for one in self._offsets if one not in busy and retry_at.get(one, 0.0) <= now]:
                waiting[self._pull(queue)] = queue
            if not waiting:
                time.sleep(RETRY_DELAY_S)
            done, _ = wait(waiting, timeout=RETRY_DELAY_S, return_when=FIRST_COMPLETED)
            for future in done:
                queue = waiting.pop(future)
                try:
                    found = future.result()
                except RocketError as error:
                    self._report_unavailable(queue.broker_name, error)
                    retry_at[queue] = time.monotonic() + RETRY_DELAY_S
                else:
                    self._report_available(queue.broker_name)
                    yield from self._accepted(queue, found)
                    if len(self._offsets) > _MAX_LONG_POLLS and not found.records:
                        retry_at[queue] = time.monotonic() + RETRY_DELAY_S

    def _pull(self, queue: MessageQueue) -> Future[PullResult]:
        suspend = SUSPEND_MS if len(self._offsets) <= _MAX_LONG_POLLS else 0
        offset = self._offsets[queue]
        return self._reader.pull_async(
            queue, offset, max_msgs=_PAGE, tags=self._tags, sql=self._sql, suspend_ms=suspend
        )

    def _accepted(self, queue: MessageQueue, found: PullResult) -> Iterable[MessageExt]:
        from spark_rocket.protocol.record.messages import UndecodableError, decode_messages

        offset = self._offsets[queue]
        self._offsets[queue] = found.next_offset
        try:
            messages = decode_messages(found.records, queue.broker_name, namespace=found.namespace)
        except UndecodableError as error:
            messages = error.messages
            self._offsets[queue] = _after(queue, offset, error)
        for message in messages:
            if message.queue_offset >= offset and (self._sql is not None or self._wanted.matches(message.tags)):
                yield message

    def _new_queues(self) -> tuple[dict[MessageQueue, int], Failures]:
        """Return new queues, or queues of returned brokers, with their first offsets; and the failures."""
        from spark_rocket.client.admin.base import record_failure

        found: dict[MessageQueue, int] = {}
        failed: Failures = {}
        with record_failure(failed, _NAME_SERVER):
            for queue in self._reader.refresh(self._topic):
                if self._only in (None, queue) and queue not in self._offsets and queue.broker_name not in failed:
                    with record_failure(failed, queue.broker_name):
                        found[queue] = self._reader.offset_for_time(queue, self._begin_ms)
        return found, failed

    def _take_queues(self, found: dict[MessageQueue, int], failed: Failures) -> None:
        if _NAME_SERVER not in failed:
            self._report_available(_NAME_SERVER)
        for queue, offset in found.items():
            self._offsets[queue] = offset
            self._report_available(queue.broker_name)
        for server, error in failed.items():
            self._report_unavailable(server, error)

    def _report_unavailable(self, server: str, error: RocketError) -> None:
        """Report it once; requests are retried until it responds."""
        if server not in self._unavailable:
            self._unavailable.add(server)
            print_problem(f"{server}: {error.text} Retrying.")

    def _report_available(self, server: str) -> None:
        if server in self._unavailable:
            self._unavailable.remove(server)
            print_problem(f"{server} is available again.")


def _after(queue: MessageQueue, offset: int, damaged: UndecodableError) -> int:
    """Report a message that cannot be decoded; return the offset after it, beyond ``offset``."""
    print_problem(f"{queue.name}: {damaged.message}")
    return max(offset, damaged.queue_offset) + 1


def _in_background(work: Callable[[], _T]) -> Future[_T]:
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="tail-queues", daemon=True).start()
    return future
