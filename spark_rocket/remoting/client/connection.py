"""One client connection: a blocking socket, its reader, and the table of its requests in flight.

A connection can be used immediately. A separate thread opens it; until then requests are queued, then sent in order, or
fail with it. From then on another thread reads and settles promises by their number (``opaque``). Requests are
written on their callers' threads. Each request leaves the table exactly once: with its response, at its deadline, or
when the connection is lost. Large bodies are sent separately from their head (``sendmsg``) and received directly into
the caller's buffer: neither is copied.

**Batching.** Requests marked for it are written immediately while fewer than ``MAX_UNBATCHED_REQUESTS`` of them are
pending. Above that the peer is busy: their frames are held until the next responses arrive, until ``FLUSH_SIZE`` bytes
are held, or for ``HOLD_S`` seconds. So a producer that sends faster than its broker responds makes one system call for
dozens of requests. Every write starts with the held frames, so the requests of one thread keep their order.

**Interrupts** (Ctrl-C) may leave a partial frame on the wire, or ``_writing`` locked. So they end the connection: all
requests fail, the next one opens a new connection, and the thread that closes the descriptor waits for the lock no
longer than ``CLOSE_TIMEOUT_S``.

Thread-safety: all methods. Promises are settled on the thread that reads, expires or closes: callbacks must be short.
Corresponds to a Netty channel with its ResponseFutures.
"""

from __future__ import annotations

import copy
import itertools
import logging
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from spark_rocket.errors import ProtocolError, RemotingConnectError, RemotingError, RemotingTimeoutError, RocketError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import Buffer, RemotingCommand
from spark_rocket.protocol.wire.frame import FrameSplitter
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.client.deadlines import DeadlineTable, Timer
from spark_rocket.remoting.client.promise import Pending, Promise, no_answer, no_connection
from spark_rocket.remoting.client.reader import Reader
from spark_rocket.remoting.session import MAX_OPAQUE
from spark_rocket.remoting.tls.contexts import ClientTls
from spark_rocket.remoting.tls.socket import TlsSocket, shake_hands

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 64 * 1024
SEPARATE_BODY_BYTES = 16 * 1024  # bytes; a larger body is sent separately from its head
SEND_SLICE_S = 0.25  # how often a blocked send checks its deadline
CLOSE_TIMEOUT_S = 2.0
SLOW_CONNECT_S = 0.5
MAX_UNBATCHED_REQUESTS = 16
FLUSH_SIZE = 32 * 1024
HOLD_S = 0.01

INTERRUPTED = "a call was interrupted"

RequestHandler = Callable[[str, RemotingCommand], RemotingCommand | None]
Pieces = tuple[Buffer, ...]


class Connection:
    """One connection to a server. ``lost`` is None while the connection can be used."""

    def __init__(
        self,
        address: str,
        connect_timeout: float,
        timer: Timer,
        *,
        max_frame_length: int,
        request_handler: RequestHandler | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.address = address
        self.lost: RemotingConnectError | None = None
        self.avoid_until = 0.0
        """Until when the failure of a slow connection attempt is cached."""
        self.opened: Promise[None] = Promise()
        self._requests: DeadlineTable[int, Pending] = DeadlineTable(timer, self._expired)
        self._batched: set[int] = set()  # the numbers of pending requests that may be held
        self._numbers = itertools.count(1)
        self._timer = timer
        self._handler = request_handler
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._splitter = FrameSplitter(max_frame_length)
        self._socket: socket.socket | TlsSocket | None = None
        self._ready = False  # connected, and the queued requests are written
        self._writing = threading.Lock()
        self._waiting: list[tuple[Pending, Pieces]] = []  # queued until the connection is open
        self._held: deque[Buffer] = deque()
        self._held_size = 0
        self._flush_due = False
        self._filling: tuple[memoryview, int] | None = None  # a large frame, and the number of bytes received
        self.caller_reads = False
        self._reader = Reader(self, f"rocket-reader-{address}")
        try:
            threading.Thread(target=self._open, name=f"rocket-connect-{address}", daemon=True).start()
        except RuntimeError as error:  # too many threads
            self._fail_all(RemotingConnectError(f"No connection to {address}: {error}.", remedy="Use fewer threads."))

    def is_open(self) -> bool:
        # Not _ready: the first response can arrive before the connecting thread has set it.
        return self._socket is not None and self.lost is None

    def is_reader(self) -> bool:
        """True on the thread that reads, which must not wait for responses."""
        return self._reader.is_reading()

    def wait_open(self, timeout: float) -> None:
        """Wait until the connection is open; RemotingConnectError on timeout."""
        try:
            self.opened.result(max(0.0, timeout))
        except TimeoutError:
            raise no_connection(self.address, timeout) from None
        except RemotingConnectError as error:
            raise copy.copy(error) from error  # a copy per thread: tracebacks are not shared

    # --- opening ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        started = time.monotonic()
        try:
            sock = _connect(self.address, self._connect_timeout, self._tls)
            with self._writing:
                self._socket = sock  # before checking lost: close() does both in the opposite order
                if self.lost is not None:
                    raise copy.copy(self.lost)
                self._reader.start(sock)
                waiting, self._waiting = self._waiting, []
                for request, pieces in waiting:
                    if self._connected(request):
                        self._write_waiting(request, pieces)
                self._ready = True  # set last, or later requests could be written before these
            self.opened.resolve(None)
        except BaseException as error:
            if not isinstance(error, RemotingConnectError):
                error = RemotingConnectError(f"No connection to {self.address}: {error}.")
            seconds = time.monotonic() - started
            if seconds >= SLOW_CONNECT_S and isinstance(error.__cause__, TimeoutError):
                self.avoid_until = time.monotonic() + seconds
            if self._socket is not None:
                self._socket.close()
            self._fail_all(error)

    def _connected(self, request: Pending) -> bool:
        """Set the deadline of a request after connecting; False if it has already failed."""
        if self._requests.take(request.opaque) is None:
            return False
        self._requests.put(request.opaque, request, request.deadline)
        return True

    def _write_waiting(self, request: Pending, pieces: Pieces) -> None:
        try:
            self._write_locked(pieces, request.deadline)
        except RemotingError as error:
            if self._take(request.opaque) is not None:
                request.fail(error)

    # --- sending ----------------------------------------------------------------------------------------------

    def submit(self, command: RemotingCommand, request: Pending) -> None:
        """Send a request. RemotingError if it will not be sent; otherwise its promise gets the outcome."""
        opaque = request.opaque = command.opaque = next(self._numbers) & MAX_OPAQUE
        request.carrier = self
        pieces = _pieces(command)
        connecting = not self._ready
        self._requests.put(opaque, request, request.connect_by if connecting else request.deadline)
        if request.batch:
            self._batched.add(opaque)
        try:
            # Lost is set before the table is drained: a later entry would never be removed.
            if self.lost is not None:
                raise copy.copy(self.lost)
            if connecting and (self._wait(request, pieces) or not self._connected(request)):
                return
            if request.batch and len(pieces) == 1 and (self._held or len(self._batched) > MAX_UNBATCHED_REQUESTS):
                if self._hold(pieces[0]):
                    self._reader.wake()
                    return
                pieces = ()
            self._write(pieces, request.deadline)
            if not request.is_waited:
                self._reader.wake()
        except RemotingError:
            if self._take(opaque) is not None:  # otherwise its promise has been settled
                raise
        except BaseException:
            self._take(opaque)
            raise

    def send(self, command: RemotingCommand, deadline: float) -> None:
        """Write a frame without a response. It counts as written when the kernel has it."""
        if not self._ready:
            self.wait_open(deadline - time.monotonic())
        command.opaque = command.opaque if command.is_response else next(self._numbers) & MAX_OPAQUE
        self._write(_pieces(command), deadline)

    def expire(self, request: Pending) -> None:
        """Fail a request that has no response yet."""
        if self._take(request.opaque) is not None:
            self._expired(request)

    def _take(self, opaque: int) -> Pending | None:
        request = self._requests.take(opaque)
        if request is not None and request.batch:
            self._batched.discard(opaque)
        return request

    def _expired(self, request: Pending) -> None:
        self._batched.discard(request.opaque)
        if not self._ready:
            request.fail(no_connection(self.address, request.timeout - (request.deadline - request.connect_by)))
        else:
            request.fail(no_answer(self.address, request.code, request.timeout))

    def _wait(self, request: Pending, pieces: Pieces) -> bool:
        """Queue a request until the connection is open; False if it already is."""
        with self._writing:
            if self._ready:
                return False
            if self.lost is not None:
                raise copy.copy(self.lost)
            self._waiting = [entry for entry in self._waiting if entry[0].opaque in self._requests]
            self._waiting.append((request, pieces))
            return True

    def _write(self, pieces: Pieces, deadline: float) -> None:
        writing = self._writing
        try:
            if not writing.acquire(blocking=False) and not writing.acquire(
                timeout=max(0.0, deadline - time.monotonic())
            ):
                raise self._too_slow()
            try:
                self._write_locked(pieces, deadline)
            finally:
                writing.release()
        except RocketError:
            raise
        except BaseException:
            self.interrupted()
            raise

    def _write_locked(self, pieces: Pieces, deadline: float) -> None:
        """Write held frames and then ``pieces``. A timeout within a frame ends the connection."""
        sock = self._socket
        assert sock is not None
        if self.lost is not None:
            raise copy.copy(self.lost)
        if self._held:
            pieces = (self._take_held(), *pieces)
            started = True  # held frames belong to other requests
        else:
            started = False
        try:
            rest: list[Buffer] = list(pieces)
            while rest:
                try:
                    sent = sock.send(rest[0]) if len(rest) == 1 else sock.sendmsg(rest)
                except BlockingIOError:  # SEND_SLICE_S has passed
                    sent = 0
                started = started or sent > 0
                while rest and sent >= len(rest[0]):
                    sent -= len(rest.pop(0))
                if rest:
                    rest[0] = memoryview(rest[0])[sent:]
                    if time.monotonic() >= deadline:
                        if started:
                            self._shut_down("timeout within a request")
                        raise self._too_slow()
        except OSError as error:
            self._shut_down(str(error))
            raise RemotingConnectError(f"The connection to {self.address} was lost: {error}.") from error

    def _too_slow(self) -> RemotingTimeoutError:
        return RemotingTimeoutError(f"{self.address} did not accept the request in time: it reads too slowly.")

    # --- batching ---------------------------------------------------------------------------------------------

    def _hold(self, frame: Buffer) -> bool:
        """Hold a frame; False if the caller should write the held frames now."""
        held = self._held
        held.append(frame)
        self._held_size += len(frame)
        # After the append: the reader removes the number of a completed request before it checks for held frames.
        if len(self._batched) - len(held) < MAX_UNBATCHED_REQUESTS or self._held_size >= FLUSH_SIZE:
            return False
        if not self._flush_due:
            self._flush_later()
        return True

    def _take_held(self) -> bytes:
        self._held_size = 0
        return b"".join([self._held.popleft() for _ in range(len(self._held))])

    def _flush(self) -> None:
        """Write held frames, as far as the kernel accepts them without blocking."""
        if not self._held:
            return
        sock = self._socket
        if sock is not None and self._writing.acquire(blocking=False):  # else its owner or the timer writes
            try:
                data = self._take_held()
                sent = sock.send(data, socket.MSG_DONTWAIT) if self.lost is None else len(data)
                if sent < len(data):
                    self._held.appendleft(memoryview(data)[sent:])
            except BlockingIOError:
                self._held.appendleft(data)
            except OSError as error:
                self._shut_down(str(error))
            finally:
                self._writing.release()
        if self._held and not self._flush_due:
            self._flush_later()

    def _flush_later(self) -> None:
        def flush() -> None:
            self._flush_due = False
            self._flush()

        self._flush_due = True
        self._timer.call_at(time.monotonic() + HOLD_S, flush)

    # --- receiving --------------------------------------------------------------------------------------------

    def read_until(self, settled: Callable[[], bool], deadline: float) -> None:
        """Read on the calling thread, which waits for its response, unless another thread reads."""
        if self._ready:
            self._reader.read_until(settled, deadline)

    def expects(self) -> bool:
        """Whether the reader thread must read now."""
        return len(self._requests) > 0 or len(self._held) > 0 or self.lost is not None

    def interrupted(self) -> None:
        """Handle an interrupt of a caller that wrote or read."""
        self.close(INTERRUPTED)
        self._fail_all(self._error(INTERRUPTED))

    def abandoned(self) -> None:
        """Handle that no thread reads any more."""
        self._end(INTERRUPTED)

    def read_some(self) -> bool:
        """Receive once and process complete frames. False at the end. Only with the reader lock held."""
        reason = "closed by the peer"
        try:
            if self._receive():
                if self._held:
                    self._flush()
                return True
        except ProtocolError as error:
            reason = f"invalid frame: {error.message.removesuffix('.')}"
            logger.warning("closed connection to %s: invalid frame: %s", self.address, error)
        except OSError as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            logger.exception("reader of %s failed", self.address)
        self._end(reason)
        return False

    def _receive(self) -> bool:
        """Receive once and process complete frames; False at the end."""
        sock = self._socket
        assert sock is not None
        try:
            if self._filling is not None:
                view, filled = self._filling
                count = sock.recv_into(view[filled:])
                filled += count
                self._filling = (view, filled) if filled < len(view) else None
                if self._filling is None:
                    self._dispatch(RemotingCommand.decode(view))
                return count > 0
            data = sock.recv(RECEIVE_SIZE)
        except BlockingIOError:  # a TLS record is incomplete
            return True
        for frame in self._splitter.feed(data):
            self._dispatch(RemotingCommand.decode(frame))
        self._filling = self._splitter.detach(RECEIVE_SIZE)
        return len(data) > 0

    def _dispatch(self, command: RemotingCommand) -> None:
        if not command.flag & 1:
            self._serve(command)
            return
        request = self._take(command.opaque)
        if request is not None:  # otherwise its deadline has passed
            self.caller_reads = request.is_waited
            try:
                request.answer(command)
            except Exception as error:
                logger.exception("callback of a response of %s failed", self.address)
                request.fail(error)

    def _serve(self, command: RemotingCommand) -> None:
        try:
            if self._handler is None:
                remark = f" request type {command.code} not supported"
                answer: RemotingCommand | None
                answer = RemotingCommand.response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            else:
                answer = self._handler(self.address, command)
        except Exception as error:
            logger.exception("request code %d of %s failed", command.code, self.address)
            answer = RemotingCommand.response(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if answer is not None and not command.is_oneway:
            try:
                self.send(answer, time.monotonic() + 3.0)
            except RocketError as error:
                logger.warning("response to code %d of %s not sent: %s", command.code, self.address, error)

    # --- the end ----------------------------------------------------------------------------------------------

    def close(self, reason: str = "closed by this client") -> None:
        """End the connection. Its requests fail; the reader, the last user of the descriptor, closes it."""
        self._shut_down(reason)
        if self._socket is None:  # still connecting
            self._fail_all(RemotingConnectError(f"The connection to {self.address} was closed before it was open."))

    def join(self, timeout: float) -> bool:
        """Wait for the reader thread; return whether it has ended."""
        return self._reader.join(timeout)

    def abandon(self) -> None:
        """In a forked child: close the copy of the descriptor and leave the connection to the parent."""
        self.lost = RemotingConnectError(f"The connection to {self.address} belongs to the parent process.")
        if self._socket is not None:
            self._socket.close()

    def _shut_down(self, reason: str) -> None:
        if self.lost is None:
            self.lost = self._error(reason)
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)  # the reader gets the end of the stream
            except OSError:
                pass
        self._reader.wake()

    def _end(self, reason: str) -> None:
        self._fail_all(self._error(reason))
        sock = self._socket
        assert sock is not None
        # With the lock held, no thread writes to a descriptor number that may be reused.
        locked = self._writing.acquire(timeout=CLOSE_TIMEOUT_S)
        try:
            sock.close()
        finally:
            if locked:
                self._writing.release()

    def _fail_all(self, error: RemotingConnectError) -> None:
        if self.lost is None:
            self.lost = error
        self._waiting = []
        self._batched.clear()
        self.opened.fail(copy.copy(self.lost))
        for request in self._requests.drain():
            request.fail(copy.copy(self.lost))

    def _error(self, reason: str) -> RemotingConnectError:
        return RemotingConnectError(f"The connection to {self.address} was lost: {reason}.")


def _pieces(command: RemotingCommand) -> Pieces:
    if len(command.body) > SEPARATE_BODY_BYTES:
        return command.encode_head(), command.body
    return (command.encode(),)


def _connect(address: str, timeout: float, tls: ClientTls | None) -> socket.socket | TlsSocket:
    deadline = time.monotonic() + timeout
    host, port = parse_address(address)
    remedy = "Check the address and that the server is running."
    try:
        sock = socket.create_connection((host, port), timeout=max(0.001, timeout))
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        raise RemotingConnectError(f"No connection to {address}: {error}.", remedy=remedy) from error
    try:
        if sock.getsockname() == sock.getpeername():
            # A connection to a free local port may connect to itself.
            raise OSError("no server listens on this port")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secured = None if tls is None else shake_hands(sock, tls, address, host, deadline)
        sock.settimeout(None)
        slice_ = struct.pack("ll", int(SEND_SLICE_S), int(SEND_SLICE_S % 1 * 1_000_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, slice_)
    except OSError as error:
        sock.close()
        raise RemotingConnectError(f"No connection to {address}: {error}.", remedy=remedy) from error
    except BaseException:  # a TLS error, or unreadable TLS files
        sock.close()
        raise
    return secured or sock
