"""Offset stores of consumers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_rocket.client.consume import offset_store
from spark_rocket.client.consume.offset_store import LocalOffsetStore, RemoteOffsetStore, local_directory
from spark_rocket.errors import ClientError, RemotingConnectError
from spark_rocket.model import MessageQueue
from spark_rocket.remoting.client.promise import Promise

Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


class ReaderFake:
    def commit_to_slave(self, group: str, queue: MessageQueue, offset: int, timeout: float) -> bool:
        return False

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.commits: list[int] = []
        self.away: set[MessageQueue] = set()
        self.known = True  # the group, to the broker
        self.hangs_until = 0  # that many requests were sent
        self.asked: list[tuple[MessageQueue, Promise[bool]]] = []

    def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    def commit_offset(self, group: str, queue: MessageQueue, offset: int, *, timeout: float = 0.0) -> None:
        if queue in self.away:
            raise RemotingConnectError("no connection")
        self.known = True
        self.commits.append(offset)
        self.offsets[queue] = offset

    def commit_offset_async(self, group: str, queue: MessageQueue, offset: int, timeout: float) -> Promise[bool]:
        response: Promise[bool] = Promise()
        self.asked.append((queue, response))
        try:
            if self.known:
                self.commit_offset(group, queue, offset)
        except RemotingConnectError as error:
            response.fail(error)
        if len(self.asked) >= self.hangs_until:
            for _, one in self.asked:
                if not one.done():
                    one.resolve(self.known)
        return response


def test_failed_commits_are_retried() -> None:
    reader = ReaderFake()
    store = RemoteOffsetStore(reader, "g")  # type: ignore[arg-type]
    assert store.read(Q0) is None
    reader.away.add(Q0)
    store.persist({Q0: 3, Q1: 4})  # an unavailable broker does not affect the others
    reader.away.clear()
    store.persist({Q0: 3, Q1: 4})
    assert reader.commits == [4, 3, 4]
    reader.offsets[Q0] = 2  # another member had the queue meanwhile
    assert store.read(Q0) == 2
    store.persist({Q0: 3})
    assert reader.offsets[Q0] == 3


def test_a_commit_lost_by_the_broker_is_repeated() -> None:
    reader = ReaderFake()
    store = RemoteOffsetStore(reader, "g")  # type: ignore[arg-type]
    store.persist({Q0: 3})
    reader.offsets.clear()  # killed before it persisted the offset
    store.persist({Q0: 3})
    assert reader.offsets == {Q0: 3}


def test_commits_do_not_wait_for_each_other() -> None:
    """Except for the first one of a topic at a broker."""
    reader = ReaderFake()
    reader.hangs_until = 2
    store = RemoteOffsetStore(reader, "g")  # type: ignore[arg-type]
    elsewhere = MessageQueue("t", "c", 0)
    store.persist({Q0: 3, elsewhere: 4, Q1: 5})
    assert [queue for queue, _ in reader.asked] == [Q0, elsewhere, Q1]


def test_a_commit_returns_the_error_of_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ReaderFake()
    reader.away.add(Q0)
    store = RemoteOffsetStore(reader, "g")  # type: ignore[arg-type]
    assert {queue: type(error) for queue, error in store.commit({Q0: 3, Q1: 4}).items()} == {Q0: RemotingConnectError}
    assert reader.offsets == {Q1: 4}
    monkeypatch.setattr(offset_store, "PERSIST_SECONDS", 0)
    assert {queue: error.retriable for queue, error in store.commit({Q0: 3, Q1: 4}).items()} == {Q0: True, Q1: True}


def test_a_group_unknown_to_the_broker_is_registered() -> None:
    reader = ReaderFake()
    reader.known = False
    RemoteOffsetStore(reader, "g").persist({Q0: 3})  # type: ignore[arg-type]
    assert reader.offsets == {Q0: 3}


def test_unresponsive_brokers_share_one_deadline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offset_store, "PERSIST_SECONDS", 0)
    reader = ReaderFake()
    RemoteOffsetStore(reader, "g").persist({Q0: 3, Q1: 4})  # type: ignore[arg-type]
    assert reader.asked == []
    assert caplog.text.count("not committed") == 2


def test_the_file_is_found_by_the_next_process(tmp_path: Path) -> None:
    first = LocalOffsetStore(tmp_path, "g")
    assert first.read(Q0) is None
    first.persist({Q0: 3, Q1: 4})
    first.persist({Q0: 5})
    again = LocalOffsetStore(tmp_path, "g")
    assert (again.read(Q0), again.read(Q1)) == (5, 4)
    written = (tmp_path / "g" / "offsets.json").read_bytes()
    assert b'"brokerName":"b"' in written
    assert b"offsetTable" in written


@pytest.mark.parametrize("point", ["fsync", "to .bak", "in place"])
def test_a_crash_at_any_point_leaves_valid_offsets(tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalOffsetStore(tmp_path, "g")
    store.persist({Q0: 1})
    store.persist({Q0: 2})

    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    replace, count = Path.replace, 0

    def replace_until(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == {"to .bak": 1, "in place": 2}[point]:
            raise Crash
        return replace(self, target)

    with monkeypatch.context() as patched:
        if point == "fsync":
            patched.setattr(os, "fsync", crash)
        else:
            patched.setattr(Path, "replace", replace_until)
        with pytest.raises(Crash):
            store.persist({Q0: 3})
    assert LocalOffsetStore(tmp_path, "g").read(Q0) == 2


def test_a_damaged_file_is_replaced_by_its_backup(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = LocalOffsetStore(tmp_path, "g")
    store.persist({Q0: 1})
    store.persist({Q0: 2})
    path = tmp_path / "g" / "offsets.json"
    path.write_bytes(path.read_bytes()[:20])
    assert LocalOffsetStore(tmp_path, "g").read(Q0) == 1
    assert str(path) in caplog.text


def test_damage_to_both_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "offsets.json").write_bytes(b"{")
    store = LocalOffsetStore(tmp_path, "g")
    with pytest.raises(ClientError, match=r"offsets\.json") as caught:
        store.open()
    assert "remove it" in caught.value.remedy
    assert (tmp_path / "g" / "offsets.json").read_bytes() == b"{"


def test_an_unwritable_directory_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "g").write_text("a file is in the way")
    with pytest.raises(ClientError):
        LocalOffsetStore(tmp_path, "g").open()
    store = LocalOffsetStore(tmp_path / "other", "g")
    store.open()
    (tmp_path / "other").write_text("in the way")
    store.persist({Q0: 1})
    assert "Cannot store the offset 1" in caplog.text
    assert store.read(Q0) == 1  # valid within this process
    (tmp_path / "other").unlink()
    store.persist({Q0: 1})
    assert LocalOffsetStore(tmp_path / "other", "g").read(Q0) == 1, "a failed write is repeated"


def test_default_directory_and_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR", raising=False)
    assert local_directory().name == ".rocketmq_offsets"
    monkeypatch.setenv("ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR", str(tmp_path))
    assert local_directory() == tmp_path
