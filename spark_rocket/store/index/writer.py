"""Index files made one after another from the keys of a whole log, as a rebuild does.

Thread-safety: for one thread. Corresponds to IndexService, which makes them behind the writer's back.
"""

from __future__ import annotations

from datetime import datetime

from spark_rocket.store.config import StoreConfig
from spark_rocket.store.index.index_file import IndexFile


class IndexWriter:
    """Index files one after another, named by the store time of their first key: then a broker would have made them."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._named = 0
        self._current: IndexFile | None = None

    def file(self, store_timestamp: int) -> IndexFile:
        """The one that there is room in."""
        if self._current is None or self._current.is_full:
            self.close()
            self._named = max(store_timestamp, self._named + 1)
            name = _index_name(self._named)
            if self._current is not None and name <= self._current.file.path.name:  # summer time has ended
                self._named += 3_600_000
                name = _index_name(self._named)
            path = self._config.index_path / name
            self._current = IndexFile(path, self._config.max_hash_slot_num, self._config.max_index_num, create=True)
        return self._current

    def close(self) -> None:
        if self._current is not None:
            self._current.close()


def _index_name(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000):%Y%m%d%H%M%S}{milliseconds % 1000:03d}"
