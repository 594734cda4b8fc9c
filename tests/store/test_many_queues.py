"""Hundreds of queues and log files with few descriptors; memory that does not grow with the log."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from spark_rocket.store import MessageStore
from spark_rocket.store.log import resident_memory
from spark_rocket.store.tools.check import check_store
from tests.store.conftest import MakeStore
from tests.store.helpers import bodies, mapped_files, opened, put, put_batch, recovery_of, small

QUEUES = 300
ROUNDS = 6

CROWD = f"""
import os, resource, signal, sys
from pathlib import Path
from tests.store.helpers import bodies, opened, put, small

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
store = opened(small(Path(sys.argv[1]), max_mapped_consume_queue_files=100))
before = len(Path("/proc/self/maps").read_bytes().splitlines())
for round_ in range({ROUNDS}):
    for i in range({QUEUES}):
        put(store, f"T{{i % 30}}", i // 30, b"%d %d " % (round_, i) * 200)
    store.flush()
    files = len(os.listdir(store.config.commit_log_path))
    assert files > 8 * round_, files
    descriptors = len(os.listdir("/proc/self/fd"))
    mappings = len(Path("/proc/self/maps").read_bytes().splitlines()) - before
    # two queues, and a dozen files of the log; the rest is the interpreter's
    assert descriptors < 40 and mappings < 80, (descriptors, mappings)
for i in range({QUEUES}):
    assert len(bodies(store, f"T{{i % 30}}", i // 30)) == {ROUNDS}
os.kill(os.getpid(), signal.SIGKILL)
"""


def sent(i: int) -> list[bytes]:
    return [b"%d %d " % (round_, i) * 200 for round_ in range(ROUNDS)]


@pytest.mark.live
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="descriptors and mappings are counted in /proc")
def test_descriptors_and_mappings_are_bounded(tmp_path: Path) -> None:
    """300 queues and some 60 log files with 40 descriptors in all; then the process is killed, and it recovers."""
    config = small(tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-c", CROWD, str(config.store_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr
    store = opened(config)
    assert not recovery_of(store).clean
    assert all(bodies(store, f"T{i % 30}", i // 30) == sent(i) for i in range(QUEUES))
    store.close()
    assert check_store(config.store_path, config) == []


def mapped(store: MessageStore) -> int:
    return len(mapped_files(store.config.consume_queue_path))


def test_evicted_queues_lose_and_hide_nothing(make_store: MakeStore) -> None:
    """Puts, batches over several files, reads at once and restarts, with room for three mapped queues of twenty."""
    rng = random.Random(7)
    store = make_store(max_mapped_consume_queue_files=3)
    model: dict[int, list[bytes]] = {i: [] for i in range(20)}
    for step in range(1500):
        i = rng.randrange(20)
        if rng.random() < 0.9:
            fresh = [b"%d" % step]
            assert put(store, "T", i, fresh[0]).queue_offset == len(model[i])
        else:
            fresh = [b"%d %d" % (step, j) for j in range(rng.randrange(1, 60))]
            put_batch(store, "T", i, [(0, body, b"") for body in fresh])
        model[i] += fresh
        assert store.get_max_offset("T", i) == len(model[i])
        last = store.get_message("T", i, len(model[i]) - 1, 1, 1 << 20)
        assert fresh[-1] in last.records
        assert mapped(store) <= 3
        if step % 500 == 499:
            store.close()
            store = make_store(max_mapped_consume_queue_files=3)
            assert mapped(store) == 0
    assert {i: bodies(store, "T", i) for i in model} == model


class TestColdLog:
    """Old bytes of the log: the number of their mapped files, and reads of them."""

    @pytest.fixture(autouse=True)
    def small_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resident_memory, "_WARM_BYTES", 64 << 10)
        monkeypatch.setattr(resident_memory, "_RELEASE_BYTES", 8 << 10)
        monkeypatch.setattr(resident_memory, "_FAULT_AROUND_BYTES", 4 << 10)
        monkeypatch.setattr(resident_memory, "_MAX_COLD_FILES", 4)

    def mapped(self, store: MessageStore) -> int:
        """Without the file that is prepared for the writer."""
        files = mapped_files(store.config.commit_log_path)
        return sum(int(path.name) < store.max_physical_offset for path in files)

    @pytest.mark.parametrize("file_size", [20_000, 32 << 10, 200_000])
    def test_few_files_are_mapped(self, make_store: MakeStore, file_size: int) -> None:
        store = make_store(mapped_file_size_commit_log=file_size, message_index_enable=False)
        rng = random.Random(file_size)
        written: dict[int, list[bytes]] = {i: [] for i in range(5)}
        for number in range(1000):
            written[number % 5].append(b"%d " % number * rng.randrange(300))
            put(store, "T", number % 5, written[number % 5][-1])
            if number % 50 == 0:
                store.flush()
        store.flush()
        files = len(list(store.config.commit_log_path.iterdir()))
        warm = 2 + (72 << 10) // file_size
        assert self.mapped(store) <= warm < files
        for i in written:
            assert bodies(store, "T", i, max_msgs=7) == written[i]
            assert self.mapped(store) <= warm + 4
        for i in rng.choices(range(1000), k=200):
            found = store.get_message("T", i % 5, i // 5, 1, 1)
            assert written[i % 5][i // 5] in found.records
            assert self.mapped(store) <= warm + 4
        store.close()
        store = make_store(mapped_file_size_commit_log=file_size, message_index_enable=False)
        for i in written:
            assert bodies(store, "T", i) == written[i]
        assert self.mapped(store) <= warm + 4
