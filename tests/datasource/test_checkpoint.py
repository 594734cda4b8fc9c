from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_rocket.datasource.plan.checkpoint import read_checkpoint
from spark_rocket.datasource.stream_offsets import StreamOffset, initial_offset
from spark_rocket.errors import OffsetsError
from spark_rocket.model import MessageQueue

GOLDEN = Path(__file__).parents[1] / "spark" / "golden" / "checkpoint-v1"
A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


def write(directory: Path, batch: int, *sources: object, done: bool = True) -> None:
    for name in ("offsets", "commits"):
        (directory / name).mkdir(exist_ok=True)
    lines = ["v1", '{"batchWatermarkMs":0}', *(line if isinstance(line, str) else json.dumps(line) for line in sources)]
    (directory / "offsets" / str(batch)).write_text("\n".join(lines))
    if done:
        (directory / "commits" / str(batch)).write_text("v1\n{}")


def test_the_stored_checkpoint() -> None:
    found = read_checkpoint(GOLDEN)
    queues = [MessageQueue("golden-v1", "broker-a", number) for number in (0, 1)]
    assert found.batch == 0
    assert found.positions == dict(zip(queues, (6, 5), strict=True))
    assert found.planned is None


def test_a_planned_batch_is_read_again(tmp_path: Path) -> None:
    write(tmp_path, 0, StreamOffset({A: 10}, {A: 4}).to_json(), done=False)
    assert read_checkpoint(tmp_path).positions == {A: 4}
    write(tmp_path, 0, StreamOffset({A: 10}, {A: 4}).to_json())
    write(tmp_path, 1, StreamOffset({A: 20, B: 7}, {B: 2}).to_json(), done=False)
    found = read_checkpoint(tmp_path)
    assert (found.batch, found.positions, found.planned) == (0, {A: 10, B: 2}, {A: 20, B: 7})


def test_other_sources_and_several_rocket_sources(tmp_path: Path) -> None:
    kafka = {"other": {"0": 5}}
    write(tmp_path, 10, "-", kafka, StreamOffset({A: 9}).to_json(), initial_offset(), StreamOffset({A: 7}).to_json())
    (tmp_path / "offsets" / ".11.tmp").write_text("half")
    assert read_checkpoint(tmp_path).positions == {A: 7}


def test_checkpoints_without_rocket_sources(tmp_path: Path) -> None:
    with pytest.raises(OffsetsError, match="NO_CHECKPOINT"):
        read_checkpoint(tmp_path / "nowhere")
    write(tmp_path, 0, {"other": {"0": 5}})
    with pytest.raises(OffsetsError, match="NOT_OURS"):
        read_checkpoint(tmp_path)
    (tmp_path / "offsets" / "0").write_text("v9\n{}\n{}")
    with pytest.raises(OffsetsError, match=r"CHECKPOINT_LOG.*'v9'"):
        read_checkpoint(tmp_path)
    (tmp_path / "offsets" / "0").write_bytes(b"\xff\xfe")
    with pytest.raises(OffsetsError, match="CHECKPOINT_LOG"):
        read_checkpoint(tmp_path)
