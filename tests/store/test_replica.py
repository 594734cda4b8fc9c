"""A slave's store: the master's log byte for byte, and the same queues and index."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.errors import StoreCorruptError, StoreError
from spark_rocket.store import MessageStore, PutStatus, StoreConfig
from spark_rocket.store.index.index_service import IndexService
from spark_rocket.store.log import mapped_file
from spark_rocket.store.log.checkpoint import StoreCheckpoint
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.queues.side_files import QueueEnds
from spark_rocket.store.recovery.replica import Replica
from spark_rocket.store.tools.check import check_store
from tests.golden import extract_store
from tests.store.conftest import MakeStore
from tests.store.helpers import (
    BORN,
    bodies,
    close_right,
    failing,
    golden,
    image_of,
    index_of,
    opened,
    put,
    put_batch,
    recovery_of,
    small,
)


@pytest.fixture
def master(make_store: MakeStore) -> MessageStore:
    return make_store()


@pytest.fixture
def slave(make_store: MakeStore, tmp_path: Path) -> MessageStore:
    return make_store(small(tmp_path / "slave", is_replica=True))


def files(path: Path, what: str) -> dict[str, bytes]:
    """Names and bytes of files, without a last empty file."""
    found = {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.glob(what))}
    return {name: data for name, data in found.items() if data.count(0) < len(data)}


def assert_alike(master: Path, slave: Path) -> None:
    assert files(slave, "commitlog/*") == files(master, "commitlog/*")
    assert files(slave, "consumequeue/*/*/*") == files(master, "consumequeue/*/*/*")


def assert_serves_the_same(master: MessageStore, slave: MessageStore) -> None:
    """The same queues with the same ends, and the same messages from where the slave's log begins."""
    for topic in master.topics():
        for queue_id in master.queues(topic):
            first = slave.get_min_offset(topic, queue_id)
            assert slave.get_max_offset(topic, queue_id) == master.get_max_offset(topic, queue_id)
            assert bodies(slave, topic, queue_id) == bodies(master, topic, queue_id)[first:]


def replica(config: StoreConfig, **more: Any) -> MessageStore:
    return opened(replace(config, is_replica=True), **more)


def taking(store: MessageStore) -> Replica:
    assert store.replica is not None
    return store.replica


def copy(master: MessageStore, slave: MessageStore, sizes: Iterator[int], end: int | None = None) -> None:
    """Copy the missing bytes to a slave in pieces of these sizes."""
    taker = taking(slave)
    end = master.max_physical_offset if end is None else end
    while (offset := taker.received_offset) < end:
        taker.append(offset, master.log_bytes(offset, min(next(sizes), end - offset)))


def every(size: int) -> Iterator[int]:
    while True:
        yield size


def odd(seed: int) -> Iterator[int]:
    """Random pieces: tiny, usual and large ones."""
    rng = random.Random(seed)
    while True:
        yield rng.choice((1, 3, 7, 31, 88, 91, 1000, 4097, 32 << 10, 100_000))


def fill(store: MessageStore, seed: int, count: int = 400) -> None:
    rng = random.Random(seed)
    for number in range(count):
        topic, queue_id = rng.choice("ABC"), rng.randrange(3)
        properties = b"KEYS\1k%d\2TAGS\1t%d" % (number, number % 3)
        if rng.random() < 0.1:
            put_batch(store, topic, queue_id, [(0, b"%d" % i * rng.randrange(1, 40), b"KEYS\1b") for i in range(20)])
        else:
            put(store, topic, queue_id, b"%d" % number * rng.randrange(1, 400), properties)


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("sizes", [every(32 << 10), odd(1)])
def test_a_log_of_apache_is_copied_byte_for_byte(name: Any, sizes: Iterator[int], tmp_path: Path) -> None:
    master = opened(golden(extract_store(name, tmp_path / "master")))
    config = golden(tmp_path / "slave")
    slave = replica(config)
    copy(master, slave, sizes)
    assert slave.max_physical_offset == master.max_physical_offset
    assert_serves_the_same(master, slave)
    master.close()
    slave.close()
    assert_alike(master.config.store_path, config.store_path)
    assert list(files(config.store_path, "index/*").values()) == list(
        files(master.config.store_path, "index/*").values()
    )
    assert check_store(config.store_path, config) == []


@pytest.mark.parametrize("count", [3, 300])
def test_arrivals_are_reported_to_readers(
    master: MessageStore, make_store: MakeStore, tmp_path: Path, count: int
) -> None:
    told: list[tuple[Any, ...]] = []
    slave = make_store(small(tmp_path / "slave", is_replica=True), on_arrive=lambda *what: told.append(what[:4]))
    for number in range(count):
        put(master, "T", 1, b"x", b"TAGS\1" + b"ab"[number % 2 : number % 2 + 1])
    copy(master, slave, every(1 << 20))
    assert {what[3] for what in told} == {ord("a"), ord("b")}
    assert {what[:2] for what in told} == {("T", 1)}
    assert max(what[2] for what in told) == count


def test_a_record_waits_until_it_is_whole(master: MessageStore, slave: MessageStore) -> None:
    end = put(master, "T", 0, b"1").end_physical_offset
    second = put(master, "T", 0, b"2" * 5000).end_physical_offset
    copy(master, slave, every(512), second - 1)
    assert taking(slave).received_offset == second - 1
    assert slave.max_physical_offset == end
    assert bodies(slave, "T", 0) == [b"1"]
    taking(slave).forget()
    assert taking(slave).received_offset == end
    copy(master, slave, every(512))
    assert bodies(slave, "T", 0) == [b"1", b"2" * 5000]


def test_no_message_is_put_into_a_replica(make_store: MakeStore) -> None:
    slave = make_store(is_replica=True)
    result = slave.put_message("T", 0, b"x", b"", born_timestamp=1, born_host=BORN)
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "slave" in result.reason
    assert slave.max_physical_offset == 0


def test_a_slave_that_joins_late_begins_with_the_last_file(
    master: MessageStore, slave: MessageStore, make_store: MakeStore
) -> None:
    fill(master, 7)
    start = master.max_physical_offset - master.max_physical_offset % (32 << 10)
    assert start > 0
    taking(slave).append(start, master.log_bytes(start, 700))
    copy(master, slave, odd(5))
    fill(master, 8)
    copy(master, slave, odd(6))
    assert slave.min_physical_offset == start
    assert_serves_the_same(master, slave)
    slave.close()
    again = make_store(slave.config)
    assert recovery_of(again).clean
    assert again.min_physical_offset == start
    copy(master, again, odd(7))


def test_a_slave_can_become_a_master_and_the_other_way_round(
    master: MessageStore, slave: MessageStore, make_store: MakeStore, tmp_path: Path
) -> None:
    fill(master, 1, 60)
    copy(master, slave, odd(1))
    master.close()
    slave.close()
    promoted = make_store(small(tmp_path / "slave"))
    follower = make_store(replace(master.config, is_replica=True))
    fill(promoted, 2, 60)
    copy(promoted, follower, odd(2))
    promoted.close()
    follower.close()
    assert_alike(promoted.config.store_path, follower.config.store_path)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_bytes_that_do_not_continue_the_log_are_refused(master: MessageStore, slave: MessageStore) -> None:
    fill(master, 1, 5)
    copy(master, slave, every(100))
    end = slave.max_physical_offset
    for offset in (0, end - 1, end + 1, end + (32 << 10)):
        with pytest.raises(StoreError, match=str(end)):
            taking(slave).append(offset, b"x")
    assert slave.max_physical_offset == end


@pytest.mark.parametrize("junk", [bytes(200), b"GET / HTTP/1.1\r\n" * 20, b"\xff" * 200])
def test_invalid_records_are_refused(master: MessageStore, slave: MessageStore, junk: bytes) -> None:
    fill(master, 1, 5)
    copy(master, slave, every(1 << 20))
    end = slave.max_physical_offset
    good = put(master, "T", 0, b"good")
    with pytest.raises(StoreCorruptError, match=str(good.end_physical_offset)):
        taking(slave).append(end, master.log_bytes(end, 1 << 20) + junk)
    assert slave.max_physical_offset == good.end_physical_offset  # what is good before it is taken
    assert taking(slave).received_offset == slave.max_physical_offset


def test_a_record_of_another_place_is_refused(master: MessageStore, slave: MessageStore) -> None:
    end = put(master, "T", 0, b"first").end_physical_offset
    put(master, "T", 0, b"other")
    with pytest.raises(StoreCorruptError, match="not its position"):
        taking(slave).append(0, master.log_bytes(end, 1000))
    assert slave.max_physical_offset == 0
    copy(master, slave, every(1000))


def test_files_of_another_size_are_refused(master: MessageStore, make_store: MakeStore, tmp_path: Path) -> None:
    fill(master, 1)
    other = make_store(small(tmp_path / "slave", is_replica=True, mapped_file_size_commit_log=48 << 10))
    with pytest.raises(StoreCorruptError, match="mappedFileSizeCommitLog"):
        copy(master, other, every(1 << 20))
    late = make_store(small(tmp_path / "late", is_replica=True, mapped_file_size_commit_log=48 << 10))
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        taking(late).append(32 << 10, master.log_bytes(32 << 10, 100))


def test_a_body_damaged_at_the_master_is_copied_as_it_is(
    master: MessageStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slave = replica(small(tmp_path / "slave"))  # not checked at its end, since it has the damage
    put(master, "T", 0, b"one")
    damaged = put(master, "T", 0, b"two")
    put(master, "T", 0, b"three")
    log = master.log_bytes(0, 1 << 20).replace(b"two", b"TWO")
    taking(slave).append(0, log)
    assert slave.max_physical_offset == master.max_physical_offset
    assert slave.log_bytes(0, 1 << 20) == log
    assert f"offset {damaged.physical_offset}" in caplog.text
    slave.close()


def test_a_full_disk_refuses_and_the_next_attempt_succeeds(
    master: MessageStore, make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails at the log, at a queue, at the next file."""
    fill(master, 1, 200)
    slave = make_store(small(tmp_path / "slave", is_replica=True, allocate_ahead=4096))
    allocate, rng, failed = mapped_file.allocate, random.Random(1), 0

    def sometimes(fd: int, start: int, length: int) -> None:
        if rng.random() < 0.3:
            failing()()
        allocate(fd, start, length)

    with monkeypatch.context() as patch:
        patch.setattr(mapped_file, "allocate", sometimes)
        while slave.max_physical_offset < master.max_physical_offset:
            before = slave.max_physical_offset
            try:
                copy(master, slave, odd(failed))
            except OSError:
                failed += 1
                assert taking(slave).received_offset == slave.max_physical_offset >= before
    assert failed > 3
    master.close()
    slave.close()
    assert_alike(master.config.store_path, slave.config.store_path)


# --- a tail that the master does not have -----------------------------------------------------------------------------


def test_a_tail_is_cut_and_kept(
    master: MessageStore, slave: MessageStore, make_store: MakeStore, tmp_path: Path
) -> None:
    """Log, queues and index are cut; the tail is in quarantine, and the slave continues with the master's log."""
    fill(master, 1, 120)
    copy(master, slave, odd(1))
    fork = master.max_physical_offset
    other = make_store(small(tmp_path / "other", is_replica=True))
    copy(slave, other, every(9999))
    other.close()
    other = make_store(small(tmp_path / "other"))  # a master that goes on differently
    fill(other, 2, 300)
    put(other, "Only here", 0, b"x")
    fill(master, 3, 200)
    put(master, "Tail", 0, b"x", b"KEYS\1lost")
    copy(master, slave, odd(3))
    slave.flush()
    assert slave.query_message("Tail", "lost", 8, 0, 1 << 62).records
    tail = read(slave, fork)
    path = taking(slave).truncate(fork)
    assert path.read_bytes() == tail
    assert path.name == f"{fork:020d}"
    assert slave.max_physical_offset == slave.flushed_where == fork
    assert slave.get_max_offset("Tail", 0) == 0
    copy(other, slave, odd(4))
    assert not slave.query_message("Tail", "lost", 8, 0, 1 << 62).records
    assert_serves_the_same(other, slave)
    other.close()
    slave.close()
    assert_alike(other.config.store_path, slave.config.store_path)


def read(store: MessageStore, start: int) -> bytes:
    parts = []
    while start < store.max_physical_offset:
        parts.append(store.log_bytes(start, 1 << 20))
        start += len(parts[-1])
    return b"".join(parts)


def test_two_tails_cut_at_one_place_are_both_kept(master: MessageStore, slave: MessageStore) -> None:
    fork = put(master, "T", 0, b"one").end_physical_offset
    put(master, "T", 0, b"two")
    copy(master, slave, every(1000))
    first = taking(slave).truncate(fork)
    copy(master, slave, every(1000))
    put(master, "T", 0, b"three")
    copy(master, slave, every(1000))
    second = taking(slave).truncate(fork)
    assert first != second
    assert len(second.read_bytes()) > len(first.read_bytes()) > 0
    assert bodies(slave, "T", 0) == [b"one"]


def test_a_deleted_topic_is_forgotten_with_its_tail(master: MessageStore, slave: MessageStore) -> None:
    fork = put(master, "T", 0, b"kept").end_physical_offset
    put(master, "D", 0, b"old" * 100)
    copy(master, slave, every(1000))
    slave.delete_topic("D")
    taking(slave).truncate(fork)
    copy(master, slave, every(1000))
    assert bodies(slave, "D", 0) == [b"old" * 100]


@pytest.mark.parametrize("step", range(6))
def test_a_crash_while_a_tail_is_cut(
    master: MessageStore, slave: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """An image of the directory after each step of the cut can be opened, with or without the tail."""
    fill(master, 1, 100)
    copy(master, slave, odd(1))
    fork = master.max_physical_offset
    fill(master, 2, 150)
    copy(master, slave, odd(2))
    slave.flush()
    image = tmp_path / "image"
    target, name = (
        (taking(slave), "quarantine"),
        (StoreCheckpoint, "save"),
        (QueueEnds, "forget_all"),
        (IndexService, "cut"),
        (CommitLog, "cut"),
        (taking(slave), "_cut_queues"),
    )[step]
    original = getattr(target, name)

    def method(*args: Any, **more: Any) -> Any:
        result = original(*args, **more)
        if not image.exists():
            image_of(slave.config)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(target, name, method)
        taking(slave).truncate(fork)
    (image / "lock").unlink()
    found = replica(small(image))
    assert not recovery_of(found).clean
    assert found.max_physical_offset in (fork, master.max_physical_offset)
    copy(master, found, odd(3))
    close_right(found)
    copy(master, slave, odd(4))
    slave.close()
    assert_alike(slave.config.store_path, image)


TAKER = """
import sys
from pathlib import Path
from tests.store.helpers import opened, small
from tests.store.test_replica import odd, taking

log = Path(sys.argv[2]).read_bytes()
store = opened(small(Path(sys.argv[1]), is_replica=True, flush_interval_commit_log=10, flush_interval_consume_queue=10))
sizes = odd(int(sys.argv[3]))
while True:
    at = taking(store).received_offset
    size = next(sizes)
    end = at - at % (32 << 10) + (32 << 10)
    taking(store).append(at, log[at : min(at + size, end)])
    print(store.max_physical_offset, flush=True)
"""


@pytest.mark.live
@pytest.mark.crash
def test_a_slave_that_is_killed_goes_on_where_it_was(master: MessageStore, tmp_path: Path) -> None:
    fill(master, 1, 1500)
    log = tmp_path / "log"
    log.write_bytes(read(master, 0))
    config = small(tmp_path / "slave", is_replica=True)
    told = 0
    for round_ in range(2):
        taker = subprocess.Popen(
            [sys.executable, "-c", TAKER, str(config.store_path), str(log), str(round_)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert taker.stdout is not None
        with taker:
            for line, _ in zip(taker.stdout, range(25), strict=False):
                told = max(told, int(line))
            taker.kill()
        slave = opened(config)
        assert not recovery_of(slave).clean
        assert slave.max_physical_offset >= told
        if round_ < 1:
            slave.close()
    copy(master, slave, odd(9))
    master.close()
    slave.close()
    assert_alike(master.config.store_path, config.store_path)


def test_check_points_reset_to_the_beginning(master: MessageStore, slave: MessageStore) -> None:
    assert list(taking(slave).check_points()) == []
    fill(master, 1, 300)
    copy(master, slave, odd(1))
    points = list(taking(slave).check_points())
    assert points == sorted(points, reverse=True)
    assert points[0] >= slave.max_physical_offset - (100 << 10)
    assert points[-1] == 0
    starts = {entry[0] for topic in "ABC" for q in range(3) for entry in slave.get_entries(topic, q, 0, 10_000)}
    assert starts.issuperset(points)
    for point in points:
        for offset in (point, point + 1, slave.max_physical_offset - 1):
            before = taking(slave).record_before(offset, point)
            assert before <= offset
            assert before in starts or before % (32 << 10) > 31 << 10


def test_the_index_goes_on_where_records_end_after_a_cut(
    make_store: MakeStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not where the log ended when the index began: in the middle of a record, now."""
    master, other = make_store(), make_store(small(tmp_path / "other"))
    fill(other, 2, 50)
    fill(master, 1, 80)
    slave = replica(small(tmp_path / "slave"))
    copy(other, slave, every(4000))
    index = index_of(slave)
    index.stop()  # from here on this thread does its work
    old_end = slave.max_physical_offset
    taking(slave).truncate(0)
    copy(master, slave, every(4000))
    assert slave.max_physical_offset > old_end
    index._stopped = False
    index._build(old_end, 0.0)
    assert caplog.records == []
    slave.close()
