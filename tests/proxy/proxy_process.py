"""``rocket proxy`` as a separate process, and the memory of a process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.test_rocket import found, started
from tests.proxy.grpc_world import LIMIT


@contextmanager
def proxy_process(name_server: str) -> Iterator[tuple[str, int]]:
    """Endpoint and process id."""
    with started("proxy", "-n", name_server, "--grpc-port", 0, last="name servers") as (process, said):
        yield found(r"gRPC proxy on (127\.0\.0\.1:\d+)", said), process.pid
        process.terminate()
        process.communicate(timeout=LIMIT)


def memory_of(pid: int) -> int:
    """Private memory in MiB, without mapped files."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) // 1024


class Watched:
    """The peak memory of a process during an attack."""

    def __init__(self, pid: int) -> None:
        self.before = memory_of(pid)
        self.most = self.before
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, memory_of(self._pid))
