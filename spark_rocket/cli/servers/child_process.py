"""A ``rocket`` command in a process of its own, started by a server. It reports when it is up and ends with its parent.

Two pipes connect them. The child writes one line to the first (``--ready-fd``) when it is up. The child stops when the
second ends (``--lifeline-fd``): the parent holds the other end, and the system closes that end however the parent ends.

Each descriptor has one owner, a file object, which closes it once. The event loop's pipe transports are not used: that
of uvloop closes the descriptor in a later turn of the loop, though its owner has closed it before, and by then the
number may be that of a new connection or store file. Thread-safety: one event loop. ``testing.processes`` does the same
without a loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from io import FileIO

_LINE_LIMIT = 1 << 20  # bytes of a line on the child's stderr
_PIECE = 4096


class ChildProcess:
    """``process`` is asyncio's, with ``stderr`` to read; its stdout goes nowhere."""

    def __init__(self, process: asyncio.subprocess.Process, ready: FileIO, lifeline: FileIO) -> None:
        self.process = process
        self._ready = ready
        self._lifeline = lifeline

    @classmethod
    async def start(cls, *arguments: str, environment: Mapping[str, str] | None = None) -> ChildProcess:
        """Start ``rocket ARGUMENTS``, with these variables beside this process's own. OSError when it cannot start."""
        with ExitStack() as kept, ExitStack() as given:  # the ends that stay here, and those that the child has
            ready, ready_write = _pipe(kept, given)
            lifeline_read, lifeline = _pipe(given, kept)
            command = [sys.executable, "-m", "spark_rocket.cli", *arguments]
            command += ["--ready-fd", str(ready_write.fileno()), "--lifeline-fd", str(lifeline_read.fileno())]
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **(environment or {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(ready_write.fileno(), lifeline_read.fileno()),
                start_new_session=True,  # Ctrl-C in the terminal is for this process, which then stops the child
                limit=_LINE_LIMIT,
            )
            kept.pop_all()
            return cls(process, ready, lifeline)

    async def ready_line(self) -> bytes:
        """Wait for the line that the child writes when it is up; empty if it ended before that. Call it once."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        line = b""
        with self._ready as pipe:
            os.set_blocking(pipe.fileno(), False)
            loop.add_reader(pipe.fileno(), readable.set)
            try:
                while not line.endswith(b"\n"):
                    await readable.wait()
                    readable.clear()
                    piece = pipe.read(_PIECE)
                    if piece == b"":
                        return b""
                    line += piece or b""
            finally:
                loop.remove_reader(pipe.fileno())
        return line

    def release(self) -> None:
        """Close the lifeline, which tells the child to stop, and what is still open of the other pipe."""
        self._ready.close()
        self._lifeline.close()


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[FileIO, FileIO]:
    """A pipe whose ends these stacks close."""
    reading, writing = os.pipe()
    return (
        reader.enter_context(os.fdopen(reading, "rb", buffering=0)),
        writer.enter_context(os.fdopen(writing, "wb", buffering=0)),
    )
