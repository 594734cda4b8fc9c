"""Background deletion of expired files: unlinking a file of 1 GiB takes long.

Files are deleted one by one in the order given: the log's oldest first, then the files of consume queues and index
that refer to them. Whenever the process ends, the remaining log therefore has no gap, and its consume queues cover all
of it. Files that were still pending are found expired again after the next start.

The directory of a deleted topic, already renamed by then, is deleted in the same way.

A file that cannot be deleted stays first in the queue and blocks the rest; :meth:`retry` retries it.

Thread-safety: one thread adds files; a separate thread, which exists only while files are pending, deletes them.
After a crash: the deletion of a log file is durable before the next file is deleted.
Corresponds to the sleeping and destroying parts of MappedFileQueue.deleteExpiredFileByTime, and retryDeleteFirstFile.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from spark_rocket.store.descriptors import sync_directory
from spark_rocket.store.log.mapped_file import MappedFile

_log = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 3.0


class FileRemover:
    """Deletes files in order, in the background."""

    def __init__(self) -> None:
        self._files: deque[tuple[MappedFile | Path, float, bool]] = deque()
        self._lock = threading.Lock()
        self._deleting = threading.Lock()  # held while a file is being deleted, which takes long
        self._current: MappedFile | Path | None = None
        self._is_urgent = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._refused: MappedFile | Path | None = None

    @property
    def pending_bytes(self) -> int:
        """Disk space still to be freed, without the queues of deleted topics."""
        with self._lock:
            return sum(file.size for file, _, _ in self._files if isinstance(file, MappedFile))

    def remove(self, files: Iterable[MappedFile], *, pause: float = 0.0, sync: bool = False) -> None:
        """Queue files for deletion in this order.

        ``pause``: seconds to wait after each file. ``sync``: sync its directory after each file.
        """
        with self._lock:
            self._files.extend((file, pause, sync) for file in files)
        self.retry()

    def remove_directories(self, directories: Iterable[Path]) -> None:
        """Queue unused directories for deletion, with their content."""
        with self._lock:
            self._files.extend((directory, 0.0, False) for directory in directories)
        self.retry()

    def retry(self) -> None:
        """Start the deletion thread if files are pending and it is not running."""
        with self._lock:
            if self._files and self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="store-remove", daemon=True)
                self._thread.start()

    def forget(self, directory: Path) -> None:
        """Remove a directory's files from the queue; the directory is about to be renamed and may be recreated."""

        def is_inside(file: MappedFile | Path | None) -> bool:
            return isinstance(file, MappedFile) and directory in file.path.parents

        with self._lock:
            self._files = deque(entry for entry in self._files if not is_inside(entry[0]))
            wait = is_inside(self._current)
        if wait:  # a queue's file is quick; a log file may take half a second, in which other requests are served
            with self._deleting:
                pass

    def finish(self) -> None:
        """Delete all pending files now, without pauses."""
        self._is_urgent.set()
        self.retry()
        thread = self._thread
        if thread is not None:
            thread.join()
        self._is_urgent.clear()

    def stop(self) -> None:
        """Delete pending files without pauses, for at most 3 s; the rest and later files stay."""
        self._is_urgent.set()
        self.retry()
        self._stopped = True
        thread = self._thread
        if thread is not None:
            thread.join(_STOP_TIMEOUT_S)
            with self._lock:
                self._files.clear()
            thread.join()

    def _run(self) -> None:
        pause = 0.0
        while True:
            if pause:
                self._is_urgent.wait(pause)
            with self._deleting:
                with self._lock:
                    if not self._files:
                        self._thread = None
                        return
                    entry = self._files[0]
                    file, pause, sync = entry
                    self._current = file
                done = self._delete(file, sync)
                with self._lock:
                    self._current = None
                    if self._files and self._files[0] is entry:  # not forgotten meanwhile
                        if not done:
                            self._thread = None
                            return
                        self._files.popleft()

    def _delete(self, file: MappedFile | Path, sync: bool) -> bool:
        path = file if isinstance(file, Path) else file.path
        try:
            if isinstance(file, Path):
                _delete_directory(file)
            else:
                file.destroy()
            if sync:
                sync_directory(path.parent)
        except OSError as error:
            if file != self._refused:
                _log.warning("cannot delete expired file %s: %s", path, error)
            self._refused = file
            return False
        return True


def _delete_directory(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
