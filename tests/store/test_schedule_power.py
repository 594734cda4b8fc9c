"""Power failures during delayed delivery: each message is delivered once, none is lost, the order is kept."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.store.delay.schedule_message_service import ScheduleMessageService
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import Clock
from tests.store.helpers import DELAYS, bodies, flush_log, opened, put, small
from tests.store.test_torn_images import FATES, Disk

TOPIC = "SCHEDULE_TOPIC_XXXX"


@pytest.mark.parametrize("seed", range(15), ids=lambda seed: f"seed{seed}")
def test_each_delayed_message_is_delivered_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    clock = Clock()
    disk = Disk(monkeypatch)
    config = small(tmp_path / "store")
    store = opened(config, clock)
    schedule = ScheduleMessageService(store, DELAYS)
    saved: dict[str, Any] = {"offsetTable": {}}
    sent: dict[int, list[tuple[int, bytes]]] = {level: [] for level in (1, 2, 3)}
    for act in range(rng.randrange(20, 200)):
        clock.now += rng.choice((0, 1, 300, 2000))
        kind = rng.random()
        if kind < 0.5:
            level, body = rng.choice((1, 2, 3)), b"%d" % act + rng.randbytes(rng.choice((5, 500)))
            properties = b"DELAY\x01%d\x02REAL_TOPIC\x01Real%d\x02REAL_QID\x010\x02UNIQ_KEY\x01%d" % (level, level, act)
            sent[level].append((put(store, TOPIC, level - 1, body, properties).end_physical_offset, body))
        elif kind < 0.8:
            schedule.deliver(clock.now, rng.choice((0, 1e9)))
        elif kind < 0.9:
            flush_log(store)
        else:  # as the broker saves: the log first
            mark = schedule.mark()
            if mark is not None:
                flush_log(store)
                assert store.flushed_where >= mark.physical_offset
                schedule.confirm(mark, clock.now)
        saved = schedule.snapshot()  # the file may be written at any time
    on_disk = store.flushed_where
    image = tmp_path / "image"
    disk.image(store.config.store_path, image, rng, FATES)
    store.close()

    config = replace(config, store_path_root_dir=image)
    clock.now += 60_000
    store = opened(config, clock)
    schedule = ScheduleMessageService(store, DELAYS)
    schedule.load(saved)
    caplog.clear()
    schedule.correct_offsets()
    assert schedule.deliver(clock.now, 1e9) is None
    assert caplog.records == []  # no offset had to be corrected
    for level, messages in sent.items():
        safe = [body for end, body in messages if end <= on_disk]
        delivered = bodies(store, f"Real{level}", 0)
        assert delivered == [body for _, body in messages][: len(delivered)]
        assert delivered[: len(safe)] == safe
    store.close()
    assert check_store(image, config) == []
