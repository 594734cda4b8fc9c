"""State files that are missing beside stored messages are named at start; what can be restored is."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.errors import ConfigError
from spark_rocket.protocol.wire.codes import ResponseCode
from tests.golden import extract_store
from tests.kit.brokers import served
from tests.kit.clock import Clock
from tests.store.helpers import put

pytestmark = pytest.mark.live

BROKER_CONF: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1000,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with topics, a group with an offset, a retry and a dead letter, stopped cleanly."""
    directory = tmp_path_factory.mktemp("template") / "store"
    with served(directory, Clock(), **BROKER_CONF) as (server, wire):
        parts = server.broker.parts
        for topic in ("%RETRY%g", "%RETRY%g+T", "%DLQ%g"):
            server.run(lambda topic=topic: parts.topics.ensure(topic))  # type: ignore[misc]
            server.run(lambda topic=topic: put(parts.store, topic, 0, b"m"))  # type: ignore[misc]
        for queue_id in (0, 2):
            assert wire.send("T", b"m", queue_id=queue_id, d=4).code == ResponseCode.SUCCESS
        wire.send("T", b"later", {"DELAY": "3"})
        server.run(lambda: parts.groups.find("g"))
        assert wire.commit("g", "T", 1).code == ResponseCode.SUCCESS
    return directory


@pytest.fixture
def directory(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "store")
    return tmp_path / "store"


def lose(directory: Path, *names: str) -> None:
    for name in names:
        for path in (directory / "config").glob(f"{name}.json*"):
            path.unlink()


def test_topics_are_restored_from_their_queues(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    lose(directory, "topics")
    with served(directory, Clock(), **BROKER_CONF) as (server, wire):
        assert wire.bodies("T", queue_id=2) == [b"m"]
        table = server.broker.parts.topics.table
        found = {name: (table[name].read_queue_nums, table[name].perm) for name in ("T", "%RETRY%g", "%DLQ%g")}
        assert found == {"T": (3, 6), "%RETRY%g": (1, 6), "%DLQ%g": (1, 6)}
        assert "%RETRY%g+T" in table
        assert table["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
        on_disk = json.loads((directory / "config" / "topics.json").read_text())["topicConfigTable"]
        assert on_disk["T"]["writeQueueNums"] == 3  # already while it serves
    (record,) = (one for one in caplog.records if "topics.json and its .bak are missing" in one.message)
    assert record.levelno == logging.ERROR
    assert "restored 4 topics from the queues on disk" in record.message
    assert "T (3 queues)" in record.message
    caplog.clear()
    with served(directory, Clock(), **BROKER_CONF):
        assert "are missing" not in caplog.text


def test_retry_and_dead_letter_topics_are_restored_after_a_kill(directory: Path) -> None:
    """They are created with their first message; a kill may come before the file has them."""
    path = directory / "config" / "topics.json"
    stored = json.loads(path.read_text())
    for topic in ("%RETRY%g", "%RETRY%g+T", "%DLQ%g", "T"):
        del stored["topicConfigTable"][topic]
    path.write_text(json.dumps(stored))
    with served(directory, Clock(), **BROKER_CONF) as (server, wire):
        assert wire.bodies("%RETRY%g+T") == wire.bodies("%DLQ%g") == [b"m"]
        table = server.broker.parts.topics.table
        assert "T" not in table  # a topic of users is deleted, or was never acknowledged
        assert wire.delete_topic("%RETRY%g+T").code == ResponseCode.SUCCESS
        on_disk = json.loads(path.read_text())["topicConfigTable"]
        assert {"%RETRY%g", "%DLQ%g"} <= on_disk.keys()
    with served(directory, Clock(), **BROKER_CONF) as (server, _):
        assert "%RETRY%g+T" not in server.broker.parts.topics.table  # deleted topics do not return


def test_a_start_without_offsets_is_refused_until_they_are_given_up(directory: Path) -> None:
    lose(directory, "consumerOffset", "topics")
    before = sorted((directory / "config").iterdir())
    for _ in range(2):
        with (
            pytest.raises(
                ConfigError, match=r"consumerOffset\.json and its \.bak are missing beside \d+ bytes"
            ) as error,
            served(directory, Clock(), **BROKER_CONF),
        ):
            pass
        assert "with the content {}" in str(error.value.remedy)
    assert [path for path in before if path not in set((directory / "config").iterdir())] == []
    assert not (directory / "config" / "topics.json").exists()
    (directory / "config" / "consumerOffset.json").write_text("{}")
    with served(directory, Clock(), **BROKER_CONF) as (_, wire):
        assert len(wire.messages("T", queue_id=0)) == 1


def test_one_copy_of_the_offsets_is_enough(directory: Path) -> None:
    (directory / "config" / "consumerOffset.json").unlink()
    with served(directory, Clock(), **BROKER_CONF) as (_, wire):
        assert len(wire.messages("T", queue_id=0)) == 1


def test_groups_are_restored_from_their_offsets(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    lose(directory, "subscriptionGroup")
    with served(directory, Clock(), **BROKER_CONF, autoCreateSubscriptionGroup=False) as (server, _):
        assert "g" in server.broker.parts.groups.table
    assert "restored 1 groups from consumerOffset.json, with default settings" in caplog.text


def test_other_files_are_named_with_what_their_loss_means(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    lose(directory, "delayOffset", "consumerOrderInfo", "messageRequestMode")
    with served(directory, Clock(), **BROKER_CONF):
        pass
    for name in ("delayOffset", "consumerOrderInfo", "messageRequestMode"):
        assert f"{name}.json and its .bak are missing beside stored messages: " in caplog.text


def test_a_new_store_has_its_offsets_before_its_first_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A kill at any time after the start therefore leaves the file."""
    directory = tmp_path / "store"
    with served(directory, Clock(), **BROKER_CONF) as (server, _):
        server.run(server.broker.parts.saver.close)  # no write in the background succeeds
        assert (directory / "config" / "consumerOffset.json").exists()
    assert "are missing" not in caplog.text


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_apaches_stores_lack_nothing(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = extract_store(name, tmp_path)  # type: ignore[arg-type]
    with served(directory, Clock(1_795_229_620_000), check=False, **BROKER_CONF):
        pass
    assert "missing" not in caplog.text
