"""One client connection: a blocking socket, a lock for writers, and one thread at a time that reads.

Every request that expects an answer leaves a waiter in the session; exactly one of answer, time-out and loss of the
connection takes it out again and tells it. Large bodies go out with ``sendmsg`` beside their head and come in with
``recv_into`` straight into the bytes that the caller gets: neither is copied on the way.

**Who reads.** A daemon thread does, and wakes those whose answers come. When the last answer it had to wait for was a
synchronous caller's, it *parks* for a moment: it leaves the reading to the next such caller, which takes its answer
off the socket itself and saves two changes of thread. The rules that keep this right:

- only the holder of ``_reading`` touches the incoming side of the socket, and serves whatever comes, for everybody;
- whoever adds a waiter and does not read, and whoever stops reading while waiters are left, wakes a parked reader;
- a parked reader that sees no calls for ``PARK`` seconds goes back to reading, and so sees pushed requests and the end.

Thread-safety: ``send`` and the session's tables from any thread; waiters are told on the thread that reads (or on the
one that times out or closes), so what they do there must be short.
Corresponds to a Netty channel with its ResponseFutures.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from spark_rocket.errors import (
    ProtocolError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RocketError,
)
from spark_rocket.protocol.codes import ResponseCode
from spark_rocket.protocol.command import Buffer, RemotingCommand
from spark_rocket.protocol.frame import MAX_FRAME_LENGTH
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.session import Session

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 64 * 1024
BODY_APART = 16 * 1024  # a body above this is sent beside its head, not joined to it
PARK = 0.002  # seconds that a parked reader waits for the next synchronous call
SEND_SLICE = 0.25  # seconds after which a send that does not get on looks at its deadline

RequestHandler = Callable[[str, RemotingCommand], RemotingCommand | None]


class Waiter(Protocol):
    """Somebody who waits for an answer and is told once."""

    def complete(self, response: RemotingCommand) -> None: ...

    def fail(self, error: RemotingError) -> None: ...


class SyncWaiter:
    """The calling thread itself, asleep on a bare lock: the cheapest hand-over between two threads."""

    __slots__ = ("_error", "_lock", "_response")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._response: RemotingCommand | None = None
        self._error: RemotingError | None = None

    def complete(self, response: RemotingCommand) -> None:
        self._response = response
        self._lock.release()

    def fail(self, error: RemotingError) -> None:
        self._error = error
        self._lock.release()

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=max(0.0, seconds))

    @property
    def told(self) -> bool:
        return self._response is not None or self._error is not None

    def result(self) -> RemotingCommand:
        """After :meth:`wait` gave True."""
        if self._response is not None:
            return self._response
        assert self._error is not None
        raise self._error


class FutureWaiter:
    """A future, and what is to be given back when it is done."""

    __slots__ = ("_done", "future")

    def __init__(self, done: Callable[[], None]) -> None:
        self.future: Future[RemotingCommand] = Future()
        self.future.set_running_or_notify_cancel()  # the request is on its way: it cannot be cancelled
        self._done = done

    def complete(self, response: RemotingCommand) -> None:
        self._done()
        self.future.set_result(response)

    def fail(self, error: Exception) -> None:
        self._done()
        self.future.set_exception(error)


class Connection:
    """An open connection. ``lost`` is None while it can be used."""

    def __init__(
        self,
        address: str,
        connect_timeout: float,
        *,
        first_opaque: int = 1,
        max_frame_length: int = MAX_FRAME_LENGTH,
        request_handler: RequestHandler | None = None,
    ) -> None:
        self.address = address
        self.lost: RemotingConnectError | None = None
        self.session: Session[Waiter] = Session(max_frame_length, first_opaque)
        self._handler = request_handler
        self._writing = threading.Lock()
        self._socket = _connect(address, connect_timeout)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._reading = threading.Lock()
        self._reading_thread: int | None = None
        self._filling: tuple[memoryview, int] | None = None  # a large frame, and how much of it has come
        self._sync_last = False  # the last answer was a synchronous caller's
        self._parked = False
        self._unpark = threading.Lock()
        self._unpark.acquire()
        self._turns = 0  # times that a caller read for itself
        self._reader = threading.Thread(target=self._read, name=f"rocket-reader-{address}", daemon=True)
        self._reader.start()

    def is_reader(self) -> bool:
        """True on the thread that reads now, which must not wait for an answer that it alone could receive."""
        return threading.get_ident() == self._reading_thread

    # --- sending ----------------------------------------------------------------------------------------------

    def request(self, request: RemotingCommand, waiter: Waiter, deadline: float) -> int:
        """Number and send a request whose answer ``waiter`` expects; its number."""
        session = self.session
        opaque = request.opaque = session.next_opaque()
        session.expect(opaque, waiter)
        try:
            # The reader marks the connection lost before it drains the waiters: entered after that, ours would stay.
            if self.lost is not None:
                raise self._again(self.lost)
            self.send(request, deadline)
        except BaseException:
            if session.take(opaque) is None:
                return opaque  # the waiter has been told already, as the connection was lost
            raise
        return opaque

    def send(self, command: RemotingCommand, deadline: float) -> None:
        """Write one frame. A time-out in the middle of it closes the connection, since half a frame is garbage."""
        head: Buffer
        if len(command.body) > BODY_APART:
            head, body = command.encode_head(), command.body
        else:
            head, body = command.encode(), b""
        if not self._writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self._late(deadline)
        try:
            if self.lost is not None:
                raise self._again(self.lost)
            try:
                sent = self._socket.sendmsg((head, body)) if body else self._socket.send(head)
            except BlockingIOError:
                sent = 0
            if sent < len(head) + len(body):
                self._send_rest(head, body, sent, deadline)
        except OSError as error:
            self._shut_down()
            raise RemotingConnectError(f"The connection to {self.address} was lost: {error}.") from error
        finally:
            self._writing.release()

    def _send_rest(self, head: Buffer, body: Buffer, sent: int, deadline: float) -> None:
        pieces = [memoryview(head), memoryview(body)]
        left = len(head) + len(body)
        whole = left
        while True:
            left -= sent
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces.pop(0))
            if not pieces:
                return
            pieces[0] = pieces[0][sent:]
            if time.monotonic() >= deadline:
                if left < whole:
                    self._shut_down()
                raise self._late(deadline)
            try:
                sent = self._socket.sendmsg(pieces)
            except BlockingIOError:  # SEND_SLICE is over
                sent = 0

    def _late(self, deadline: float) -> RemotingTimeoutError:
        return RemotingTimeoutError(f"{self.address} did not take the request in time: it reads too slowly.")

    # --- receiving --------------------------------------------------------------------------------------------

    def wait(self, waiter: SyncWaiter, deadline: float) -> bool:
        """Wait for an answer until ``deadline``, reading it ourselves if nobody else reads."""
        if not self._reading.acquire(blocking=False):
            return waiter.wait(deadline - time.monotonic())
        self._reading_thread = threading.get_ident()
        self._turns += 1
        try:
            while not waiter.told:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                if self._readable.poll(min(left, 3600.0) * 1000) and not self._read_some():
                    break
        finally:
            self._stop_reading()
        return waiter.told

    def _stop_reading(self) -> None:
        self._reading_thread = None
        self._reading.release()
        # Looked at after the release: a caller that came too early to read has its waiter in by now.
        if len(self.session):
            self.wake_reader()

    def wake_reader(self) -> None:
        """Somebody waits and does not read."""
        if self._parked:
            self._parked = False
            try:
                self._unpark.release()
            except RuntimeError:  # two did so at once
                pass

    def _read(self) -> None:
        while True:
            with self._reading:
                self._reading_thread = self._reader.ident
                alive = self._read_some()
                self._reading_thread = None
            if not alive:
                return
            if self._sync_last and not len(self.session):
                self._park()

    def _park(self) -> None:
        turns = -1
        while turns != self._turns and self.lost is None:
            turns = self._turns
            self._parked = True
            # A waiter that came before the flag could be seen has not woken us.
            if len(self.session) and not self._reading.locked():
                break
            if self._unpark.acquire(timeout=PARK):
                break
        self._parked = False

    def _read_some(self) -> bool:
        """Receive once and serve what is whole; False at the end, when all who wait have been told. Holder only."""
        reason = "it was closed by the peer"
        try:
            if self._filling is None:
                data = self._socket.recv(RECEIVE_SIZE)
                if data:
                    for frame in self.session.receive(data):
                        self._dispatch(RemotingCommand.decode(frame))
                    large = self.session.detach(RECEIVE_SIZE)
                    if large is not None:
                        self._filling = memoryview(large[0]), large[1]
                    return True
            else:
                view, filled = self._filling
                count = self._socket.recv_into(view[filled:])
                if count:
                    filled += count
                    self._filling = (view, filled) if filled < len(view) else None
                    if self._filling is None:
                        self._dispatch(RemotingCommand.decode(view))
                    return True
        except ProtocolError as error:
            reason = f"what came is no frame: {error.message}"
            logger.warning("connection to %s closed: %s", self.address, error)
        except OSError as error:
            reason = str(error)
        except BaseException:  # a caller's Ctrl-C between the socket and the session: the stream cannot be followed
            self._end("a call was interrupted")
            raise
        self._end(reason)
        return False

    def _dispatch(self, command: RemotingCommand) -> None:
        if command.flag & 1:
            waiter = self.session.take(command.opaque)
            if waiter is not None:  # else its time-out was first
                self._sync_last = type(waiter) is SyncWaiter
                try:
                    waiter.complete(command)
                except KeyboardInterrupt:
                    raise
                except BaseException:  # a call-back's, even its SystemExit, is not for the others who wait here
                    logger.exception("a call-back for an answer of %s failed", self.address)
            return
        try:
            if self._handler is None:
                answer: RemotingCommand | None = RemotingCommand.response(
                    command,
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f"request code {command.code} is not supported",
                )
            else:
                answer = self._handler(self.address, command)
        except Exception as error:
            logger.exception("code %d from %s failed", command.code, self.address)
            answer = RemotingCommand.response(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if answer is not None and not command.flag & 2:
            try:
                self.send(answer, time.monotonic() + 3.0)
            except RocketError as error:
                logger.warning("the answer to code %d of %s was not sent: %s", command.code, self.address, error)

    # --- the end ----------------------------------------------------------------------------------------------

    def close(self, reason: str = "it was closed") -> None:
        """Close; whoever waits for an answer is told. The descriptor is closed by a reader, the last to use it."""
        if self.lost is None:
            self.lost = self._error(reason)
        self._shut_down()

    def join(self, timeout: float) -> None:
        if threading.get_ident() not in (self._reader.ident, self._reading_thread):
            self._reader.join(timeout)

    def abandon(self) -> None:
        """In a child process after a fork: close the copy of the descriptor and leave the connection to the parent."""
        self.lost = RemotingConnectError(f"The connection to {self.address} stayed with the parent process.")
        self._socket.close()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever reads sees the end
        except OSError:
            pass
        self.wake_reader()

    def _end(self, reason: str) -> None:
        if self.lost is None:
            self.lost = self._error(reason)
        for waiter in self.session.drain():
            try:
                waiter.fail(self._again(self.lost))
            except BaseException:  # everybody is told, and the descriptor closed
                logger.exception("a call-back for the lost connection to %s failed", self.address)
        with self._writing:  # nobody writes to a descriptor number that may be somebody else's by now
            self._socket.close()
        self.wake_reader()

    def _error(self, reason: str) -> RemotingConnectError:
        return RemotingConnectError(f"The connection to {self.address} was lost: {reason}.")

    @staticmethod
    def _again(error: RemotingConnectError) -> RemotingConnectError:
        """An error of its own for each thread that raises it: tracebacks are not shared."""
        return RemotingConnectError(error.message)


def _connect(address: str, timeout: float) -> socket.socket:
    host, port = parse_address(address)
    try:
        sock = socket.create_connection((host, port), timeout=max(0.001, timeout))
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
        raise RemotingConnectError(
            f"No connection to {address}: {error}.", remedy="Check the address and that a server runs there."
        ) from error
    try:
        if sock.getsockname() == sock.getpeername():
            # A free local port can be connected to itself while nobody listens on it.
            raise OSError("nobody listens there")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(None)
        slice_ = struct.pack("ll", int(SEND_SLICE), int(SEND_SLICE % 1 * 1_000_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, slice_)
    except OSError as error:
        sock.close()
        raise RemotingConnectError(
            f"No connection to {address}: {error}.", remedy="Check the address and that a server runs there."
        ) from error
    return sock
