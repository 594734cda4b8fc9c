"""An object with a state file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_rocket.broker.state.config_files import ConfigFile


class Box:
    """A file whose state is a number."""

    def __init__(self, path: Path) -> None:
        self.state: dict[str, Any] = {"n": 0}
        self.file = ConfigFile(path, lambda: dict(self.state), self._load)

    def _load(self, stored: dict[str, Any]) -> None:
        if not isinstance(stored["n"], int):
            raise ValueError("n must be a number")
        self.state = stored

    def save(self, number: int, **more: object) -> None:
        self.state = {"n": number, **more}
        self.file.save()
