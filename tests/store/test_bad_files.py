"""Every file of a store, damaged in every way: it opens with all valid records, or the error names the place.

Opened: each acknowledged record whose bytes are whole on the disk is served at its queue offset, or (of an unflushed
tail behind a torn record) is kept in ``quarantine``; no record is served changed in what its CRC covers; appending goes
on; the check is content after a clean stop, but for a record that is damaged itself. Refused: a RocketError that names
the file, for the log also the byte, and a remedy made of things that exist; not a byte of the log is changed. A second
start ends as the first did.

Seeds are the tests' names. BAD_FILES=all in the environment makes eight times as many cases (``make crash``).
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import re
import shutil
from pathlib import Path
from zlib import crc32

import pytest

from spark_rocket.errors import RocketError, StoreCorruptError, StoreNotWritableError
from spark_rocket.store import MessageStore, StoreConfig
from spark_rocket.store.tools.check import check_store
from spark_rocket.store.tools.rebuild import rebuild_store
from tests.store.damage import DAMAGES, LOG_SIZE, SIZES, Image, make_image
from tests.store.helpers import opened, put, recovery_of, small, trimmed_by_hand

STATES = ("stopped", "killed")
TOPICS = ("A", "B", "%RETRY%g", "Gone", "Quiet", "SCHEDULE_TOPIC_XXXX")
FILES = {
    "log-first": "commitlog/{0}",
    "log-middle": "commitlog/{3}",
    "log-near-end": "commitlog/{-2}",
    "log-last": "commitlog/{-1}",
    "queue-first": "consumequeue/A/0/{0}",
    "queue-middle": "consumequeue/A/0/{1}",
    "queue-last": "consumequeue/A/0/{-1}",
    "queue-only": "consumequeue/SCHEDULE_TOPIC_XXXX/1/{0}",
    "queue-of-a-topic-made-anew": "consumequeue/Gone/0/{0}",
    "quiet-queue-first": "consumequeue/Quiet/2/{0}",
    "quiet-queue-last": "consumequeue/Quiet/2/{-1}",
    "ends": "config/queueEnd.json",
    "index-full": "index/{0}",
    "index-newest": "index/{-1}",
    "checkpoint": "checkpoint",
    "abort": "abort",
    "lock": "lock",
    "topics": "config/topics.json",
    "deleted-topics": "config/deletedTopic.json",
}
COMMANDS = re.compile(r"`rocket store (check|rebuild|dump|stats)")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    directory = tmp_path_factory.mktemp("images")
    return {state: make_image(directory / state, clean=state == "stopped") for state in STATES}


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests do not depend on flushes, and open hundreds of stores."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


def name_of(image: Image, pattern: str) -> str:
    directory, _, rest = pattern.rpartition("/")
    found = re.fullmatch(r"\{(-?\d+)\}", rest)
    return image.names(directory + "/")[int(found[1])] if found else pattern


def log_hash(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted((path / "commitlog").rglob("*")):
        data = file.read_bytes() if file.is_file() else b""
        if data.strip(b"\0"):  # not a next file that was prepared
            digest.update(file.name.encode() + data)
    return digest.hexdigest()


class _NotInIndexError(AssertionError):
    """An intact record is not found by its key."""


class Judge:
    """Opens a damaged store and checks the result."""

    def __init__(self, config: StoreConfig, image: Image, damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.config = config
        self.image = image
        self.damaged = damaged
        self.caplog = caplog
        self.whole = image.whole(config.store_path)
        self.changed = [record for record in image.records if record not in self.whole]
        self.before = log_hash(config.store_path)

    def open(self) -> MessageStore | RocketError:
        try:
            return opened(self.config)
        except RocketError as error:
            return error

    def judge(self) -> None:
        first = self.open()
        if isinstance(first, RocketError):
            self._refused(first)
            second = self.open()
            assert isinstance(second, RocketError), "refused at first, opened at the second attempt"
            assert str(second) == str(first)
            self._refused(second)
            return
        late = None
        try:
            self._serves(first)
        except (StoreCorruptError, _NotInIndexError) as error:
            late = error
        if late is not None:
            first.close()
            self._mended_by_the_tool(late)
            self.judge()
            return
        self._goes_on(first, b"after")
        first.close()
        self._is_right()
        second = self.open()
        assert isinstance(second, MessageStore), second
        assert recovery_of(second).clean
        self._serves(second)
        self._goes_on(second, b"later")
        second.close()
        self._is_right()

    def _mended_by_the_tool(self, error: Exception) -> None:
        """A start does not scan every old file: a read or the check does."""
        if isinstance(error, StoreCorruptError):
            assert self.damaged.parent.parent.parent.name == "consumequeue"
            self._refused(error)
            assert re.search(r" at byte \d+: ", error.message), error
        else:  # slots that became zeros are empty slots
            assert self.damaged.parent.name == "index"
            assert {problem.kind for problem in check_store(self.config.store_path, self.config)} == {"index"}
        assert rebuild_store(self.config.store_path, self.config).holes == []

    # --- a refusal ----------------------------------------------------------------------------------------------

    def _refused(self, error: RocketError) -> None:
        text, store = str(error), self.config.store_path
        assert log_hash(store) == self.before, "a refusal changed the log"
        is_log = self.damaged.parent.name == "commitlog"
        assert str(self.damaged.parent) in text, text
        if is_log and self.damaged.is_file() and self.damaged.stat().st_size == LOG_SIZE:
            assert re.search(r"/commitlog/\d{20} at byte \d+ |\(offset \d+\)", text), text
        assert error.remedy, text
        for path in re.findall(rf"{re.escape(str(store))}[^\s,;:`]*", error.remedy):
            assert Path(path.rstrip(".")).exists(), error.remedy
        assert COMMANDS.search(error.remedy) or isinstance(error, StoreNotWritableError), error.remedy

    # --- an opened store ----------------------------------------------------------------------------------------

    def _serves(self, store: MessageStore) -> None:
        end, kept = recovery_of(store).end_offset, b"".join(p.read_bytes() for p in self._quarantined() if p.is_file())
        queues: dict[tuple[str, int], dict[int, bytes]] = {}
        for topic in TOPICS:
            for queue_id in store.queues(topic):
                queues[topic, queue_id] = read_queue(store, topic, queue_id)
        for record in self.whole:
            served = queues.get(record.queue, {}).get(record.queue_offset)
            if served != record.raw and record.raw in kept:
                continue
            assert served == record.raw, f"{record.queue} {record.queue_offset} at {record.physical_offset}, end {end}"
            if record.queue_offset % 5:
                continue
            if record.raw not in store.query_message(record.topic, record.key, 32, 0, 1 << 62).records:
                raise _NotInIndexError(record)
        for record in self.changed:
            served = queues.get(record.queue, {}).get(record.queue_offset)
            if served is not None and b"after" not in served and b"later" not in served:
                assert_crc(served)

    def _quarantined(self) -> list[Path]:
        directory = self.config.store_path / "quarantine"
        return sorted(directory.iterdir()) if directory.is_dir() else []

    def _goes_on(self, store: MessageStore, body: bytes) -> None:
        for topic, queue_id in (("A", 0), ("Gone", 0), ("New", 3)):
            end = store.get_max_offset(topic, queue_id)
            assert put(store, topic, queue_id, body, b"KEYS\x01" + body).queue_offset == end
            assert body in store.get_message(topic, queue_id, end, 1, 1 << 20).records
            assert len(store.query_message(topic, body.decode(), 8, 0, 1 << 62).records) == 1

    def _is_right(self) -> None:
        problems = check_store(self.config.store_path, self.config)
        kinds, place = {problem.kind for problem in problems}, self.damaged.parent
        if problems and place.name == "commitlog":  # the record was not read, or it was reported and skipped
            if "record" in kinds:
                assert self.damaged in {problem.path for problem in problems if problem.kind == "record"}
            else:  # no CRC covers topic and properties: queues and index know them as they were
                assert kinds <= {"begin", "index", "entry", "offsets", "queue"}, problems
            return
        if problems and "consumequeue" in str(place):
            # Nothing was served wrongly: a tags code, which no answer shows, or garbage behind the last entry.
            assert kinds <= {"entry", "tail"}, problems
            assert place == problems[0].path
            assert rebuild_store(self.config.store_path, self.config).holes == []
            problems = check_store(self.config.store_path, self.config)
        if problems and place.name == "index":  # of what was not asked for
            assert kinds == {"index"}, problems
            assert rebuild_store(self.config.store_path, self.config).holes == []
            problems = check_store(self.config.store_path, self.config)
        assert problems == []


def read_queue(store: MessageStore, topic: str, queue_id: int) -> dict[int, bytes]:
    """Offset to record, read like a consumer: from the next offset of each response."""
    found: dict[int, bytes] = {}
    offset, end = store.get_min_offset(topic, queue_id), store.get_max_offset(topic, queue_id)
    while offset < end:
        result = store.get_message(topic, queue_id, offset, 8, 1 << 20)
        assert result.next_begin_offset > offset, result
        at = 0
        for _ in range(result.count):
            size = int.from_bytes(result.records[at : at + 4], "big")
            raw = result.records[at : at + size]
            number = int.from_bytes(raw[20:28], "big")
            assert offset <= number < result.next_begin_offset
            found[number] = bytes(raw)
            at += size
        assert at == len(result.records)
        offset = result.next_begin_offset
    return found


def assert_crc(raw: bytes) -> None:
    end = 88 + int.from_bytes(raw[84:88], "big")
    assert int.from_bytes(raw[8:12], "big") == crc32(raw[88:end]) & 0x7FFFFFFF


def _cases() -> list[tuple[str, str, str]]:
    """A twentieth of all: every file and every damage in both states; all of them if BAD_FILES=all is set."""
    cases = [(state, kind, damage) for kind in FILES for damage in DAMAGES for state in STATES]
    return cases if os.environ.get("BAD_FILES") == "all" else [c for i, c in enumerate(cases) if i % 38 in (0, 13)]


@pytest.mark.crash
@pytest.mark.parametrize(("state", "kind", "damage"), _cases())
def test_a_damaged_file(
    images: dict[str, Image],
    state: str,
    kind: str,
    damage: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    image = images[state]
    config = image.write(tmp_path / "store")
    path = config.store_path / name_of(image, FILES[kind])
    if not path.exists():
        path.touch()  # abort, in a store that was stopped
    DAMAGES[damage](path, random.Random(f"{state} {kind} {damage}"))
    Judge(config, image, path, caplog).judge()


PLACES = ("", "config", "commitlog", "consumequeue", "consumequeue/A", "consumequeue/A/0", "index", "quarantine")


@pytest.mark.parametrize(
    ("state", "place", "kind"),
    [
        (STATES[(at + number) % 2], place, kind)
        for at, place in enumerate(PLACES)
        for number, kind in enumerate(("file", "directory", "empty-directory"))
    ],
)
def test_something_foreign(
    images: dict[str, Image], state: str, place: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Reported if it could be mistaken for a part of the store, otherwise ignored."""
    image = images[state]
    config = image.write(tmp_path / "store")
    path = config.store_path / place / "notes"
    path.parent.mkdir(exist_ok=True)
    if kind == "file":
        path.write_bytes(b"mine")
    else:
        path.mkdir()
        if kind == "directory":
            (path / "inside").write_bytes(b"mine")
    Judge(config, image, path, caplog).judge()
    assert path.exists()


def test_empty_directories(images: dict[str, Image], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A queue that never had a message, a topic without queues."""
    image = images["stopped"]
    config = image.write(tmp_path / "store")
    for name in ("consumequeue/A/7", "consumequeue/Empty", "consumequeue/Other/3"):
        (config.store_path / name).mkdir(parents=True)
    Judge(config, image, config.store_path / "consumequeue/A/7", caplog).judge()


def test_a_damaged_old_record_is_skipped_and_reported_once(
    images: dict[str, Image], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By reading, by time, by id and by key; later messages are served."""
    image = images["stopped"]
    config = image.write(tmp_path / "store")
    record = next(record for record in image.records if record.queue == ("A", 0) and record.queue_offset == 3)
    path = config.store_path / "commitlog" / f"{record.physical_offset // LOG_SIZE * LOG_SIZE:020d}"
    at = record.physical_offset % LOG_SIZE
    data = bytearray(path.read_bytes())
    data[at + 90] ^= 1
    path.write_bytes(data)
    store = opened(config)
    for _ in range(2):
        result = store.get_message("A", 0, 0, 32, 1 << 20)
        numbers = [int.from_bytes(raw[20:28], "big") for raw in split(bytes(result.records))]
        assert numbers == [number for number in range(result.next_begin_offset) if number != 3]
        alone = store.get_message("A", 0, 3, 1, 1 << 20)
        assert (alone.status.name, alone.count, alone.next_begin_offset) == ("NO_MATCHED_MESSAGE", 0, 4)
    assert store.query_message("A", record.key, 32, 0, 1 << 62).records == []
    told = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR]
    assert len(told) == 1
    assert f"{path} at byte {at} (offset {record.physical_offset})" in told[0]
    assert "rocket store check" in told[0]
    store.close()
    assert next(problem.kind for problem in check_store(config.store_path, config)) == "record"
    shutil.rmtree(config.index_path)  # rebuilt around it
    store = opened(config)
    last = image.records[-1]
    assert store.query_message(last.topic, last.key, 32, 0, 1 << 62).records == [last.raw]
    store.close()


def split(records: bytes) -> list[bytes]:
    found = []
    while records:
        size = int.from_bytes(records[:4], "big")
        found.append(records[:size])
        records = records[size:]
    return found


@pytest.mark.parametrize("lost", ["Quiet", "Quiet/2", "Quiet/2/" + "0" * 17 + "400"])
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_queue_that_is_quiet_for_long_and_lost(
    images: dict[str, Image], trimmed: bool, lost: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The files that a start reads do not contain it; the recorded end of the last stop does. No offset is reused."""
    image = images["stopped"]
    config = image.write(tmp_path / "store")
    opened(config).close()  # by a broker that notes it
    path = config.consume_queue_path / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if trimmed:  # and its messages are gone
        for name in image.names("commitlog/")[:2]:
            (config.store_path / name).unlink()
        trimmed_by_hand(config)
    for _ in range(2):
        store = opened(config)
        assert store.get_max_offset("Quiet", 2) == 25
        assert len(read_queue(store, "Quiet", 2)) == (0 if trimmed else 25)
        store.close()
    assert caplog.text.count("is shorter than at the last stop") <= 1, "the second start finds it as it should be"
    store = opened(config)
    assert put(store, "Quiet", 2, b"next").queue_offset == 25
    store.close()
    assert check_store(config.store_path, config) == []


def test_old_records_of_every_kind_are_read(tmp_path: Path) -> None:
    """IPv6 hosts, topics of magic v2, empty bodies: all before the part that the start scanned."""
    config = small(tmp_path / "store", **SIZES)
    store = opened(config)
    topics = ("T", "L" * 200)
    for number in range(60):
        host = ("::1", 1) if number % 3 else ("127.0.0.1", 1)
        for topic in topics:
            store.put_message(topic, 0, b"b" * (number % 4 * 100), b"", born_timestamp=1, born_host=host)
    expected = {topic: read_queue(store, topic, 0) for topic in topics}
    assert all(len(records) == 60 for records in expected.values())
    store.close()
    store = opened(config)
    assert recovery_of(store).start_offset > 0
    assert {topic: read_queue(store, topic, 0) for topic in topics} == expected
    store.close()
    assert check_store(config.store_path, config) == []
