"""One server in its own process: started with ``rocket …``, stopped or killed.

The process reports on one pipe that it is ready, with its addresses. It stops by itself when the other pipe closes,
which happens whenever this process ends. Thread-safety: one thread at a time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import spark_rocket
from spark_rocket.errors import StateError

STOP_SECONDS = 60.0


class ServerProcess:
    """A process of ``rocket ARGUMENTS``; ``facts``: the addresses that it reported when it was ready.

    ``begun`` is called with the process id right after the start.
    """

    def __init__(
        self, arguments: list[str], log_path: Path, timeout: float, begun: Callable[[int], None] = lambda pid: None
    ) -> None:
        self._log_path = log_path
        ready_read, ready_write = os.pipe()
        lifeline_read, lifeline = os.pipe()
        self._lifeline = os.fdopen(lifeline, "wb", buffering=0)  # a file object: closing it twice is harmless
        command = [sys.executable, "-m", "spark_rocket.cli", *arguments]
        command += ["--ready-fd", str(ready_write), "--lifeline-fd", str(lifeline_read)]
        try:
            with log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(ready_write, lifeline_read),
                    env=_environment(),
                    start_new_session=True,  # Ctrl-C in the terminal interrupts only the test, which then stops this
                )
        except BaseException:
            os.close(ready_read)
            self._lifeline.close()
            raise
        finally:
            os.close(ready_write)
            os.close(lifeline_read)
        self._asked = False
        self.pid = self._process.pid
        begun(self.pid)
        try:
            self.facts = _read_line(ready_read, timeout)
        except ValueError as error:
            self.kill()
            tail = log_path.read_text(errors="replace")[-2_000:].strip()
            raise StateError(f"The servers did not start: {tail or error}") from None
        finally:
            os.close(ready_read)

    def ask_to_stop(self) -> None:
        """Send SIGTERM, once: at the end of the process, a second one would no longer be handled."""
        if not self._asked:
            self._asked = True
            self._process.send_signal(signal.SIGCONT)  # in case it is paused
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop it cleanly and wait for its end."""
        self.ask_to_stop()
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise StateError(f"The servers did not stop within {STOP_SECONDS:.0f} s and were killed.") from None
        self._lifeline.close()
        if status != 0:
            raise StateError(f"The servers stopped with exit status {status}; see {self._log_path}.")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._lifeline.close()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def _read_line(descriptor: int, timeout: float) -> Mapping[str, str]:
    """Read the JSON line of the servers; ValueError if they end before it, or at the timeout."""
    deadline = time.monotonic() + timeout
    received = b""
    while not received.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))
        piece = os.read(descriptor, 4096) if readable else b""
        if not piece:
            raise ValueError("they ended before that" if readable else f"not ready within {timeout:.0f} s")
        received += piece
    facts: dict[str, str] = json.loads(received)
    return facts


def _environment() -> dict[str, str]:
    """This process's environment, with the directory of this package in PYTHONPATH."""
    root = str(Path(spark_rocket.__file__).resolve().parents[1])
    others = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in (root, others) if part)}
