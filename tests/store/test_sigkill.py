"""A process killed while it writes: all acknowledged messages are there, and the store is valid."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_rocket.store.tools.check import check_store
from tests.store.helpers import bodies, opened, put, recovery_of, small

pytestmark = pytest.mark.live

WRITER = """
import random, sys, threading
from pathlib import Path
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.store import FlushDiskType
from tests.store.helpers import BORN, opened, put, small

config = small(Path(sys.argv[1]), flush_disk_type=FlushDiskType.SYNC_FLUSH, flush_interval_consume_queue=20)
store = opened(config)
rng = random.Random(int(sys.argv[2]))
lock = threading.Lock()
sent = [store.get_max_offset("T", queue_id) for queue_id in range(3)]

def flushed(queue_id, upto):
    def callback(ok):
        if ok:
            with lock:
                sys.stdout.write(f"{queue_id} {upto}\\n")
                sys.stdout.flush()
    return callback

while True:
    queue_id = rng.randrange(3)
    number = sent[queue_id]
    if rng.random() < 0.8:
        result = put(store, "T", queue_id, b"%d" % number * rng.randrange(1, 300), b"KEYS\\x01k%d" % number)
    else:
        raw = encode_batch_body([(0, b"%d" % (number + i), b"UNIQ_KEY\\x01u") for i in range(rng.randrange(1, 30))])
        result = store.put_batch("T", queue_id, raw, born_timestamp=1, born_host=BORN)
    sent[queue_id] += result.count
    store.when_flushed(result.end_physical_offset, flushed(queue_id, sent[queue_id]))
"""


@pytest.mark.crash
def test_acknowledged_messages_survive_sigkill(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Rounds on one directory, each killed after some hundred acknowledgements (KILL_ROUNDS=50 for more)."""
    config = small(tmp_path / "store")
    flushed_upto = [0, 0, 0]
    rounds = int(os.environ.get("KILL_ROUNDS", "3"))
    for round_ in range(rounds):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(config.store_path), str(round_)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        with writer:
            for line, _ in zip(writer.stdout, range(300 + 37 * (round_ % 10)), strict=False):
                queue_id, upto = map(int, line.split())
                flushed_upto[queue_id] = max(flushed_upto[queue_id], upto)
            writer.kill()
        store = opened(config)
        assert not recovery_of(store).clean
        for queue_id in range(3):
            found = bodies(store, "T", queue_id)
            assert len(found) >= flushed_upto[queue_id]
            for number, body in enumerate(found):
                text = b"%d" % number
                assert body == text * (len(body) // len(text))
            flushed_upto[queue_id] = len(found)
        put(store, "Other", 0, b"after")
        store.close()
        problems = check_store(config.store_path, config)
        assert {problem.kind for problem in problems} <= {"index.behind"}, problems  # it goes on at the next start
    figure(f"{rounds} kills of the store: {sum(flushed_upto)} messages read, every flushed one among them")
