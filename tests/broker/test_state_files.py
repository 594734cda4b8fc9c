"""config/*.json: written in Apache's format, read from Apache's brokers, and safe from broken files."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker import steps
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.config_files import PACE_BYTES_PER_SECOND, ConfigFile, ConfigSaver
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.message_request_mode_manager import MessageRequestModeManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.broker.state.versioned_table import MAX_TABLE_BYTES
from spark_rocket.errors import ConfigError, RefusedError
from spark_rocket.protocol.wire.bodies.assignment import SetMessageRequestModeRequestBody
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.json import dumps_fastjson, loads_tolerant
from tests import golden
from tests.broker.state_box import Box


def clock() -> int:
    return 1_795_229_599_408


def topics(**settings: object) -> TopicConfigManager:
    return TopicConfigManager(BrokerConfig.from_properties(settings), clock)


# --- Apache's own files -----------------------------------------------------------------------------------------


def test_apaches_own_files_are_taken_over(tmp_path: Path) -> None:
    config = golden.extract_store("clean", tmp_path) / "config"
    table, offsets, groups = topics(), ConsumerOffsetManager(), SubscriptionGroupManager(BrokerConfig(), clock)
    for name, manager in (("topics", table), ("consumerOffset", offsets), ("subscriptionGroup", groups)):
        assert ConfigFile(config / f"{name}.json", manager.snapshot, manager.load).load()
    assert table.table["GoldenA"] == TopicConfig("GoldenA", 4, 4, 6)
    assert table.table["%DLQ%GID_golden_retry"].perm == 6
    assert (table.data_version.counter, table.data_version.timestamp) == (14, 1795229599408)
    assert "rmq_sys_REVIVE_LOG_DefaultCluster" in table.table  # ours, beside those of the file
    assert offsets.table["GoldenA@GID_golden_tagged"] == {0: 250, 1: 249, 2: 250, 3: 250}
    assert offsets.query("GID_golden_retry", "%RETRY%GID_golden_retry", 0) == 4
    assert groups.table["GID_golden_a"] == SubscriptionGroupConfig("GID_golden_a")
    assert groups.data_version.counter == 6


def test_offsets_are_written_as_fastjson_writes_them(tmp_path: Path) -> None:
    manager = ConsumerOffsetManager()
    manager.commit("g", "T", 0, 5)
    manager.commit("g", "T", 12, 7)
    file = ConfigFile(tmp_path / "consumerOffset.json", manager.snapshot, manager.load)
    file.save()
    assert '\t"offsetTable":{\n\t\t"T@g":{0:5,12:7\n\t\t}\n\t}\n' in file.path.read_text()
    again = ConsumerOffsetManager()
    assert ConfigFile(file.path, again.snapshot, again.load).load()
    assert again.table == manager.table


def test_offsets_beyond_the_end_are_corrected_only_for_queues_of_the_topic() -> None:
    """The exactly-once sink keeps its last batch number as the offset of a queue that its topic does not have."""
    manager = ConsumerOffsetManager()
    for topic, queue_id in (("T", 0), ("T", 1), ("deleted", 0)):
        manager.commit("g", topic, queue_id, 9)
    manager.correct(lambda topic, queue_id: 5, {"T": 1})
    assert manager.table == {"T@g": {0: 5, 1: 9}, "deleted@g": {0: 9}}


def test_topics_are_written_as_apache_writes_them(tmp_path: Path) -> None:
    manager = topics(autoCreateTopicEnable=False)
    manager.put(TopicConfig("Mine", 2, 3, 4, order=True, attributes={"message.type": "FIFO"}))
    file = ConfigFile(tmp_path / "topics.json", manager.text, manager.load)
    file.save()
    text = file.path.read_text()
    assert text.startswith('{\n\t"dataVersion":{\n\t\t"counter":1,\n')
    stored = json.loads(text)
    assert stored["topicConfigTable"]["Mine"] == {
        "attributes": {"message.type": "FIFO"},
        "order": True,
        "perm": 4,
        "readQueueNums": 2,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "Mine",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }
    assert "TBW102" not in stored["topicConfigTable"]
    assert text.encode() == dumps_fastjson(manager.snapshot(), pretty=True)
    manager.delete("Mine")
    manager.put(TopicConfig("SELF_TEST_TOPIC", 2, 2))
    assert manager.text() == dumps_fastjson(manager.snapshot(), pretty=True)


def test_a_table_is_encoded_in_steps_while_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP_S", 0.0)
    stored = SubscriptionGroupManager(BrokerConfig(), lambda: 1)
    for number in range(9):
        stored.put(SubscriptionGroupConfig(f"g{number}"))
    manager = SubscriptionGroupManager(BrokerConfig(), lambda: 1)
    manager.load(loads_tolerant(stored.text()))

    async def change() -> None:
        await asyncio.sleep(0)
        manager.delete("g8")
        for name in ("g0", "g7", "new"):
            manager.put(SubscriptionGroupConfig(name, retry_max_times=3))

    async def both() -> None:
        await asyncio.gather(manager.encode_in_steps(), change())

    asyncio.run(both())
    assert manager._texts.keys() <= manager.table.keys()
    assert len(manager._texts) >= 6
    assert manager.text() == dumps_fastjson(manager.snapshot(), pretty=True)
    sizes, size = manager._sizes, manager._bytes
    manager._sizes = None
    manager.check_fits({})
    assert (sizes, size) == (manager._sizes, manager._bytes)


def test_groups_are_written_as_apache_writes_them(tmp_path: Path) -> None:
    """``text`` caches entries: it is the snapshot's JSON after each kind of change."""
    manager = SubscriptionGroupManager(BrokerConfig(), lambda: 1)

    def check() -> None:
        assert manager.text() == dumps_fastjson(manager.snapshot(), pretty=True)

    check()
    manager.put(SubscriptionGroupConfig("g", retry_max_times=3))
    check()
    manager.put(SubscriptionGroupConfig("g", retry_max_times=4, attributes={"+a": "b"}))
    manager.put(SubscriptionGroupConfig("h", subscription_data_set=[{"topic": "T"}]))
    check()
    manager.delete("g")
    check()
    stored = manager.snapshot() | {"forbiddenTable": {"h": {"T": 4}}}
    stored["subscriptionGroupTable"]["h"] |= {"retryMaxTimes": 7}
    manager.load(stored)
    check()
    stored["dataVersion"] = {"counter": 99}
    stored["subscriptionGroupTable"] = {}
    assert manager.replace(stored)
    check()


# --- broken files -----------------------------------------------------------------------------------------------


def saved_twice(path: Path) -> Box:
    box = Box(path)
    for number in (1, 2):
        box.save(number)
    assert json.loads(path.read_text()) == {"n": 2}
    assert json.loads(path.with_name("s.json.bak").read_text()) == {"n": 1}
    return box


@pytest.mark.parametrize("broken", [b"", b"{", b'{"n":', b"\xff\xfe", b'{"n":"text"}', b"[]", b"null"])
def test_a_broken_file_is_replaced_by_its_backup(
    tmp_path: Path, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.json"
    saved_twice(path)
    path.write_bytes(broken)
    box = Box(path)
    assert box.file.load()
    assert box.state == {"n": 1}
    assert str(path) in caplog.text
    assert (tmp_path / "s.json.broken").read_bytes() == broken  # kept for a diagnosis
    box.file.save()
    assert json.loads((tmp_path / "s.json.bak").read_text()) == {"n": 1}  # a broken file never replaces a good backup


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (b'{\n\t"offsetTable":{\n\t\t"T@g":{0:5 1:6}\n\t}\n}', 3),
        (b'{\n\t"n":1,\n', 3),
        (b"{\n\n\n", 4),
        (b'{"n":1}\n\xff', 2),
        (b"", 1),
        (b'{"n":"text"}', 1),
    ],
)
def test_two_broken_files_are_an_error_that_names_file_and_line(tmp_path: Path, broken: bytes, line: int) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(broken)
    path.with_name("s.json.bak").write_bytes(b"{")
    with pytest.raises(ConfigError) as caught:
        Box(path).file.load()
    assert f"{path}, line {line}: " in caught.value.message
    assert caught.value.remedy
    assert path.read_bytes() == broken


def test_an_unreadable_file_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its .bak is readable, but older."""
    box = saved_twice(tmp_path / "s.json")
    read_bytes = Path.read_bytes

    def forbid(path: Path) -> bytes:
        if path.name == "s.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", forbid)
    with pytest.raises(ConfigError, match=r"s\.json cannot be read: Permission denied\.") as caught:
        box.file.load()
    assert "permission to read" in caught.value.remedy
    monkeypatch.undo()
    assert box.file.load()
    assert box.state == {"n": 2}


# --- saving in the background -----------------------------------------------------------------------------------


async def test_savers_of_one_moment_share_a_write_and_later_ones_get_the_next(tmp_path: Path) -> None:
    box = Box(tmp_path / "s.json")
    written: list[int] = []
    write = box.file.write

    def remember(snapshot: dict[str, Any] | bytes) -> None:
        assert isinstance(snapshot, dict)
        written.append(snapshot["n"])
        write(snapshot)

    box.file.write = remember  # type: ignore[method-assign]
    saver = ConfigSaver(asyncio.get_running_loop(), {"s": box.file})
    first = [saver.save("s") for _ in range(3)]
    box.state = {"n": 1}  # still in time: the write begins with the loop's next turn
    await asyncio.sleep(0)
    box.state = {"n": 2}
    second = saver.save("s")
    await asyncio.wait_for(asyncio.gather(*first), 20)
    await asyncio.wait_for(second, 20)
    saver.close()
    assert written == [1, 2]
    assert json.loads(box.file.path.read_text()) == {"n": 2}


async def test_a_large_file_that_changes_often_is_written_seldom(tmp_path: Path) -> None:
    """Except for the last write, no more bytes are written than ``PACE_BYTES_PER_SECOND``, and nothing is left out."""
    loop = asyncio.get_running_loop()
    box = Box(tmp_path / "s.json")
    box.state["text"] = "x" * 100_000
    saver = ConfigSaver(loop, {"s": box.file})
    began = loop.time()
    while saver.writes("s") < 3:
        box.state = {**box.state, "n": box.state["n"] + 1}
        saved = saver.save_in_time("s")
        await asyncio.sleep(0)
    assert (saver.writes("s") - 1) * 100_000 <= (loop.time() - began) * PACE_BYTES_PER_SECOND
    assert await saved == ""
    last = box.state["n"]
    assert json.loads(box.file.path.read_text())["n"] == last
    saver.save_in_time("s")
    begun = saver.writes("s")
    assert await saver.file_saved("s") == ""  # a response that waits does not wait for the pace
    assert json.loads(box.file.path.read_text())["n"] == last
    assert saver.writes("s") == begun + 1
    later = saver.save_in_time("s")
    assert saver.save("s") is later
    assert await later == ""
    saver.close()


async def test_a_delayed_write_that_fails_is_retried(tmp_path: Path) -> None:
    directory = tmp_path / "later"
    directory.write_text("not a directory")
    box = Box(directory / "s.json")
    saver = ConfigSaver(asyncio.get_running_loop(), {"s": box.file}, retry_seconds=0.001)
    assert "could not be written" in await saver.save_in_time("s")
    directory.unlink()
    box.state = {"n": 7}
    assert await saver.file_saved("s") == ""
    assert json.loads(box.file.path.read_text()) == {"n": 7}
    saver.close()


def test_a_power_failure_at_any_moment_leaves_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contents that are not flushed before the rename are an empty file with that name."""
    box = Box(tmp_path / "config" / "s.json")
    synced: set[int] = set()
    real_sync, real_replace = os.fsync, Path.replace
    steps: list[str] = []

    def sync(descriptor: int) -> None:
        real_sync(descriptor)
        if threading.current_thread() is not threading.main_thread():  # a broker that other tests share
            return
        synced.add(os.fstat(descriptor).st_ino)
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    def replace(path: Path, target: Path) -> Path:
        if threading.current_thread() is threading.main_thread():
            assert not path.exists() or path.stat().st_ino in synced
            steps.append(target.name)
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    box.file.save()
    assert tmp_path.stat().st_ino in synced  # where the new directory has its name
    steps.clear()
    box.state = {"n": 1}
    box.file.save()
    assert steps == ["file", "s.json.bak", "s.json", "directory"]


async def test_a_failed_write_is_reported_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "not-a-directory").write_text("")
    box = Box(tmp_path / "not-a-directory" / "s.json")
    saver = ConfigSaver(asyncio.get_running_loop(), {"s": box.file})
    problem = await asyncio.wait_for(saver.save("s"), 20)
    assert problem.startswith("s.json could not be written: ")
    assert saver.problem("s") == problem
    saver.close()
    assert "could not be written" in caplog.text


# --- the tables themselves --------------------------------------------------------------------------------------


def test_auto_creation_follows_its_default_topic() -> None:
    manager = topics(defaultTopicQueueNums=8)
    assert manager.auto_create("New", "TBW102", 4) == TopicConfig("New", 4, 4, 6)
    assert manager.auto_create("Big", "TBW102", 100) == TopicConfig("Big", 8, 8, 6)
    for default, queues in (("BenchmarkTest", 4), ("Unknown", 4), ("TBW102", 0)):
        assert manager.auto_create("No", default, queues) is None
    assert manager.auto_create("%RETRY%g", "anything", 9) == TopicConfig("%RETRY%g", 1, 1, 6)
    assert manager.data_version.counter == 3
    assert topics(autoCreateTopicEnable=False).auto_create("New", "TBW102", 4) is None


def test_groups_are_created_by_their_first_use_if_allowed() -> None:
    manager = SubscriptionGroupManager(BrokerConfig(), clock)
    assert manager.find("new") == SubscriptionGroupConfig("new")
    assert manager.find("bad name") is None
    assert manager.find("") is None
    strict = SubscriptionGroupManager(BrokerConfig.from_properties({"autoCreateSubscriptionGroup": False}), clock)
    assert strict.find("new") is None
    assert strict.find("CID_RMQ_SYS_MINE") is not None


def test_topics_are_created_up_to_a_limit_of_the_broker() -> None:
    manager = topics(maxAutoCreateTopics=len(topics().table) + 2)
    manager.auto_create("%RETRY%g", "TBW102", 1)
    manager.auto_create("a", "TBW102", 1)
    for name in ("b", "%RETRY%h"):
        with pytest.raises(RefusedError, match=r"is not created: .* maxAutoCreateTopics=") as refused:
            manager.auto_create(name, "TBW102", 1)
        assert refused.value.response_code == ResponseCode.TOPIC_NOT_EXIST
    manager.check_fits({"b": TopicConfig("b")})  # of an administrator
    manager.ensure("%DLQ%g")  # of a known group
    groups = SubscriptionGroupManager(BrokerConfig.from_properties({"maxAutoCreateGroups": 0}), clock)
    assert groups.find("g") is None
    assert groups.find("g", bounded=False) == SubscriptionGroupConfig("g")


def test_the_numbers_of_topics_and_of_request_modes_are_bounded() -> None:
    with pytest.raises(RefusedError, match=r"topicConfigTable of this broker would have 50,0\d\d entries"):
        topics().check_fits({f"t{number}": TopicConfig(f"t{number}") for number in range(50_000)})
    modes = MessageRequestModeManager()
    for number in range(10_000):
        modes.put(SetMessageRequestModeRequestBody("t", f"g{number}", "POP"))
    modes.put(SetMessageRequestModeRequestBody("t", "g0", "PULL"))
    with pytest.raises(RefusedError, match="10,000 request modes are set"):
        modes.put(SetMessageRequestModeRequestBody("u", "g", "POP"))


def test_a_table_fits_into_a_frame() -> None:
    manager = SubscriptionGroupManager(BrokerConfig(), clock)

    def large(name: str, size: int) -> dict[str, SubscriptionGroupConfig]:
        return {name: SubscriptionGroupConfig(name, attributes={"a": "\n" * size})}

    for name in ("a", "b"):
        change = large(name, 2_500_000)
        manager.check_fits(change)
        manager.put(change[name])
    with pytest.raises(RefusedError, match=r"subscriptionGroupTable of this broker would have 15,.* bytes"):
        manager.check_fits(large("c", 2_500_000))
    manager.check_fits(large("b", 3_000_000))
    manager.delete("a")
    manager.check_fits(large("c", 2_500_000))
    assert len(dumps_fastjson(manager.snapshot())) < MAX_TABLE_BYTES
    loaded = SubscriptionGroupManager(BrokerConfig(), clock)
    loaded.load(loads_tolerant(dumps_fastjson(manager.snapshot())))
    loaded.check_fits(large("c", 2_500_000))
    with pytest.raises(RefusedError):
        loaded.check_fits(large("c", 5_000_000))
