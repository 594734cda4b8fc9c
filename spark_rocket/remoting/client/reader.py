"""Who reads a connection: a thread of its own, or a caller that waits for an answer.

After the answer of a waiting caller the thread *parks* for ``PARK_S``: the next such caller reads the socket itself
(:meth:`Reader.read_until`). It polls for ``SPIN_S`` before it sleeps while answers come quickly, because on virtual
machines waking a sleeping core takes as long as the answer. This way one connection has 9,200 to 12,400 synchronous
sends a second, and 4,400 to 6,600 if only the thread reads (2 cores, benchmark ``client.send.sync``). The rules that
keep it right:

- only the holder of the lock reads, and it serves whatever comes, for everybody;
- a request whose caller does not read, and a caller that stops reading while answers are expected, wake the thread;
- a parked thread that sees no such callers for ``PARK_S`` reads again, and so finds pushed requests and the end.

An interrupt (Ctrl-C) of a caller may leave the lock taken. The connection is lost then, and the thread, which waits for
the lock no longer than ``LOCK_TIMEOUT_S``, ends.

Thread-safety: all methods.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from spark_rocket.errors import RemotingConnectError
from spark_rocket.remoting.tls.socket import TlsSocket
from spark_rocket.system import cores

PARK_S = 0.02
SPIN_S = 150e-6
QUICK_S = 250e-6  # within which answers must come for the next one to be polled for
QUICK_ANSWERS = 8  # of them, one after another
LOCK_TIMEOUT_S = 2.0

_SEVERAL_CORES = cores() > 1


class Source(Protocol):
    """A connection, as its reader sees it."""

    lost: RemotingConnectError | None

    caller_reads: bool
    """The last answer was that of a caller that waits."""

    def read_some(self) -> bool:
        """Receive once and serve what is whole. False at the end, when all requests have failed."""

    def expects(self) -> bool:
        """Whether the thread has to read now."""

    def interrupted(self) -> None:
        """A caller was interrupted while it read: the stream cannot be followed any more."""

    def abandoned(self) -> None:
        """The lock was not given back by a caller that was interrupted: all requests fail."""


class Reader:
    """See the module."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._poll: Callable[[float], object] = lambda _: False
        self._parked = False
        self._unpark = threading.Lock()
        self._unpark.acquire()
        self._turns = 0  # times that a caller read
        self._quick_answers = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, sock: socket.socket | TlsSocket) -> None:
        """Read from now on."""
        self._poll = _poll_of(sock)
        self._thread.start()

    def is_reading(self) -> bool:
        """True on the thread that reads now."""
        return threading.get_ident() == self._holder

    def join(self, timeout: float) -> bool:
        """Whether the thread has ended."""
        if self._thread.ident not in (None, threading.get_ident()):
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def read_until(self, settled: Callable[[], bool], deadline: float) -> None:
        """Read on the calling thread, whose request this waits for, unless another thread reads."""
        locked = False
        try:
            if not self._lock.acquire(blocking=False):
                return
            locked = True
            self._holder = threading.get_ident()
            self._turns += 1
            begun = now = time.monotonic()
            until = begun + SPIN_S if self._quick_answers >= QUICK_ANSWERS and _SEVERAL_CORES else 0.0
            while now < deadline and not settled():
                is_readable = self._poll(0 if now < until else min(deadline - now, 3600.0) * 1000)
                if is_readable and not self._source.read_some():
                    break
                now = time.monotonic()
            self._quick_answers = self._quick_answers + 1 if now - begun < QUICK_S else 0
        except BaseException:
            self._source.interrupted()
            raise
        finally:
            if locked:
                self._holder = None
                self._lock.release()
                # After the release: a caller that came too early to read has its request in the table by now.
                if self._source.expects():
                    self.wake()

    def wake(self) -> None:
        """Have the thread read, if it is parked."""
        if self._parked:
            self._parked = False
            try:
                self._unpark.release()
            except RuntimeError:  # two did so at once
                pass

    def _run(self) -> None:
        source = self._source
        while True:
            if not self._lock.acquire(timeout=LOCK_TIMEOUT_S):
                if source.lost is not None:
                    source.abandoned()
                    return
                continue
            try:
                self._holder = self._thread.ident
                alive = source.read_some()
                self._holder = None
            except BaseException:  # a handler's SystemExit
                source.interrupted()
                source.abandoned()
                return
            finally:
                self._lock.release()
            if not alive:
                return
            if source.caller_reads and not source.expects():
                self._park()

    def _park(self) -> None:
        turns = -1
        while turns != self._turns and self._source.lost is None:
            turns = self._turns
            self._parked = True
            # A request that came before the flag could be seen has not woken this thread.
            if self._source.expects() and not self._lock.locked():
                break
            if self._unpark.acquire(timeout=PARK_S):
                break
        self._parked = False


def _poll_of(sock: socket.socket | TlsSocket) -> Callable[[float], object]:
    """Whether there is something to receive, within so many milliseconds."""
    if isinstance(sock, TlsSocket):
        return sock.poll
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return poll.poll
