"""Files of one size that follow one another, each named by its first byte's offset: a log without an end.

Names have 20 decimal digits, so that sorting names sorts offsets. Loading refuses, by name, what cannot be a part of
such a row: a foreign name, a gap, a file of another size. A last file of zero length is a creation that a crash cut
short; it holds nothing, and is removed when the next file is made: loading changes nothing.

Thread-safety: one writer adds and removes files; readers in other threads see a whole list, because the list is
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
        """``derived``: a consume queue, one of many, whose content follows from the log."""
        self.directory = directory
        self.file_size = file_size
        self.setting = setting  # the name in broker.conf that the size comes from, for messages
        self.derived = derived
        self.files: list[MappedFile] = []
        self._leftover: Path | None = None

    def load(self) -> None:
        """Find the files on disk. Maps nothing."""
        try:
            with with_reserve(lambda: os.scandir(self.directory)) as entries:
                names = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            names = []
        files: list[MappedFile] = []
        for entry in names:
            path = entry.path
            if len(entry.name) != 20 or not entry.name.isdecimal() or not entry.is_file():
                raise StoreCorruptError(
                    f"{path} is not a file of a log: those have 20 digits for a name.",
                    remedy="Move it elsewhere; `rocket store check` tells what is then missing.",
                )
            length = entry.stat().st_size
            if length == 0 and entry is names[-1]:
                self._leftover = Path(path)
                continue
            if length != self.file_size:
                raise StoreCorruptError(
                    f"{path} has {length} bytes where {self.setting} says {self.file_size}.",
                    remedy=f"Set {self.setting} to what this directory was made with, or {self._mend}.",
                )
            offset = int(entry.name)
            if files and offset != files[-1].file_from_offset + self.file_size:
                raise StoreCorruptError(
                    f"{path} does not follow {files[-1].path.name}: {self.file_size} bytes a file leave a gap.",
                    remedy=f"Set {self.setting} to what this directory was made with, or {self._mend}.",
                )
            files.append(self._file(offset))
        self.files = files

    @property
    def _mend(self) -> str:
        if self.derived:
            queues = self.directory.parent.parent
            store = queues.parent if queues.name == "consumequeue" else "<storePathRootDir>"
            return (
                f"run `rocket store rebuild {store}` (with the broker's -c), which makes all queues anew from the log"
            )
        return "put the file back as it was; `rocket store check` tells what is whole"

    def _file(self, offset: int, *, create: bool = False) -> MappedFile:
        return MappedFile(
            self.directory / file_name(offset),
            self.file_size,
            offset,
            create=create,
            scattered=self.derived,
        )

    def create(self, offset: int, *, sync: bool = True) -> MappedFile:
        """Make the file that starts at ``offset``, without adding it. OSError when that cannot be done.

        ``sync``: put its name on the disk; a consume queue's is when that is flushed.
        """
        if self._leftover is not None:
            self._leftover.unlink(missing_ok=True)
            self._leftover = None
        if not self.directory.is_dir():
            if self.derived:
                self.directory.mkdir(parents=True, exist_ok=True)
            else:
                make_directory(self.directory)
        file = self._file(offset, create=True)
        if sync and not self.derived:
            sync_directory(self.directory)
        return file

    def add(self, file: MappedFile) -> None:
        self.files = [*self.files, file]

    def find(self, offset: int) -> MappedFile | None:
        """The file that an offset lies in."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].file_from_offset) // self.file_size
        return files[index] if 0 <= index < len(files) else None

    def between(self, start: int, stop: int) -> list[MappedFile]:
        """The files that have bytes from ``start`` on and before ``stop``."""
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
        """Where the last file ends, whatever is in it."""
        files = self.files
        return files[-1].file_from_offset + self.file_size if files else 0

    def truncate(self, offset: int) -> None:
        """Remove what lies at or beyond ``offset``: whole files, and the rest of the file that it lies in."""
        keep = [file for file in self.files if file.file_from_offset < offset]
        for file in reversed(self.files[len(keep) :]):  # a crash in between leaves no gap
            file.destroy()
        self.files = keep
        if keep and offset < keep[-1].file_from_offset + self.file_size:
            keep[-1].clear_from(offset - keep[-1].file_from_offset)

    def remove_before(self, offset: int) -> list[MappedFile]:
        """Take out the whole files that end at or below ``offset``, never the last; the caller destroys them.

        The list is replaced at once: who looks now does not find them, who has one can go on with it.
        """
        files = self.files
        count = sum(file.file_from_offset + self.file_size <= offset for file in files[:-1])
        self.files = files[count:]
        return files[:count]

    def close(self) -> None:
        for file in self.files:
            file.close()
