"""The reader of a connection: its own thread, or a caller that waits for a response.

After the response of a waiting caller the thread *parks* for ``PARK_S``: the next such caller reads the socket itself
(:meth:`Reader.read_until`). While responses are fast, it polls for ``SPIN_S`` before it sleeps, because on virtual
machines waking a sleeping core takes as long as the response. With this, one connection reaches 9,200 to 12,400
synchronous sends per second, and 4,400 to 6,600 if only the thread reads (2 cores, benchmark ``client.send.sync``).
Rules for correctness:

- only the owner of the lock reads, and it processes all frames, for all callers;
- a request whose caller does not read, and a caller that stops reading while responses are expected, wake the thread;
- a parked thread without such callers for ``PARK_S`` reads again, and so receives pushed requests and the end.

An interrupt (Ctrl-C) of a caller may leave the lock acquired. The connection is then lost, and the thread, which waits
for the lock no longer than ``LOCK_TIMEOUT_S``, ends.

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
FAST_S = 250e-6  # a faster response counts for polling
FAST_RESPONSES = 8  # consecutive ones before polling
LOCK_TIMEOUT_S = 2.0

_SEVERAL_CORES = cores() > 1


class Source(Protocol):
    """A connection, as used by its reader."""

    lost: RemotingConnectError | None

    caller_reads: bool
    """The last response was that of a waiting caller."""

    def read_some(self) -> bool:
        """Receive once and process complete frames. False at the end, when all requests have failed."""

    def expects(self) -> bool:
        """Whether the thread must read now."""

    def interrupted(self) -> None:
        """Handle an interrupt of a reading caller: the position in the stream is unknown."""

    def abandoned(self) -> None:
        """Handle a lock that an interrupted caller did not release: all requests fail."""


class Reader:
    """Reads a connection on its own thread or on waiting callers' threads."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._poll: Callable[[float], object] = lambda _: False
        self._parked = False
        self._unpark = threading.Lock()
        self._unpark.acquire()
        self._turns = 0  # number of reads by callers
        self._fast_responses = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, sock: socket.socket | TlsSocket) -> None:
        """Start reading."""
        self._poll = _poll_of(sock)
        self._thread.start()

    def is_reading(self) -> bool:
        """True on the thread that is reading."""
        return threading.get_ident() == self._holder

    def join(self, timeout: float) -> bool:
        """Wait for the thread; return whether it has ended."""
        if self._thread.ident not in (None, threading.get_ident()):
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def read_until(self, settled: Callable[[], bool], deadline: float) -> None:
        """Read on the calling thread, which waits for its response, unless another thread reads."""
        locked = False
        try:
            if not self._lock.acquire(blocking=False):
                return
            locked = True
            self._holder = threading.get_ident()
            self._turns += 1
            started = now = time.monotonic()
            until = started + SPIN_S if self._fast_responses >= FAST_RESPONSES and _SEVERAL_CORES else 0.0
            while now < deadline and not settled():
                is_readable = self._poll(0 if now < until else min(deadline - now, 3600.0) * 1000)
                if is_readable and not self._source.read_some():
                    break
                now = time.monotonic()
            self._fast_responses = self._fast_responses + 1 if now - started < FAST_S else 0
        except BaseException:
            self._source.interrupted()
            raise
        finally:
            if locked:
                self._holder = None
                self._lock.release()
                # After the release: a caller that could not read yet has added its request to the table by now.
                if self._source.expects():
                    self.wake()

    def wake(self) -> None:
        """Make the thread read, if it is parked."""
        if self._parked:
            self._parked = False
            try:
                self._unpark.release()
            except RuntimeError:  # two threads released it
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
            except BaseException:  # including SystemExit of a handler
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
            # A request sent before the flag was visible has not woken this thread.
            if self._source.expects() and not self._lock.locked():
                break
            if self._unpark.acquire(timeout=PARK_S):
                break
        self._parked = False


def _poll_of(sock: socket.socket | TlsSocket) -> Callable[[float], object]:
    """Return a function that waits up to so many milliseconds for data and returns whether there is some."""
    if isinstance(sock, TlsSocket):
        return sock.poll
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return poll.poll
