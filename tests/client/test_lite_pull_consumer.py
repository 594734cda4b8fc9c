"""Lite pull consumers: polls, commits, and assignment of queues."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_rocket.client.consume import puller
from spark_rocket.client.consume.allocation import AllocateByConfig
from spark_rocket.client.consume.listeners import ConsumeFromWhere, MessageModel
from spark_rocket.client.consume.lite_pull_consumer import LitePullConsumer
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.lifecycle import ServiceState
from spark_rocket.client.send.producer import Producer
from spark_rocket.errors import (
    ClientError,
    GroupInUseError,
    QueueNotFoundError,
    RocketError,
    StateError,
    TopicNotFoundError,
)
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.testing import LocalCluster
from tests.kit.forking import in_child
from tests.kit.waiting import until

pytestmark = pytest.mark.live

QUEUES = 2
_numbers = count()
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
WAIT = 30.0

Make = Callable[..., LitePullConsumer]


@pytest.fixture
def make(cluster: LocalCluster, closing: Callable[[LitePullConsumer], LitePullConsumer]) -> Make:
    """Consumers of the group ``g<topic>`` from the first message, each as in a separate process."""

    def build(
        topic: str,
        *,
        subscribe: str | None = "*",
        assign: list[MessageQueue] | None = None,
        start: bool = True,
        **settings: Any,
    ) -> LitePullConsumer:
        usual: dict[str, Any] = {"consume_from_where": FIRST, "instance_name": f"i{next(_numbers)}"}
        consumer = closing(LitePullConsumer(f"g{topic}", name_server=cluster.name_server, **usual | settings))
        if assign is not None:
            consumer.assign(assign)
        elif subscribe is not None:
            consumer.subscribe(topic, subscribe)
        if start:
            consumer.start()
        return consumer

    return build


def fill(producer: Producer, topic: str, each: int, *, start: int = 0, tags: str | None = None) -> list[MessageQueue]:
    """Send ``each`` messages to each queue. The body is queue and number."""
    queues = producer.instance().routes.publish_route(topic)
    for queue in queues:
        numbers = range(start, start + each)
        producer.send([Message.of(topic, f"{queue.queue_id}:{i}", tags=tags) for i in numbers], queue=queue)
    return list(queues)


def bodies(messages: list[MessageExt]) -> list[str]:
    return [message.body.decode() for message in messages]


def drain(consumer: LitePullConsumer, number: int) -> list[MessageExt]:
    """Poll until ``count`` messages were received."""
    found: list[MessageExt] = []
    while len(found) < number:
        polled = consumer.poll(WAIT)
        assert polled, f"only {len(found)} of {number}"
        found += polled
    assert len(found) == number
    return found


# --- polling --------------------------------------------------------------------------------------------------------


def test_all_messages_of_a_topic_arrive_once_and_in_order(topic: str, producer: Producer, make: Make) -> None:
    fill(producer, topic, 25)
    consumer = make(topic)
    assert consumer.state is ServiceState.RUNNING
    found: list[MessageExt] = []
    while len(found) < 50:
        polled = consumer.poll(WAIT)
        assert 0 < len(polled) <= 10
        assert len({message.queue_id for message in polled}) == 1
        found += polled
    for queue_id in (0, 1):
        mine = [message for message in found if message.queue_id == queue_id]
        assert bodies(mine) == [f"{queue_id}:{i}" for i in range(25)]
    assert consumer.poll(0) == []
    fill(producer, topic, 1, start=25)
    assert sorted(bodies(drain(consumer, 2))) == ["0:25", "1:25"]


def test_tags_select_messages(topic: str, producer: Producer, make: Make) -> None:
    for tag in ("a", "b", "c"):
        fill(producer, topic, 2, tags=tag)
    consumer = make(topic, subscribe="a || c")
    assert {message.tags for message in drain(consumer, 8)} == {"a", "c"}


def test_a_changed_subscription_takes_effect(topic: str, producer: Producer, make: Make) -> None:
    consumer = make(topic, subscribe=None)
    consumer.subscribe(topic, "a")
    consumer.subscribe(topic, "b")
    fill(producer, topic, 1, tags="a")
    fill(producer, topic, 1, tags="b")
    assert {message.tags for message in drain(consumer, 2)} == {"b"}
    consumer.unsubscribe(topic)
    assert consumer.assignment() == []
    assert consumer.poll(0) == []


def test_batches_are_arrow_record_batches(topic: str, producer: Producer, make: Make) -> None:
    fill(producer, topic, 40)
    consumer = make(topic, pull_batch_size=1000)
    found = [batch for _ in range(2) for batch in consumer.poll_batches(WAIT)]
    assert [len(batch) for batch in found] == [40, 40]
    assert {batch.column("queueId")[0].as_py() for batch in found} == {0, 1}
    assert found[0].column("queueOffset").to_pylist() == list(range(40))


def test_polls_may_be_mixed(topic: str, producer: Producer, make: Make) -> None:
    """A poll, also as Arrow, continues the batch of an interrupted iteration."""
    (queue, _) = fill(producer, topic, 10)
    consumer = make(topic, assign=[queue])
    every = iter(consumer)
    assert bodies([next(every), next(every)]) == ["0:0", "0:1"]
    (batch,) = consumer.poll_batches(WAIT)
    assert batch.column("queueOffset").to_pylist() == list(range(2, 10))
    fill(producer, topic, 3, start=10)
    assert next(every).body == b"0:10"
    assert bodies(drain(consumer, 2)) == ["0:11", "0:12"]


def test_concurrent_polls_return_no_duplicates(topic: str, producer: Producer, make: Make) -> None:
    fill(producer, topic, 300)
    consumer = make(topic)
    found: list[str] = []
    enough = threading.Event()

    def poll() -> None:
        while not enough.is_set():
            found.extend(bodies(consumer.poll(0.2)))
            if len(found) >= 600:
                enough.set()

    threads = [threading.Thread(target=poll) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert enough.wait(30)
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(f"{queue}:{i}" for queue in (0, 1) for i in range(300))


# --- committing -----------------------------------------------------------------------------------------------------


def test_only_polled_and_marked_messages_are_committed(
    topic: str, producer: Producer, reader: Reader, make: Make
) -> None:
    queue = fill(producer, topic, 30)[0]
    consumer = make(topic, assign=[queue], auto_commit=False)
    assert len(consumer.poll(WAIT)) == 10
    consumer.persist_offsets()
    assert consumer.committed(queue) is None
    consumer.commit()
    assert consumer.committed(queue) == 10
    assert len(consumer.poll(WAIT)) == 10
    consumer.close()
    assert reader.committed_offset(consumer.group, queue) == 10
    again = make(topic, assign=[queue], auto_commit=False)
    assert bodies(again.poll(WAIT))[0] == "0:10", "what was not committed comes again"
    again.commit_offsets({queue: 7})
    again.close()
    assert reader.committed_offset(consumer.group, queue) == 7


def test_auto_commit_marks_messages_of_earlier_polls(
    topic: str, producer: Producer, reader: Reader, make: Make
) -> None:
    queue = fill(producer, topic, 30)[0]
    consumer = make(topic, assign=[queue], auto_commit_interval=0)
    consumer.poll(WAIT)
    consumer.persist_offsets()
    assert consumer.committed(queue) == 0, "what the last poll gave may still be in use"
    consumer.poll(WAIT)
    consumer.persist_offsets()
    assert consumer.committed(queue) == 10
    consumer.close()
    assert reader.committed_offset(consumer.group, queue) == 20, "the end counts it as consumed"


def test_failed_messages_are_not_committed(topic: str, producer: Producer, reader: Reader, make: Make) -> None:
    queue = fill(producer, topic, 30)[0]
    consumer = make(topic, assign=[queue], auto_commit_interval=0)

    def consume() -> None:
        with consumer:
            consumer.poll(WAIT)
            assert consumer.poll(WAIT)[0].body == b"0:10"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    assert consumer.state is ServiceState.SHUTDOWN_ALREADY
    assert reader.committed_offset(consumer.group, queue) == 10


def test_leaving_a_loop_commits_its_messages(topic: str, producer: Producer, reader: Reader, make: Make) -> None:
    queue = fill(producer, topic, 30)[0]
    with make(topic, assign=[queue]) as consumer:
        for message in consumer:
            if message.queue_offset == 12:
                break
    assert reader.committed_offset(consumer.group, queue) == 13


def test_broadcasting_keeps_offsets_in_a_file(
    topic: str, producer: Producer, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR", str(tmp_path))
    fill(producer, topic, 5)
    both = [make(topic, instance_name=name, message_model=MessageModel.BROADCASTING) for name in "xy"]
    for consumer in both:
        assert len(drain(consumer, 10)) == 10
        consumer.commit()
        consumer.close()
    assert len(list(tmp_path.rglob("offsets.json"))) == 2
    fill(producer, topic, 1, start=5)
    again = make(topic, instance_name="x", message_model=MessageModel.BROADCASTING)
    assert sorted(bodies(drain(again, 2))) == ["0:5", "1:5"]
    (tmp_path / "x" / again.group / "offsets.json").unlink()
    (tmp_path / "x" / again.group / "offsets.json.tmp").mkdir()
    with pytest.raises(ClientError, match=r"offsets\.json"):
        again.commit()
    (tmp_path / "y" / again.group / "offsets.json").write_text("{")
    (tmp_path / "y" / again.group / "offsets.json.bak").unlink(missing_ok=True)
    with pytest.raises(ClientError, match=r"offsets\.json"):
        make(topic, instance_name="y", message_model=MessageModel.BROADCASTING)


# --- seeking and pausing --------------------------------------------------------------------------------------------


def test_seeking(topic: str, producer: Producer, reader: Reader, make: Make) -> None:
    queue = fill(producer, topic, 50)[1]
    consumer = make(topic)
    drain(consumer, 100)
    consumer.seek(queue, 42)
    assert bodies(consumer.poll(WAIT)) == [f"1:{i}" for i in range(42, 50)]
    consumer.seek_to_begin(queue)
    assert consumer.poll(WAIT)[0].body == b"1:0"
    consumer.seek(queue, 45)
    assert bodies(consumer.poll(WAIT)) == [f"1:{i}" for i in range(45, 50)], "what was pulled before is gone"
    consumer.seek_to_end(queue)
    fill(producer, topic, 1, start=50)
    assert sorted(bodies(drain(consumer, 2))) == ["0:50", "1:50"]
    newest = reader.messages(queue, 50)[0].store_timestamp
    assert consumer.offset_for_timestamp(queue, newest + 1) == 51
    consumer.seek_to_timestamp(queue, 0)
    assert consumer.poll(WAIT)[0].queue_offset == 0
    consumer.seek_to_timestamp(topic, newest + 1)
    consumer.commit()
    assert [consumer.committed(each) for each in consumer.assignment()] == [51, 51]


def test_a_waiting_poll_returns_messages_after_a_seek(topic: str, producer: Producer, make: Make) -> None:
    queue = fill(producer, topic, 3)[0]
    consumer = make(topic)
    drain(consumer, 6)
    found: list[MessageExt] = []
    poll = threading.Thread(target=lambda: found.extend(consumer.poll(WAIT)))
    poll.start()
    consumer.seek(queue, 2)
    poll.join()
    assert bodies(found) == ["0:2"]


def test_a_paused_queue_keeps_its_position(topic: str, producer: Producer, make: Make) -> None:
    first, second = fill(producer, topic, 5)
    consumer = make(topic)
    consumer.pause([first])
    assert {message.queue_id for message in drain(consumer, 5)} == {1}
    fill(producer, topic, 1, start=5)
    assert bodies(drain(consumer, 1)) == ["1:5"]
    consumer.seek(first, 2)
    assert consumer.poll(0.05) == [], "seeking does not resume"
    consumer.resume([first, second])
    assert bodies(drain(consumer, 4)) == ["0:2", "0:3", "0:4", "0:5"]


def test_an_offset_out_of_range_is_corrected(
    topic: str, producer: Producer, reader: Reader, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller, "CORRECTION_DELAY_S", 0.01)
    queue = fill(producer, topic, 5)[0]
    reader.commit_offset(f"g{topic}", queue, 999)
    consumer = make(topic, assign=[queue])
    until(lambda: consumer.offsets(topic) == {queue: 5})
    fill(producer, topic, 1, start=5)
    assert bodies(drain(consumer, 1)) == ["0:5"]
    consumer.commit()
    assert consumer.committed(queue) == 6


# --- groups ---------------------------------------------------------------------------------------------------------


def test_two_members_share_a_topic(topic: str, producer: Producer, make: Make) -> None:
    queues = fill(producer, topic, 20)
    changes: list[tuple[str, list[MessageQueue], list[MessageQueue]]] = []
    changed = threading.Semaphore(0)

    def note(*change: Any) -> None:
        changes.append(change)
        changed.release()
        raise ValueError("a listener's mistake is its own")

    first = make(topic, message_queue_listener=note)
    assert changed.acquire(timeout=WAIT)
    assert changes == [(topic, queues, queues)]
    drain(first, 40)
    first.commit()  # a new member can start before the previous owner has committed
    second = make(topic)
    assert changed.acquire(timeout=WAIT)
    assert len(changes[1][2]) == 1
    assert sorted(first.assignment() + second.assignment()) == queues
    fill(producer, topic, 5, start=20)
    mine, theirs = drain(first, 5), drain(second, 5)
    assert {m.queue_id for m in mine} == {q.queue_id for q in first.assignment()}
    assert {m.queue_offset for m in mine + theirs} == set(range(20, 25))
    second.close()
    assert changed.acquire(timeout=WAIT)
    assert first.assignment() == queues
    fill(producer, topic, 1, start=25)
    assert sorted(bodies(drain(first, 2))) == ["0:25", "1:25"]


def test_a_revoked_queue_is_committed_up_to_the_marked_offset(
    topic: str, producer: Producer, reader: Reader, make: Make
) -> None:
    """Messages of the last poll may still be in use: the process can die before they are processed."""
    kept, lost = fill(producer, topic, 20)
    strategy: Any = SimpleNamespace(name="CONFIG", allocate=lambda *_: [kept, lost])
    consumer = make(topic, auto_commit_interval=0, allocate_strategy=strategy)
    drain(consumer, 40)
    consumer.seek(lost, 5)
    assert bodies(consumer.poll(WAIT))[-1] == "1:14"
    assert bodies(consumer.poll(WAIT))[-1] == "1:19"
    strategy.allocate = lambda *_: [kept]
    consumer.rebalance()
    assert consumer.assignment() == [kept]
    assert reader.committed_offset(consumer.group, lost) == 15


def test_members_join_and_leave_without_lost_messages(
    cluster: LocalCluster, producer: Producer, reader: Reader, make: Make
) -> None:
    topic = cluster.create_topic(f"lite-{next(_numbers)}", queues=8)
    found: set[str] = set()
    wanted = {f"{queue}:{i}" for queue in range(8) for i in range(300)}
    everything = threading.Event()

    def consume(rounds: int) -> None:
        """Join ``rounds`` times for a hundred messages each; the last time until all messages were received."""
        for left in reversed(range(rounds)):
            with make(topic, auto_commit_interval=0) as consumer:
                mine = 0
                while not everything.is_set() and (not left or mine < 100):
                    polled = consumer.poll(0.1)
                    found.update(bodies(polled))
                    mine += len(polled)
                    if found >= wanted:
                        everything.set()

    threads = [threading.Thread(target=consume, args=(3,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(0, 300, 50):
        fill(producer, topic, 50, start=start)
    assert everything.wait(120)
    for thread in threads:
        thread.join()
    ends = dict.fromkeys(reader.queues(topic), 300)
    with make(topic) as last:  # messages of moved queues can be duplicates; after them, no more messages arrive
        while last.offsets(topic) != ends:
            last.poll(0.1)
    assert {queue: reader.committed_offset(f"g{topic}", queue) for queue in ends} == ends


def test_without_auto_commit_a_revoked_queue_resumes_at_the_last_commit(
    topic: str, producer: Producer, make: Make
) -> None:
    queue = fill(producer, topic, 20)[0]
    lost = threading.Event()

    def told(_: str, every: list[MessageQueue], mine: list[MessageQueue]) -> None:
        if mine != every:
            lost.set()

    first = make(topic, auto_commit=False, message_queue_listener=told)
    drain(first, 40)
    first.commit_offsets({queue: 15})
    second = make(topic, allocate_strategy=AllocateByConfig([queue]))
    assert lost.wait(WAIT)
    assert second.assignment() == [queue]
    assert bodies(drain(second, 5)) == [f"0:{i}" for i in range(15, 20)]


def test_assigned_queues_do_not_affect_other_members(topic: str, producer: Producer, make: Make) -> None:
    first, second = fill(producer, topic, 12)
    member = make(topic, instance_name="member")
    reader = make(topic, assign=[first], instance_name="member")
    assert bodies(drain(reader, 12)) == [f"0:{i}" for i in range(12)]
    member.rebalance()
    assert member.assignment() == [first, second]
    reader.assign([first, second])
    assert {message.queue_id for message in drain(reader, 12)} == {1}, "the first goes on where it was"
    reader.assign([second])
    assert reader.assignment() == [second]


def test_a_topic_created_after_the_start(cluster: LocalCluster, producer: Producer, make: Make) -> None:
    topic = f"later-{next(_numbers)}"
    consumer = make(topic, consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    assert consumer.assignment() == []
    cluster.create_topic(topic, queues=1)
    fill(producer, topic, 1)  # before the consumer knows the topic
    consumer.rebalance()
    assert bodies(drain(consumer, 1)) == ["0:0"]
    assert consumer.fetch_message_queues(topic) == consumer.assignment()


def test_offsets_and_running_info_for_tools(topic: str, producer: Producer, reader: Reader, make: Make) -> None:
    first, second = fill(producer, topic, 5)
    consumer = make(topic)
    drain(consumer, 10)
    assert consumer.offsets(topic) == {first: 5, second: 5}
    consumer.reset_offsets({first: 2, MessageQueue(topic, "stranger", 0): 1})
    assert reader.committed_offset(consumer.group, first) == 2
    assert bodies(drain(consumer, 3)) == ["0:2", "0:3", "0:4"]
    info = consumer.running_info()
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert [data.topic for data in info.subscription_set] == [topic]
    with pytest.raises(ClientError, match="without a listener"):
        consumer.consume_directly(b"", "b")


def test_a_forked_child_does_not_affect_the_consumer(
    topic: str, producer: Producer, reader: Reader, make: Make
) -> None:
    (first, _) = fill(producer, topic, 5)
    consumer = make(topic)
    drain(consumer, 10)

    def refuses_and_closes() -> bool:
        with pytest.raises(StateError, match="the parent of this one"):
            consumer.poll(0)
        consumer.close()
        return consumer.state is ServiceState.SHUTDOWN_ALREADY

    in_child(refuses_and_closes)
    assert reader.committed_offset(consumer.group, first) is None
    fill(producer, topic, 1, start=5)
    assert sorted(bodies(drain(consumer, 2))) == ["0:5", "1:5"]


# --- loops ----------------------------------------------------------------------------------------------------------


def test_async_for_ends_with_the_consumer(topic: str, producer: Producer, make: Make) -> None:
    fill(producer, topic, 15)
    consumer = make(topic)

    async def read() -> list[str]:
        found = []
        async for message in consumer:
            found.append(message.body.decode())
            if len(found) == 30:
                await asyncio.to_thread(fill, producer, topic, 1, start=15)
            if len(found) == 32:
                asyncio.get_running_loop().call_soon(consumer.close)
        return found

    expected = [f"{queue}:{i}" for queue in (0, 1) for i in range(16)]
    assert sorted(asyncio.run(asyncio.wait_for(read(), 30))) == sorted(expected)
    assert consumer.state is ServiceState.SHUTDOWN_ALREADY


def test_a_cancelled_async_for_loses_no_messages(topic: str, producer: Producer, make: Make) -> None:
    consumer = make(topic)
    found: list[str] = []

    async def read() -> None:
        found.extend([message.body.decode() async for message in consumer])

    async def cancel() -> None:
        task = asyncio.ensure_future(read())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    fill(producer, topic, 10)
    assert len(found + bodies(drain(consumer, 20 - len(found)))) == 20
    assert not consumer._pulled.wakers


def test_a_cancelled_next_message_does_not_end_the_iteration(topic: str, producer: Producer, make: Make) -> None:
    consumer = make(topic)

    async def read() -> list[str]:
        each = aiter(consumer)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(each), 0.05)
        await asyncio.to_thread(fill, producer, topic, 1)
        return [(await anext(each)).body.decode() for _ in range(2)]

    assert sorted(asyncio.run(asyncio.wait_for(read(), WAIT))) == ["0:0", "1:0"]
    assert not consumer._pulled.wakers


@pytest.mark.parametrize("steps", range(6))
def test_a_cancellation_is_not_lost_if_the_consumer_is_woken_at_the_same_time(
    topic: str, make: Make, steps: int
) -> None:
    consumer = make(topic, poll_timeout=60)

    async def cancel() -> None:
        task = asyncio.ensure_future(anext(aiter(consumer)))
        for _ in range(5):  # until it waits
            await asyncio.sleep(0)
        consumer.resume(())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=WAIT)
        assert task.cancelled()

    asyncio.run(cancel())


def test_a_loop_ends_with_the_consumer(topic: str, make: Make) -> None:
    consumer = make(topic, poll_timeout=60)
    ended = threading.Event()

    def read() -> None:
        for _ in consumer:
            pass
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    consumer.close()
    assert ended.wait(WAIT)
    thread.join()


# --- mistakes -------------------------------------------------------------------------------------------------------

QUEUE = MessageQueue("t", "b", 0)


def test_invalid_calls_are_explained(topic: str, producer: Producer, make: Make) -> None:
    queue = fill(producer, topic, 5)[0]
    consumer = make(topic, instance_name="taken")
    stranger = MessageQueue(topic, queue.broker_name, 99)
    cases: list[tuple[type[RocketError], str, Callable[[], object]]] = [
        (StateError, "already started", consumer.start),
        (StateError, "cannot assign queues", lambda: consumer.assign([queue])),
        (StateError, "not assigned", lambda: consumer.seek(stranger, 0)),
        (StateError, "not assigned", lambda: consumer.pause([stranger])),
        (StateError, "No queue of other", lambda: consumer.seek_to_timestamp("other", 0)),
        (ClientError, "start at 0", lambda: consumer.seek(queue, -1)),
        (ClientError, "valid offsets are 0 to 5", lambda: consumer.seek(queue, 6)),
        (ClientError, "-3", lambda: consumer.commit_offsets({queue: -3})),
        (ClientError, "Invalid poll timeout", lambda: consumer.poll(-1)),
        (ClientError, "list of queues is empty", lambda: make(topic, subscribe=None, start=False).assign([])),
        (ClientError, "blank", lambda: consumer.subscribe(" ")),
        (RocketError, "SQL", lambda: consumer.subscribe(topic, sql="a >")),
        (QueueNotFoundError, "does not exist", lambda: make(topic, subscribe=None).assign([stranger])),
        (TopicNotFoundError, "nowhere", lambda: consumer.fetch_message_queues("nowhere")),
        (GroupInUseError, consumer.group, lambda: make(topic, instance_name="taken")),
        (ClientError, "pull_batch_size", lambda: make(topic, pull_batch_size=0)),
        (ClientError, "group name", lambda: LitePullConsumer("a b")),
    ]
    for kind, text, call in cases:
        with pytest.raises(kind, match=text):
            call()
    assert len(drain(consumer, 10)) == 10, "and it lives on"


def test_assigned_queues_and_a_subscription(topic: str, make: Make) -> None:
    consumer = make(topic, assign=[QUEUE], start=False)
    with pytest.raises(StateError, match="cannot subscribe"):
        consumer.subscribe(topic)
