"""An unbounded log as a sequence of files of equal size, each named by the offset of its first byte.

Names have 20 decimal digits, so that sorting names sorts offsets. Loading rejects invalid names, gaps and files of
another size; a read-only open (read_only.py) lists them instead. A last file of zero length comes from a crash during
its creation. It is empty and is deleted when the next file is created: loading changes nothing.

Thread-safety: one writer adds and removes files. Readers in other threads see a consistent list, because the list is
replaced, not changed. Corresponds to org.apache.rocketmq.store.MappedFileQueue.
"""

from __future__ import annotations

import os
from pathlib import Path

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.descriptors import make_directory, sync_directory, with_reserve
from spark_rocket.store.log.mapped_file import MappedFile, file_name


class MappedFileQueue:
    """The files of one directory in the order of their offsets."""

    __slots__ = ("_leftover", "derived", "directory", "file_size", "files", "setting")

    def __init__(self, directory: Path, file_size: int, *, setting: str, derived: bool = False) -> None:
        """``derived``: the content can be rebuilt from the log (a consume queue)."""
        self.directory = directory
        self.file_size = file_size
        self.setting = setting  # the size's name in broker.conf, for messages
        self.derived = derived
        self.files: list[MappedFile] = []
        self._leftover: Path | None = None

    def load(self) -> None:
        """Find the files on disk, without mapping them."""
        names = self._names()
        files: list[MappedFile] = []
        for entry in names:
            if len(entry.name) != 20 or not entry.name.isdecimal() or not entry.is_file():
                self._refuse(
                    entry.path,
                    "is not a log file: log files have names of 20 digits",
                    "Move it elsewhere; `rocket store check` then reports missing files.",
                )
                continue
            length, offset = entry.stat().st_size, int(entry.name)
            if length == 0 and entry is names[-1]:
                self._leftover = Path(entry.path)
                continue
            if length != self.file_size:
                what = f"has {length} bytes, but {self._expected} {self.file_size}"
                self._refuse(entry.path, what, self._resize, is_gap=length < self.file_size)
            if files and (offset - files[0].file_from_offset) % self.file_size:
                what = f"is not at a multiple of {self.file_size} bytes after {files[0].path.name}"
                self._refuse(entry.path, what, self._resize)
                continue
            if files and offset != files[-1].file_from_offset + self.file_size:
                what = f"does not follow {files[-1].path.name}: files of {self.file_size} bytes are missing"
                self._refuse(entry.path, what, self._resize, is_gap=True)
            if self._is_readable(entry.path):
                files.append(self._file(offset, min(length, self.file_size)))
        self.files = files

    @property
    def is_sound(self) -> bool:
        """Whether all files exist as they must; else ``load`` has raised an error."""
        return True

    def _names(self) -> list[os.DirEntry[str]]:
        try:
            with with_reserve(lambda: os.scandir(self.directory)) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []

    def _refuse(self, path: str, what: str, remedy: str, *, is_gap: bool = False) -> None:
        """``is_gap``: bytes of the log are missing."""
        raise StoreCorruptError(f"{path} {what}.", remedy=remedy)

    def _is_readable(self, path: str) -> bool:
        return True  # otherwise its first use is an OSError

    @property
    def _expected(self) -> str:
        return f"{self.setting} is"

    @property
    def _resize(self) -> str:
        return f"Set {self.setting} to the value this directory was created with, or {self._repair}."

    @property
    def _repair(self) -> str:
        """What to do about a damaged directory, for error messages."""
        if self.derived:
            queues = self.directory.parent.parent
            store = queues.parent if queues.name == "consumequeue" else "<storePathRootDir>"
            return f"run `rocket store rebuild {store}` (with the broker's -c), which rebuilds all queues from the log"
        return "restore the file from a copy; `rocket store check` reports which files are intact"

    def _file(self, offset: int, size: int, *, create: bool = False) -> MappedFile:
        return MappedFile(
            self.directory / file_name(offset),
            size,
            offset,
            create=create,
            scattered=self.derived,
        )

    def create(self, offset: int, *, sync: bool = True) -> MappedFile:
        """Create the file that starts at ``offset``, without adding it to the list. OSError.

        ``sync``: sync its name to disk. For a consume queue that happens when the queue is flushed.
        """
        if self._leftover is not None:
            self._leftover.unlink(missing_ok=True)
            self._leftover = None
        if not self.directory.is_dir():
            if self.derived:
                self.directory.mkdir(parents=True, exist_ok=True)
            else:
                make_directory(self.directory)
        file = self._file(offset, self.file_size, create=True)
        if sync and not self.derived:
            sync_directory(self.directory)
        return file

    def add(self, file: MappedFile) -> None:
        """Append a created file to the list."""
        self.files = [*self.files, file]

    def drop_last(self) -> None:
        """Delete the last file, which has no data."""
        self.files[-1].destroy()
        self.files = self.files[:-1]

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that contains an offset, or None."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].file_from_offset) // self.file_size
        return files[index] if 0 <= index < len(files) else None

    def between(self, start: int, stop: int) -> list[MappedFile]:
        """Return the files that overlap the range from ``start`` to before ``stop``."""
        files = self.files
        if not files or stop <= start:
            return []
        begin = files[0].file_from_offset
        return files[max((start - begin) // self.file_size, 0) : max(-(-(stop - begin) // self.file_size), 0)]

    @property
    def min_offset(self) -> int:
        files = self.files
        return files[0].file_from_offset if files else 0

    @property
    def end_offset(self) -> int:
        """End offset of the last file, regardless of its content."""
        files = self.files
        return files[-1].file_from_offset + self.file_size if files else 0

    def truncate(self, offset: int) -> None:
        """Remove everything from ``offset`` on: later files, and the rest of the file that contains it."""
        keep = [file for file in self.files if file.file_from_offset < offset]
        for file in reversed(self.files[len(keep) :]):  # a crash in between leaves no gap
            file.destroy()
        self.files = keep
        if keep and offset < keep[-1].file_from_offset + self.file_size:
            keep[-1].clear_from(offset - keep[-1].file_from_offset)

    def remove_before(self, offset: int) -> list[MappedFile]:
        """Remove and return the files that end at or below ``offset``, never the last; the caller destroys them.

        The list is replaced at once: new readers do not find the files, readers that have one can continue.
        """
        files = self.files
        count = sum(file.file_from_offset + self.file_size <= offset for file in files[:-1])
        self.files = files[count:]
        return files[:count]

    def close(self) -> None:
        for file in self.files:
            file.close()
