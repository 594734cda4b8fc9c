"""State that cannot be written is not acknowledged, and is written as soon as the disk has space."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from spark_rocket.broker.state.config_files import ConfigFile, ConfigSaver
from spark_rocket.protocol.wire.bodies.client import ConsumerData
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.json import loads_tolerant
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.queues.side_files import DeletedTopics
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.brokers import parts_of
from tests.kit.waiting import until, until_async

pytestmark = pytest.mark.live

Found = TypeVar("Found")


class Disk:
    """A disk that accepts or refuses state files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.refused: list[str] = []
        self.on_refused: Callable[[], object] = lambda: None
        write = ConfigFile.write

        def checked(file: ConfigFile, snapshot: dict[str, Any] | bytes) -> None:
            if self.full:
                self.refused.append(file.path.name)
                self.on_refused()
                raise OSError(errno.ENOSPC, "No space left on device", str(file.path))
            write(file, snapshot)

        monkeypatch.setattr(ConfigFile, "write", checked)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def served(tmp_path: Path, disk: Disk) -> Iterator[LocalCluster]:
    settings = {"flushConsumerOffsetInterval": 100}
    with LocalCluster(data_dir=tmp_path, config=settings, in_process=True) as cluster:
        try:
            yield cluster
        finally:
            disk.full = False


@pytest.fixture
def wire(served: LocalCluster) -> Iterator[Wire]:
    with RemotingClient() as client:
        wire = Wire(client, served.broker_address)
        wire.create_group("known")
        wire.create_topic("Known")
        wire.send("Known", b"x")
        wire.commit("known", "Known", 1)
        yield wire


def written(cluster: LocalCluster, file: str) -> str:
    """A state file; it does not exist between the two renames of a write."""

    def read() -> str:
        path = cluster.store_dir / "config" / file
        with suppress(FileNotFoundError):
            return path.read_text()
        return ""

    return until(read)


def failed(answer: RemotingCommand) -> RemotingCommand | None:
    return answer if answer.code == ResponseCode.SYSTEM_ERROR else None


def json_of(value: object) -> bytes:
    return json.dumps(value).encode()


TOPIC = {"topicName": "Listed", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
MODE = {"topic": "Known", "consumerGroup": "known", "mode": "POP", "popShareQueueNum": 0}
CLONE = {"srcGroup": "known", "destGroup": "copy", "topic": "Known", "offline": False}
#: A change, its file, and a string that is in the file afterwards, or not.
CHANGES: dict[str, tuple[Callable[[Wire], RemotingCommand], str, str, bool]] = {
    "create topic": (lambda wire: wire.create_topic("New"), "topics.json", '"New"', True),
    "create topics": (
        lambda wire: wire.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, json_of({"topicConfigList": [TOPIC]})),
        "topics.json",
        '"Listed"',
        True,
    ),
    "delete topic": (lambda wire: wire.delete_topic("Known"), "topics.json", '"Known"', False),
    "create group": (
        lambda wire: wire.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json_of({"groupName": "new"})),
        "subscriptionGroup.json",
        '"new"',
        True,
    ),
    "create groups": (
        lambda wire: wire.ask(
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, json_of({"groupConfigList": [{"groupName": "listed"}]})
        ),
        "subscriptionGroup.json",
        '"listed"',
        True,
    ),
    "delete group": (
        lambda wire: wire.ask(Code.DELETE_SUBSCRIPTIONGROUP, groupName="known", cleanOffset=True),
        "subscriptionGroup.json",
        '"known"',
        False,
    ),
    "reset": (
        lambda wire: wire.reset("known", "Known", timestamp=0, offset=0, queueId=0),
        "consumerOffset.json",
        "{0:0",
        True,
    ),
    "clone": (lambda wire: wire.ask(Code.CLONE_GROUP_OFFSET, **CLONE), "consumerOffset.json", '"Known@copy"', True),
    "request mode": (
        lambda wire: wire.ask(Code.SET_MESSAGE_REQUEST_MODE, json_of(MODE)),
        "messageRequestMode.json",
        "POP",
        True,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_cannot_be_written_is_an_error(
    name: str, disk: Disk, wire: Wire, served: LocalCluster, tmp_path: Path
) -> None:
    change, file, text, is_there = CHANGES[name]
    disk.full = True
    for _ in range(2):  # the second changes nothing in memory, and is not on disk either
        answer = change(wire)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert file in (answer.remark or "")
        assert "No space left on device" in (answer.remark or "")
    disk.full = False
    assert change(wire).code == ResponseCode.SUCCESS
    assert (text in written(served, file)) is is_there


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_is_acknowledged_is_on_disk(name: str, wire: Wire, served: LocalCluster) -> None:
    change, file, text, is_there = CHANGES[name]
    assert change(wire).code == ResponseCode.SUCCESS
    assert (text in written(served, file)) is is_there


def test_a_failed_change_is_written_when_there_is_disk_space(disk: Disk, wire: Wire, served: LocalCluster) -> None:
    """A new request is not needed."""
    disk.full = True
    assert wire.create_topic("New").code == ResponseCode.SYSTEM_ERROR
    disk.full = False
    until(lambda: '"New"' in written(served, "topics.json"))
    assert wire.create_topic("New").code == ResponseCode.SUCCESS
    assert wire.send("New").code == ResponseCode.SUCCESS


def test_commits_are_errors_while_offsets_cannot_be_written(disk: Disk, wire: Wire, served: LocalCluster) -> None:
    def saved() -> int:
        table = loads_tolerant(written(served, "consumerOffset.json").encode())["offsetTable"]
        offset: int = table.get("Known@known", {}).get("0", -1)
        return offset

    until(lambda: saved() == 1)  # so that no earlier commit is written on the full disk
    disk.full = True
    assert wire.commit("known", "Known", 2).code == ResponseCode.SUCCESS  # answered at once: nothing has failed so far
    until(lambda: "consumerOffset.json" in disk.refused)
    answer = until(lambda: failed(wire.commit("known", "Known", 3)))
    assert answer is not None
    assert "consumerOffset.json could not be written: No space left on device" in (answer.remark or "")
    assert wire.committed("known", "Known") == 3  # it counts all the same
    disk.full = False
    until(lambda: saved() == 3)
    until(lambda: wire.commit("known", "Known", 4).code == ResponseCode.SUCCESS)
    until(lambda: saved() == 4)


def test_messages_of_a_topic_that_cannot_be_written_are_refused(disk: Disk, wire: Wire) -> None:
    disk.full = True
    assert wire.send("Automatic", b"0").code == ResponseCode.SYSTEM_ERROR  # stored, as a copy is after a time-out
    for _ in range(2):
        answer = wire.send("Automatic", b"1")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "topics.json could not be written" in (answer.remark or "")
    assert wire.bodies("Automatic") == [b"0"]  # refused before they were stored
    assert wire.send("Known").code == ResponseCode.SUCCESS  # whose topic is on disk
    disk.full = False
    until(lambda: wire.send("Automatic", b"2").code == ResponseCode.SUCCESS)
    assert wire.bodies("Automatic") == [b"0", b"2"]


def test_a_failure_for_one_topic_refuses_no_other(disk: Disk, wire: Wire, served: LocalCluster) -> None:
    """The first topic's write was repeated successfully before that of the second failed."""
    parts = parts_of(served)
    disk.full = True
    assert wire.send("First").code == ResponseCode.SYSTEM_ERROR
    disk.full = False
    until(lambda: not parts.saver.problem("topics"))
    disk.full = True
    parts.loop.call_soon_threadsafe(parts.topics.put, TopicConfig("Second"))  # as a slave does: no request asks first
    until(lambda: parts.saver.problem("topics"))
    assert wire.send("First").code == ResponseCode.SUCCESS
    assert wire.send("Second").code == ResponseCode.SYSTEM_ERROR


def test_a_heartbeat_needs_no_room(disk: Disk, wire: Wire) -> None:
    """The next one creates its additional topics again."""
    disk.full = True
    assert wire.beat(ConsumerData("other")).code == ResponseCode.SUCCESS


def test_a_deletion_that_cannot_be_recorded_changes_nothing(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(topics: DeletedTopics, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(DeletedTopics, "add", full)
        answer = wire.delete_topic("Known")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "topic Known cannot be deleted: No space left on device" in (answer.remark or "")
    assert wire.bodies("Known") == [b"x"]
    assert wire.topic_config("Known") is not None
    assert wire.delete_topic("Known").code == ResponseCode.SUCCESS
    assert wire.topic_config("Known") is None


async def test_failing_writes_are_logged_once_and_so_is_their_end(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"n": 0}
    file = ConfigFile(tmp_path / "s.json", lambda: dict(state), lambda stored: None)
    loop = asyncio.get_running_loop()
    saver = ConfigSaver(loop, {"s": file}, retry_seconds=0.001)
    retried = asyncio.Event()
    disk.on_refused = lambda: len(disk.refused) == 3 and loop.call_soon_threadsafe(retried.set)
    disk.full = True
    assert await saver.save("s", {"n": 7}) == "s.json could not be written: No space left on device"
    assert saver.problem("s")
    await asyncio.wait_for(retried.wait(), 20)
    disk.full = False
    await until_async(lambda: saver.problem("s") == "")
    assert await saver.file_saved("s") == ""
    saver.close()
    assert json.loads(file.path.read_text()) == {"n": 7}  # what was asked for, and nothing later
    assert caplog.text.count("could not be written") == 1
    assert caplog.text.count("can be written again") == 1
