"""Stored inputs: ``corpus/<target>.txt``, a bytes literal per line; a comment names what the next one broke."""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent / "corpus"


def load(name: str) -> list[bytes]:
    """The kept inputs of a target."""
    path = HERE / f"{name}.txt"
    if not path.exists():
        return []
    lines = path.read_text(encoding="ascii").splitlines()
    return [ast.literal_eval(line) for line in lines if line and not line.startswith("#")]
