"""Inputs that are kept: ``corpus/<target>.txt``, a bytes literal a line; a comment says what the next one broke."""

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


def add(name: str, inputs: list[bytes], why: str = "") -> None:
    """Keep more of them, each once."""
    known = set(load(name))
    new = [data for data in dict.fromkeys(inputs) if data not in known]
    if new:
        with (HERE / f"{name}.txt").open("a", encoding="ascii") as file:
            file.writelines([f"# {why}\n"] if why else [])
            file.writelines(f"{data!r}\n" for data in new)
