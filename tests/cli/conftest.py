"""``rocket`` as a function that returns output and exit status, without a process for each call."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from spark_rocket.cli import main


@dataclass(frozen=True)
class CommandResult:
    """The result of a command line. An invalid one has status 2, as in a shell."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., CommandResult]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("topic", "list", "-n", address)``; ``answer="y"`` is the answer to a confirmation."""

    def run(*arguments: object, answer: str | None = None) -> CommandResult:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            if answer is not None:
                patch.setattr(sys.stdin, "isatty", lambda: True)
                patch.setattr("builtins.input", lambda question: answer)
            try:
                status = main([str(argument) for argument in arguments])
            except SystemExit as end:
                status = int(end.code or 0)
        said = capsys.readouterr()
        return CommandResult(status, said.out, said.err)

    return run
