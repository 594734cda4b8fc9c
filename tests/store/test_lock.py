"""Two brokers on one directory, and the two small files."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_rocket.errors import StoreLockedError
from spark_rocket.store.store_lock import StoreLock
from spark_rocket.store.tools.check import check_store
from tests.store.helpers import opened, put, recovery_of, small

pytestmark = pytest.mark.live

HOLD = """
import sys
from pathlib import Path
from tests.store.helpers import opened, small
store = opened(small(Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_broker_in_this_process_is_refused(tmp_path: Path) -> None:
    config = small(tmp_path / "store")
    store = opened(config)
    with pytest.raises(StoreLockedError, match=f"in use by process {os.getpid()}"):
        opened(config)
    with pytest.raises(StoreLockedError):
        check_store(config.store_path, config)
    put(store, "T", 0, b"still good")
    assert (config.store_path / "lock").read_bytes() == b"lock"
    store.close()
    opened(config).close()


def test_a_second_process_is_refused_with_the_id_of_the_first(tmp_path: Path) -> None:
    config = small(tmp_path / "store")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(config.store_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLockedError) as error:
            opened(config)
        assert str(config.store_path) in str(error.value)
        assert f"process {holder.pid}" in str(error.value)
        holder.kill()
    store = opened(config)  # the lock goes with the process, however it ends
    assert not recovery_of(store).clean
    store.close()


def test_a_java_brokers_lock_is_respected(tmp_path: Path) -> None:
    """Java locks the file's first byte the POSIX way."""
    (tmp_path / "lock").write_bytes(b"lock")
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0); "
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLockedError, match="another broker"):
            StoreLock(tmp_path).acquire()
        holder.kill()
    lock = StoreLock(tmp_path)
    lock.acquire()
    with (tmp_path / "lock").open("rb") as other, pytest.raises(OSError, match="temporarily unavailable"):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    lock.release()
