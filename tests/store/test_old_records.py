"""Records of before the start: looked at when they are first read, and not again."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_rocket.store.check import check_store
from spark_rocket.store.old_records import OldRecords
from tests.store.helpers import BORN, opened, small


def test_what_was_found_good_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(tmp_path / "store", mapped_file_size_commit_log=4096)
    store = opened(config)
    for number in range(400):
        store.put_message("t", 0, b"%d" % number, b"", born_timestamp=1, born_host=BORN)
    store.close()
    looked: list[int] = []
    are_good = OldRecords.are_good

    def noting(self: OldRecords, queue: object, offset: int, *rest: object) -> bool:
        looked.append(offset)
        return bool(are_good(self, queue, offset, *rest))  # type: ignore[arg-type]

    monkeypatch.setattr(OldRecords, "are_good", noting)
    store = opened(config)
    for _ in range(2):
        offset = 0
        while offset < 400:
            offset = store.get_message("t", 0, offset, 50, 1 << 20).next_begin_offset
    before = len(looked)
    assert looked == sorted(set(looked)), "each stretch once"
    assert looked[0] == 0
    assert looked[-1] < 400 - 50, "the end was scanned at the start"
    assert store.get_message("t", 0, 120, 10, 1 << 20).count == 10
    assert len(looked) == before
    store.get_message("t", 0, 5, 10, 1 << 20)
    assert len(looked) == before
    store.close()
    assert check_store(config.store_path, config) == []
