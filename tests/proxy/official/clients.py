"""The drivers of RocketMQ's own clients, each a separate process that executes commands."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

HERE = Path(__file__).parent
SECONDS = 30.0


class OfficialClientError(Exception):
    """An error of the client; ``code`` is the status, if it has one."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


def command_of(kind: str) -> list[str]:
    """Start drivers. Skip the test if the client is not installed (fail if REQUIRE_OFFICIAL is set)."""
    if kind == "python":
        missing = "rocketmq-python-client" if importlib.util.find_spec("rocketmq") is None else None
        command = [sys.executable, str(HERE / "python_driver.py")]
    else:
        installed = (HERE / "node" / "node_modules" / "rocketmq-client-nodejs").is_dir()
        missing = "Node.js" if shutil.which("node") is None else None if installed else "rocketmq-client-nodejs"
        command = ["node", str(HERE / "node" / "driver.js")]
    if missing is not None:
        (pytest.fail if os.environ.get("REQUIRE_OFFICIAL") else pytest.skip)(f"{missing} is not installed")
    return command


class Official:
    """One driver. ``do`` returns the result of a request; ``events`` has the calls of listeners.

    ``trusted``: the CA of the server's certificate, for TLS; for Python's client only.
    """

    def __init__(
        self,
        kind: str,
        endpoint: str,
        home: Path,
        *,
        access_key: str = "",
        secret_key: str = "",
        trusted: Path | None = None,
    ) -> None:
        self.kind = kind
        self._log = home / f"{kind}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command_of(kind), endpoint],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ
                | {"HOME": str(home)}  # where they write their logs
                | {"OFFICIAL_ACCESS_KEY": access_key, "OFFICIAL_SECRET_KEY": secret_key}
                | ({} if trusted is None else {"OFFICIAL_TLS": "1", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(trusted)}),
            )
        self._numbers = itertools.count(1)
        self._answers: dict[int, SimpleQueue[dict[str, Any]]] = {}
        self._events: dict[str, SimpleQueue[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "id" in told:
                self._answers.pop(told["id"]).put(told)
            else:
                self._events_of(told["as"]).put(told)
        for waiting in list(self._answers.values()):
            waiting.put({"error": f"the driver has ended: {self._log.read_text()[-2000:]}"})

    def _events_of(self, name: str) -> SimpleQueue[dict[str, Any]]:
        return self._events.setdefault(name, SimpleQueue())

    def begin(self, do: str, name: str, /, **more: object) -> SimpleQueue[dict[str, Any]]:
        """Send a request; ``end`` returns its result."""
        number = next(self._numbers)
        answer = self._answers[number] = SimpleQueue()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": do, "as": name, **more}) + "\n")
        self._process.stdin.flush()
        return answer

    def end(self, answer: SimpleQueue[dict[str, Any]]) -> Any:
        told = answer.get(timeout=2 * SECONDS)
        if "error" in told:
            raise OfficialClientError(told["error"], told.get("code"))
        return told["ok"]

    def do(self, do: str, name: str, /, **more: object) -> Any:
        return self.end(self.begin(do, name, **more))

    def event(self, name: str) -> dict[str, Any]:
        """The next event of a client."""
        return self._events_of(name).get(timeout=SECONDS)

    def receive(self, name: str, count: int, *, ack: bool = True, **more: object) -> list[dict[str, Any]]:
        """Receive a number of messages, with as many polls as needed."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            messages = self.do("receive", name, **more)
            if ack:
                for message in messages:
                    self.do("ack", name, message=message["messageId"])
            found += messages
        assert len(found) == count
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
