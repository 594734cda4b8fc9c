"""``rocket message tail``: follow a topic, as ``tail -f`` follows a file, without being a consumer.

Queues are read by offset, with a pull that waits at the broker for each; no group, no heartbeat, no offsets are kept,
so that nobody else's messages are taken away. Messages of different queues come in the order in which they arrive; what
is shown first, of ``--last`` or ``--from``, in the order of time. A broker that is away is waited for, from the
beginning on; queues and brokers that come are found every ten seconds, and read from where this one began.

Exit status: 0 stopped by Ctrl-C or at the end, 1 it could not be done, with --no-follow also for one broker.
Corresponds to mqadmin's consumeMessage and printMsg.
"""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, TypeVar

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import exclusive, json_option, whole
from spark_rocket.cli.commands import message_show
from spark_rocket.cli.commands.message_show import body_option
from spark_rocket.cli.connect import Link, complete_topics, connection
from spark_rocket.cli.text import moment
from spark_rocket.errors import RocketError

if TYPE_CHECKING:
    from spark_rocket.client import Admin, PullResult, Reader
    from spark_rocket.client.admin import Failures
    from spark_rocket.model import MessageExt, MessageQueue

_T = TypeVar("_T")

SUSPEND_MS = 10_000
LOOK_SECONDS = 10.0
PAUSE_SECONDS = 1.0
_MOST_WAITING = 256  # pulls that wait at once; of more queues each is asked again and again
_PAGE = 32
_NAME_SERVER = "the name server"
_CLOCKS_APART_MS = 10_000  # so old may a message be that is shown of a queue that comes late


def _start(text: str) -> int:
    """A type: a time, ``earliest`` as 0, or ``latest`` as -1."""
    return {"earliest": 0, "latest": -1}[text] if text in ("earliest", "latest") else moment(text)


@click.command("tail")
@click.argument("topic", shell_complete=complete_topics)
@click.option("--tags", metavar="TAGS", help="only messages with one of these, as in 'a || b'")
@click.option("--sql", metavar="EXPRESSION", help="only messages that an SQL92 expression lets through")
@click.option(
    "-l", "--last", "last", type=whole(0, 100_000, "number of messages"), metavar="N", help="show the last N first"
)
@click.option("--from", "begin", type=_start, metavar="TIME", help="begin there: a time, 2h (ago), earliest, latest")
@click.option("--queue", metavar="BROKER/ID", help="this queue only")
@click.option(
    "--max", "most", type=whole(1, 1_000_000_000, "number of messages"), metavar="N", help="end after so many"
)
@click.option("--no-follow", is_flag=True, help="end at what is there now")
@click.option("--long", "is_long", is_flag=True, help="all that is known of each message")
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
    """Show messages as they come: when stored, where, #tags, !keys and body, one a line; until Ctrl-C.

    It begins with the next message, unless --last or --from say otherwise.

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
        reader.queues(topic)  # an unknown topic is said at once
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
            pass  # what is under way is left to itself: the connections close
    return show.failures(follower.failed) if no_follow else 0


class _Follower:
    """Where each queue is, and what is asked of it."""

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
        self._away: set[str] = set()
        self._begin_ms = 0
        self._failed: Failures = {}

    @property
    def failed(self) -> Failures:
        """Why brokers did not answer in the beginning, of those that matter."""
        only = self._only
        return {name: why for name, why in self._failed.items() if only is None or name == only.broker_name}

    def messages(self, last: int | None, begin: int | None, *, follow: bool) -> Iterator[MessageExt]:
        self._begin_ms = int(time.time() * 1000) - _CLOCKS_APART_MS if begin is None or begin < 0 else begin
        every = self._admin.offsets(self._topic, failed=self._failed)
        ends = {queue: ends for queue, ends in every.items() if self._only in (None, queue)}
        self._offsets = {queue: high for queue, (_, high) in ends.items()}
        if last:
            yield from reversed(
                self._admin.messages_by_time(
                    self._topic, queue=self._only, limit=last, tags=self._tags, sql=self._sql, failed=self._failed
                )
            )
        elif begin is not None and begin >= 0:
            yield from self._since(begin, ends)
        if follow:
            for broker, error in self.failed.items():
                self._is_away(broker, error)
            yield from self._follow()

    def _since(self, begin: int, ends: dict[MessageQueue, tuple[int, int]]) -> Iterator[MessageExt]:
        """What is there already, of all queues in the order of time."""
        parts = []
        for queue, (low, high) in ends.items():
            first = low if begin == 0 or low >= high else self._reader.offset_for_time(queue, begin)
            parts.append(self._admin.messages_between(queue, first, high, tags=self._tags, sql=self._sql))
        yield from heapq.merge(*parts, key=lambda message: message.store_timestamp)

    def _follow(self) -> Iterator[MessageExt]:
        waiting: dict[Future[PullResult], MessageQueue] = {}
        resting: dict[MessageQueue, float] = {}
        looked = time.monotonic()
        looking: Future[tuple[dict[MessageQueue, int], Failures]] | None = None
        while True:
            now = time.monotonic()
            if looking is not None and looking.done():
                self._take_queues(*looking.result())
                looking, looked = None, now
            elif looking is None and now - looked >= LOOK_SECONDS:
                looking = _in_background(self._new_queues)  # a broker that hangs must not keep the others waiting
            busy = set(waiting.values())
            for queue in [one for one in self._offsets if one not in busy and resting.get(one, 0.0) <= now]:
                waiting[self._pull(queue)] = queue
            if not waiting:
                time.sleep(PAUSE_SECONDS)
            done, _ = wait(waiting, timeout=PAUSE_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                queue = waiting.pop(future)
                try:
                    found = future.result()
                except RocketError as error:
                    self._is_away(queue.broker_name, error)
                    resting[queue] = time.monotonic() + PAUSE_SECONDS
                else:
                    self._is_back(queue.broker_name)
                    yield from self._taken(queue, found)
                    if len(self._offsets) > _MOST_WAITING and not found.records:
                        resting[queue] = time.monotonic() + PAUSE_SECONDS

    def _pull(self, queue: MessageQueue) -> Future[PullResult]:
        suspend = SUSPEND_MS if len(self._offsets) <= _MOST_WAITING else 0
        offset = self._offsets[queue]
        return self._reader.pull_async(
            queue, offset, max_msgs=_PAGE, tags=self._tags, sql=self._sql, suspend_ms=suspend
        )

    def _taken(self, queue: MessageQueue, found: PullResult) -> Iterable[MessageExt]:
        from spark_rocket.protocol.record.messages import decode_messages

        offset = self._offsets[queue]
        self._offsets[queue] = found.next_offset
        for message in decode_messages(found.records, queue.broker_name):
            if message.queue_offset >= offset and (self._sql is not None or self._wanted.matches(message.tags)):
                yield message

    def _new_queues(self) -> tuple[dict[MessageQueue, int], Failures]:
        """Queues that are new, or whose broker was away: read from where this one began. And who does not answer."""
        from spark_rocket.client.admin.base import put_aside

        found: dict[MessageQueue, int] = {}
        failed: Failures = {}
        with put_aside(failed, _NAME_SERVER):
            for queue in self._reader.refresh(self._topic):
                if self._only in (None, queue) and queue not in self._offsets and queue.broker_name not in failed:
                    with put_aside(failed, queue.broker_name):
                        found[queue] = self._reader.offset_for_time(queue, self._begin_ms)
        return found, failed

    def _take_queues(self, found: dict[MessageQueue, int], failed: Failures) -> None:
        if _NAME_SERVER not in failed:
            self._is_back(_NAME_SERVER)
        for queue, offset in found.items():
            self._offsets[queue] = offset
            self._is_back(queue.broker_name)
        for who, error in failed.items():
            self._is_away(who, error)

    def _is_away(self, who: str, error: RocketError) -> None:
        """Said once: it is tried again until it answers."""
        if who not in self._away:
            self._away.add(who)
            text = f"{error.message} {error.remedy}".rstrip()
            print(f"rocket: {who}: {text} Trying on.", file=sys.stderr)

    def _is_back(self, who: str) -> None:
        if who in self._away:
            self._away.remove(who)
            print(f"rocket: {who} answers again.", file=sys.stderr)


def _in_background(work: Callable[[], _T]) -> Future[_T]:
    """On a thread that nobody waits for at the end."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="tail-queues", daemon=True).start()
    return future
