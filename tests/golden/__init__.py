"""Loaders of the golden data in this directory, which its README describes."""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

HERE = Path(__file__).parent
StoreName = Literal["clean", "killed"]


class GoldenFrame(NamedTuple):
    """One recorded frame: ``index`` is its line of the index, ``raw`` all its bytes."""

    name: str
    index: dict[str, Any]  # type: ignore[assignment]  # it hides the method of tuples
    raw: bytes

    @property
    def header(self) -> dict[str, Any]:
        return self.index["header"]

    @property
    def request_code(self) -> int:
        return self.index["requestCode"]

    @property
    def is_request(self) -> bool:
        return self.index["kind"] == "request"


@cache
def frames() -> tuple[GoldenFrame, ...]:
    """All recorded frames, in the order of the index."""
    with tarfile.open(HERE / "frames.tar.gz") as tar:
        raw = {member.name: _content(tar, member) for member in tar.getmembers()}
    with gzip.open(HERE / "index.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return tuple(GoldenFrame(row["file"].removesuffix(".bin"), row, raw[row["file"]]) for row in rows)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None, f"{member.name} is not a file"
    return file.read()


def frame(name: str) -> GoldenFrame:
    """One frame by its name, such as ``json-0088-br-code202-response``."""
    return next(one for one in frames() if one.name == name)


def extract_store(name: StoreName, directory: Path) -> Path:
    """Unpack a recorded store under ``directory``; the path of the store directory itself."""
    with tarfile.open(HERE / f"store-4.9.8-{name}.tar.gz") as tar:
        tar.extractall(directory, filter="data")
    return directory / "store"


@cache
def store_files(name: StoreName) -> dict[str, bytes]:
    """The files of a recorded store by their path in it, without unpacking: ``commitlog/00000000000000000000`` …"""
    with tarfile.open(HERE / f"store-4.9.8-{name}.tar.gz") as tar:
        return {
            member.name.removeprefix("store/"): _content(tar, member) for member in tar.getmembers() if member.isfile()
        }


@cache
def expected(name: StoreName) -> tuple[dict[str, Any], ...]:
    """The messages of a store as the original client read them; ``body`` as bytes."""
    with gzip.open(HERE / f"expected-{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        row["body"] = base64.b64decode(row["body"] or "")
    return tuple(rows)
