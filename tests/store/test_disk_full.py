"""A full disk refuses puts before a byte is written, and the store continues when there is space."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spark_rocket.errors import StoreError, StoreNotWritableError
from spark_rocket.store import PutStatus
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import Clock
from tests.store.conftest import MakeStore
from tests.store.helpers import BORN, bodies, opened, put, put_batch, small


class Budget:
    """``posix_fallocate`` on a disk with so many bytes left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        self.left = left
        real = os.posix_fallocate

        def fallocate(fd: int, offset: int, length: int) -> None:
            if length > self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.left -= length
            real(fd, offset, length)

        monkeypatch.setattr(os, "posix_fallocate", fallocate)


@pytest.mark.parametrize("left", [0, 4096, 8192, 40_000, 45_056, 80_000, 200_000])
def test_nothing_half_visible(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    store = make_store()
    put(store, "T", 0, b"before")
    disk = Budget(monkeypatch, left)
    stored = {0: [b"before"], 1: [], 2: []}
    refused = 0
    for i in range(300):
        queue_id, body = i % 3, b"%d" % i * 200
        if i % 5:
            result = store.put_message("T", queue_id, body, b"", born_timestamp=1, born_host=BORN)
            count = 1
        else:
            from spark_rocket.protocol.record.batch_body import encode_batch_body

            raw = encode_batch_body([(0, body, b"")] * 4)
            result = store.put_batch("T", queue_id, raw, born_timestamp=1, born_host=BORN)
            count = 4
        if result.status is PutStatus.PUT_OK:
            stored[queue_id] += [body] * count
        else:
            refused += 1
            assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert "No space left" in result.reason
    assert refused > 0
    assert {queue_id: bodies(store, "T", queue_id) for queue_id in stored} == stored
    disk.left = 1 << 30
    put(store, "T", 1, b"after")
    put_batch(store, "T", 2, [(0, b"after", b"")])
    assert bodies(store, "T", 1) == [*stored[1], b"after"]


def test_a_full_disk_is_logged_once_a_minute(
    make_store: MakeStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store()
    disk = Budget(monkeypatch, 0)

    def refused(count: int) -> int:
        before = caplog.text.count("No room for messages")
        for number in range(count):
            result = store.put_message("T", number, b"x", b"", born_timestamp=1, born_host=BORN)
            assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        return caplog.text.count("No room for messages") - before

    assert refused(50) == 1
    clock.now += 59_999
    assert refused(50) == 0
    clock.now += 1
    assert refused(50) == 1
    disk.left = 1 << 30


def test_a_topic_with_a_failed_deletion_survives_a_kill(
    make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next deletion of another topic must not write the failed one to the disk."""

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = make_store()
    for topic in ("Kept", "Gone"):
        put(store, topic, 0, b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            store.delete_topic("Kept")
    assert bodies(store, "Kept", 0) == [b"x"]
    store.delete_topic("Gone")
    killed = tmp_path / "killed"
    # None of the queues had been flushed: they are built from the log.
    shutil.copytree(store.config.store_path, killed, ignore=shutil.ignore_patterns("consumequeue*"))
    again = opened(small(killed))
    assert bodies(again, "Kept", 0) == [b"x"]
    assert bodies(again, "Gone", 0) == []
    again.close()


def test_the_index_waits_for_room(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store()
    for i in range(150):
        put(store, "T", 0, b"", b"KEYS\x01k%d" % i)
    assert len(store.query_message("T", "k149", 1, 0, 1 << 62).records) == 1
    with monkeypatch.context() as context:
        disk = Budget(context, 1 << 20)
        for i in range(150, 400):
            put(store, "T", 0, b"", b"KEYS\x01k%d" % i)
        disk.left = 0
        for _ in range(3):
            store.query_message("T", "k399", 1, 0, 1 << 62)
    assert caplog.text.count("cannot write the index") <= 1, "not again for each attempt"
    assert len(store.query_message("T", "k399", 1, 0, 1 << 62).records) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, where this machine lets us mount one."""
    directory = tmp_path / "disk"
    directory.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def fill_up(directory: Path) -> Path:
    """Use all free space."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return ballast


@pytest.mark.live
def test_a_disk_that_is_full_for_a_while(small_disk: Path) -> None:
    """Sends are refused with the reason, reads continue, and sends succeed when there is space, without a restart."""
    config = small(small_disk / "store", mapped_file_size_commit_log=64 << 10, allocate_ahead=4096)
    store = opened(config)
    stored = []
    for round_ in range(3):
        ballast = fill_up(small_disk)
        for number in range(200):
            body = b"%d/%d " % (round_, number) * 50
            result = store.put_message("T", 0, body, b"KEYS\x01k", born_timestamp=1, born_host=BORN)
            if result.status is not PutStatus.PUT_OK:
                break
            stored.append(body)
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "No space left" in result.reason
        assert bodies(store, "T", 0) == stored
        ballast.unlink()
        put(store, "T", 0, b"room", b"KEYS\x01r%d" % round_)
        stored.append(b"room")
        assert len(store.query_message("T", f"r{round_}", 1, 0, 1 << 62).records) == 1
    store.close()
    assert check_store(config.store_path, config) == []


PROMISED = """
import os, sys
from pathlib import Path
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.store import PutStatus
from spark_rocket.store.log import mapped_file
from tests.store.helpers import BORN, bodies, opened, small

os.posix_fallocate = lambda fd, start, length: None  # promised, and not given
mapped_file._can_touch = mapped_file._can_touch and sys.argv[2] == "touched"
config = small(Path(sys.argv[1]) / "store", mapped_file_size_commit_log=512 << 10, allocate_ahead=4096)
store, stored, batch = opened(config), 0, encode_batch_body([(0, b"x" * 1000, b"")] * 100)
while (result := store.put_batch("T", 0, batch, born_timestamp=1, born_host=BORN)).status is PutStatus.PUT_OK:
    stored += 100
assert result.status is PutStatus.SERVICE_NOT_AVAILABLE, result
assert 0 < stored < 1100 and bodies(store, "T", 0) == [b"x" * 1000] * stored
store.close()
"""


@pytest.mark.live
@pytest.mark.parametrize("how", ["touched", "written"])
def test_a_disk_that_does_not_give_what_it_promised(small_disk: Path, how: str) -> None:
    """A long batch is refused, where a write through the mapping would end the process."""
    subprocess.run([sys.executable, "-c", PROMISED, str(small_disk), how], check=True)


WRITER = """
import os, signal, sys
from pathlib import Path
from spark_rocket.store import PutStatus
from tests.store.helpers import BORN, opened, small
from tests.store.test_disk_full import fill_up

store = opened(small(Path(sys.argv[1]) / "store", mapped_file_size_commit_log=64 << 10, allocate_ahead=4096))
stored, full = 0, False
while True:
    result = store.put_message("T", stored % 3, b"%d " % stored * 30, b"KEYS\\x01k", born_timestamp=1, born_host=BORN)
    if result.status is not PutStatus.PUT_OK:
        break
    stored += 1
    if stored == 100:
        fill_up(Path(sys.argv[1]))
os.write(1, b"%d" % stored)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.live
def test_a_kill_on_a_full_disk(small_disk: Path) -> None:
    """It opens and serves everything, or refuses with an error; with disk space it always opens."""
    done = subprocess.run([sys.executable, "-c", WRITER, str(small_disk)], stdout=subprocess.PIPE, check=False)
    stored = int(done.stdout)
    assert done.returncode == -9
    assert stored >= 100
    config = small(small_disk / "store", mapped_file_size_commit_log=64 << 10, allocate_ahead=4096)
    for _ in range(2):
        with suppress(StoreNotWritableError):
            store = opened(config)
            assert sum(len(bodies(store, "T", queue_id)) for queue_id in range(3)) == stored
            with suppress(StoreError):
                store.close()
    (small_disk / "ballast").unlink()
    store = opened(config)
    for queue_id in range(3):
        expected = [b"%d " % number * 30 for number in range(queue_id, stored, 3)]
        assert bodies(store, "T", queue_id) == expected
    put(store, "T", 0, b"after")
    store.close()
    assert check_store(config.store_path, config) == []
