"""Deleting files that nobody is to find any more: on a thread, because unlinking a file of 1 GiB takes its time.

Files are deleted one after the other in the order in which they were given: the log's oldest first, then those of
consume queues and index that described them. So whenever a process ends, the log that remains is a row without a gap,
and whatever it has is in its queues. What had to wait is found again, and given again, after the next start.

A deleted topic's directory, which has another name by then, is deleted in the same way.

A file that cannot be deleted keeps its place, and everything behind it waits; :meth:`retry` tries again.

Thread-safety: one thread gives, a thread of its own deletes; that one lives only while there is something to delete.
After a crash: names of the log are put on disk before the next file goes.
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
_PATIENCE = 3.0


class FileRemover:
    """Deletes files in order, behind its owner's back."""

    def __init__(self) -> None:
        self._files: deque[tuple[MappedFile | Path, float, bool]] = deque()
        self._lock = threading.Lock()
        self._deleting = threading.Lock()  # held while a file is being deleted, which takes long
        self._under_way: MappedFile | Path | None = None
        self._hurry = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._refused: MappedFile | Path | None = None

    @property
    def pending_bytes(self) -> int:
        """Disk space that is still to come back, apart from that of deleted topics' queues."""
        with self._lock:
            return sum(file.size for file, _, _ in self._files if isinstance(file, MappedFile))

    def remove(self, files: Iterable[MappedFile], *, pause: float = 0.0, sync: bool = False) -> None:
        """Delete files later, in this order; seconds of ``pause`` after each, and its directory synced if wanted."""
        with self._lock:
            self._files.extend((file, pause, sync) for file in files)
        self.retry()

    def remove_directories(self, directories: Iterable[Path]) -> None:
        """Delete directories that nobody uses, with what is in them, later."""
        with self._lock:
            self._files.extend((directory, 0.0, False) for directory in directories)
        self.retry()

    def retry(self) -> None:
        """Go on, if there is anything to delete."""
        with self._lock:
            if self._files and self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="store-remove", daemon=True)
                self._thread.start()

    def forget(self, directory: Path) -> None:
        """A directory gets another name, and may be made anew: never mind the files in it."""

        def is_inside(file: MappedFile | Path | None) -> bool:
            return isinstance(file, MappedFile) and directory in file.path.parents

        with self._lock:
            self._files = deque(entry for entry in self._files if not is_inside(entry[0]))
            wait = is_inside(self._under_way)
        if wait:  # a queue's file; one of the log may take half a second, in which others are to be served
            with self._deleting:
                pass

    def finish(self) -> None:
        """Delete what there is now, without pauses; afterwards it goes on as before."""
        self._hurry.set()
        self.retry()
        thread = self._thread
        if thread is not None:
            thread.join()
        self._hurry.clear()

    def stop(self) -> None:
        """Delete what there is, without pauses, for some seconds at most; what comes later stays."""
        self._hurry.set()
        self.retry()
        self._stopped = True
        thread = self._thread
        if thread is not None:
            thread.join(_PATIENCE)
            with self._lock:
                self._files.clear()
            thread.join()

    def _run(self) -> None:
        pause = 0.0
        while True:
            if pause:
                self._hurry.wait(pause)
            with self._deleting:
                with self._lock:
                    if not self._files:
                        self._thread = None
                        return
                    entry = self._files[0]
                    file, pause, sync = entry
                    self._under_way = file
                done = self._delete(file, sync)
                with self._lock:
                    self._under_way = None
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
                _log.warning("%s is past its time and cannot be deleted: %s", path, error)
            self._refused = file
            return False
        return True


def _delete_directory(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
