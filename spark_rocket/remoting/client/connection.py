"""One client connection: a blocking socket, a lock for writers, and one thread at a time that reads.

Every request that expects an answer leaves a waiter in the session; exactly one of answer, time-out and loss of the
connection takes it out again and tells it. Large bodies go out with ``sendmsg`` beside their head and come in with
``recv_into`` straight into the bytes that the caller gets: neither is copied on the way.

**Who reads.** A daemon thread does, and wakes those whose answers come. When the last answer it had to wait for was a
synchronous caller's, it *parks* for a moment: it leaves the reading to the next such caller, which takes its answer
off the socket itself and saves two changes of thread. The rules that keep this right:

- only the holder of ``_reading`` touches the incoming side of the socket, and serves whatever comes, for everybody;
- whoever reads writes what asynchronous requests have left in the outbox (``outbox``) when it has served what came;
- whoever adds a waiter and does not read, and whoever stops reading while waiters are left, wakes a parked reader;
- a caller that reads does not sleep at once if the last answers came quickly (``SPIN``): on virtual machines waking its
  core takes as long as the answer, and a process that has slept runs the slower for it (twice as many calls a second).
  Where others want the core, answers are late, and it sleeps as usual;
- a parked reader that sees no calls for ``PARK`` seconds goes back to reading, and so sees pushed requests and the end.

**Interrupts** (Ctrl-C, a signal handler that raises) may leave ``_reading`` or ``writing`` taken for ever, as they can
come between taking a lock and looking after it. Whoever was interrupted gives the connection up (``break_off``): all
who wait are told at once, the next call makes another connection, and the daemon thread that closes the descriptor
waits for locks no longer than ``LEFT`` seconds.

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

from spark_rocket.errors import (
    ProtocolError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RocketError,
)
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import Buffer, RemotingCommand
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.client.timer import DeadlineTimer
from spark_rocket.remoting.client.waiters import SyncWaiter, Waiter
from spark_rocket.remoting.server.outbox import Outbox
from spark_rocket.remoting.session import Session
from spark_rocket.remoting.tls.contexts import ClientTls
from spark_rocket.remoting.tls.socket import TlsSocket, shake_hands
from spark_rocket.system import cores

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 64 * 1024
BODY_APART = 16 * 1024  # a body above this is sent beside its head, not joined to it
PARK = 0.02  # seconds that a parked reader waits for the next synchronous call
SPIN = 150e-6  # seconds that a caller looks for its answer again and again
QUICK = 250e-6  # seconds within which answers must come for the next to be looked for so
QUICK_ANSWERS = 8  # how many of them, one after the other
LEFT = 2.0  # seconds that a lost connection's locks are waited for
SEND_SLICE = 0.25  # seconds after which a send that does not get on looks at its deadline

INTERRUPTED = "a call was interrupted"

_several_cores = cores() > 1

RequestHandler = Callable[[str, RemotingCommand], RemotingCommand | None]


class Connection:
    """An open connection. ``lost`` is None while it can be used."""

    def __init__(
        self,
        address: str,
        connect_timeout: float,
        timer: DeadlineTimer,
        *,
        first_opaque: int = 1,
        max_frame_length: int = MAX_FRAME_LENGTH,
        request_handler: RequestHandler | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.address = address
        self.lost: RemotingConnectError | None = None
        self.session: Session[Waiter] = Session(max_frame_length, first_opaque)
        self._handler = request_handler
        self._socket = _connect(address, connect_timeout, tls)
        self._outbox = Outbox(address, self._write_now, timer)
        self._poll = _poll_of(self._socket)
        self._reading = threading.Lock()
        self._reading_thread: int | None = None
        self._filling: tuple[memoryview, int] | None = None  # a large frame, and how much of it has come
        self._sync_last = False  # the last answer was a synchronous caller's
        self._parked = False
        self._unpark = threading.Lock()
        self._unpark.acquire()
        self._turns = 0  # times that a caller read for itself
        self._quick = 0  # how many of them one after the other had their answers quickly
        self._reader = threading.Thread(target=self._read, name=f"rocket-reader-{address}", daemon=True)
        try:
            self._reader.start()
        except RuntimeError as error:  # there are too many threads
            self._socket.close()
            raise RemotingConnectError(f"No connection to {address}: {error}.", remedy="Use fewer threads.") from error

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
        except RemotingError:
            if session.take(opaque) is None:
                return opaque  # the waiter has been told already, as the connection was lost
            raise
        except BaseException:  # the caller's mistake, or his Ctrl-C
            session.take(opaque)
            raise
        return opaque

    def post(self, request: RemotingCommand, waiter: Waiter, deadline: float, timeout: float) -> None:
        """As ``request``, for somebody who does not wait: written soon, together with others if there are many."""
        opaque = request.opaque = self.session.next_opaque()
        outbox = self._outbox
        outbox.expect(opaque, waiter, deadline, timeout, request.code)
        try:
            if self.lost is not None:
                raise self._again(self.lost)
            if len(request.body) > BODY_APART:
                self.send(request, deadline)
            elif not outbox.hold(request.encode()):
                self._write((), deadline)
        except RemotingError:
            if outbox.take(opaque) is not None:
                raise
        except BaseException:
            outbox.take(opaque)
            raise
        if self._parked:
            self.wake_reader()

    def send(self, command: RemotingCommand, deadline: float) -> None:
        """Write one frame. A time-out in the middle of it closes the connection, since half a frame is garbage."""
        if len(command.body) > BODY_APART:
            self._write((command.encode_head(), command.body), deadline)
        else:
            self._write((command.encode(),), deadline)

    def _write(self, pieces: tuple[Buffer, ...], deadline: float) -> None:
        outbox = self._outbox
        writing = outbox.writing
        if not writing.acquire(blocking=False) and not writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self._late()
        try:
            if self.lost is not None:
                raise self._again(self.lost)
            held = len(outbox.held) > 0
            if held:
                pieces = (outbox.take_held(), *pieces)
            elif not pieces:
                return  # somebody else has written it meanwhile
            try:
                sent = self._socket.send(pieces[0]) if len(pieces) == 1 else self._socket.sendmsg(pieces)
            except BlockingIOError:  # SEND_SLICE is over
                sent = 0
            if sent < sum(map(len, pieces)):
                self._send_rest(pieces, sent, held, deadline)
        except OSError as error:
            self._shut_down(str(error))
            raise RemotingConnectError(f"The connection to {self.address} was lost: {error}.") from error
        except RemotingError:
            raise
        except BaseException:  # a caller's Ctrl-C: nobody knows how much was written
            self._shut_down(INTERRUPTED)
            raise
        finally:
            writing.release()

    def _send_rest(self, pieces: tuple[Buffer, ...], sent: int, held: bool, deadline: float) -> None:
        rest = [memoryview(piece) for piece in pieces]
        begun = held or sent > 0  # others' requests are given up too
        while True:
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if not rest:
                return
            rest[0] = rest[0][sent:]
            if time.monotonic() >= deadline:
                if begun:
                    self._shut_down("it did not take all of a request in time")
                raise self._late()
            try:
                sent = self._socket.sendmsg(rest)
                begun = begun or sent > 0
            except BlockingIOError:
                sent = 0

    def _write_now(self, data: Buffer) -> int:
        """For the outbox, which holds the lock: as much as the kernel takes at once."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._shut_down(str(error))  # whoever reads sees the end and tells all who wait
            return len(data)

    def _late(self) -> RemotingTimeoutError:
        return RemotingTimeoutError(f"{self.address} did not take the request in time: it reads too slowly.")

    # --- receiving --------------------------------------------------------------------------------------------

    def wait(self, waiter: SyncWaiter, deadline: float) -> bool:
        """Wait for an answer until ``deadline``, reading it ourselves if nobody else reads."""
        if not self._reading.acquire(blocking=False):
            return waiter.wait(deadline - time.monotonic())
        self._reading_thread = threading.get_ident()
        self._turns += 1
        clock, poll = time.monotonic, self._poll
        begun = now = clock()
        until = begun + SPIN if self._quick >= QUICK_ANSWERS and _several_cores else 0.0
        try:
            while not waiter.told:
                if now >= deadline:
                    break
                if poll(0 if now < until else min(deadline - now, 3600.0) * 1000) and not self._read_some():
                    break
                now = clock()
        finally:
            self._quick = self._quick + 1 if now - begun < QUICK else 0
            self._stop_reading()
        return waiter.told

    def _stop_reading(self) -> None:
        self._reading_thread = None
        self._reading.release()
        # Looked at after the release: a caller that came too early to read has its waiter in by now.
        if self._parked and self._expects():
            self.wake_reader()

    def _expects(self) -> bool:
        return len(self.session) > 0 or len(self._outbox.waiting) > 0

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
            if not self._reading.acquire(timeout=LEFT):
                if self.lost is None:
                    continue
                self._end(INTERRUPTED)  # whoever has the lock will not give it back
                return
            try:
                self._reading_thread = self._reader.ident
                alive = self._read_some()
                self._reading_thread = None
            finally:
                self._reading.release()
            if not alive:
                return
            if self._sync_last and not self._expects():
                self._park()

    def _park(self) -> None:
        turns = -1
        while turns != self._turns and self.lost is None:
            turns = self._turns
            self._parked = True
            # A waiter that came before the flag could be seen has not woken us.
            if self._expects() and not self._reading.locked():
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
                        self._filling = large
                    if self._outbox.held:
                        self._outbox.flush()
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
            reason = f"what came is no frame: {error.message.removesuffix('.')}"
            logger.warning("connection to %s closed: %s", self.address, error)
        except BlockingIOError:  # not enough of a TLS record to be read
            return True
        except OSError as error:
            reason = str(error)
        except BaseException:  # a caller's Ctrl-C between the socket and the session: the stream cannot be followed
            self._end(INTERRUPTED)
            raise
        self._end(reason)
        return False

    def _dispatch(self, command: RemotingCommand) -> None:
        if command.flag & 1:
            waiter = self.session.take(command.opaque)
            self._sync_last = type(waiter) is SyncWaiter
            if waiter is None:
                waiter = self._outbox.take(command.opaque)
            if waiter is not None:  # else its time-out was first
                try:
                    waiter.complete(command)
                except KeyboardInterrupt:
                    waiter.fail(self._error(INTERRUPTED))  # should it not have been told
                    raise
                except BaseException:  # a call-back's, even its SystemExit, is not for the others who wait here
                    logger.exception("a call-back for an answer of %s failed", self.address)
            return
        try:
            if self._handler is None:
                answer: RemotingCommand | None = RemotingCommand.response(
                    command,
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {command.code} not supported",
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
        self._shut_down(reason)

    def break_off(self) -> None:
        """Give the connection up, as a call was interrupted: one of its locks may be taken for ever."""
        self.close(INTERRUPTED)
        self._tell_all()

    def join(self, timeout: float) -> None:
        if threading.get_ident() not in (self._reader.ident, self._reading_thread):
            self._reader.join(timeout)

    def abandon(self) -> None:
        """In a child process after a fork: close the copy of the descriptor and leave the connection to the parent."""
        self.lost = RemotingConnectError(f"The connection to {self.address} stayed with the parent process.")
        self._socket.close()

    def _shut_down(self, reason: str) -> None:
        if self.lost is None:
            self.lost = self._error(reason)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever reads sees the end
        except OSError:
            pass
        self.wake_reader()

    def _end(self, reason: str) -> None:
        if self.lost is None:
            self.lost = self._error(reason)
        self._tell_all()
        # Nobody writes to a descriptor number that may be somebody else's by now.
        writing = self._outbox.writing.acquire(timeout=LEFT)
        try:
            self._socket.close()
        finally:
            if writing:
                self._outbox.writing.release()
        self.wake_reader()

    def _tell_all(self) -> None:
        assert self.lost is not None
        for waiter in (*self.session.drain(), *self._outbox.drain()):
            try:
                waiter.fail(self._again(self.lost))
            except BaseException:  # everybody is told, and the descriptor closed
                logger.exception("a call-back for the lost connection to %s failed", self.address)

    def _error(self, reason: str) -> RemotingConnectError:
        return RemotingConnectError(f"The connection to {self.address} was lost: {reason}.")

    @staticmethod
    def _again(error: RemotingConnectError) -> RemotingConnectError:
        """An error of its own for each thread that raises it: tracebacks are not shared."""
        return RemotingConnectError(error.message)


def _poll_of(sock: socket.socket | TlsSocket) -> Callable[[float], object]:
    """Waits up to so many milliseconds; whether there is something to receive."""
    if isinstance(sock, TlsSocket):
        return sock.poll
    readable = select.poll()
    readable.register(sock, select.POLLIN)
    return readable.poll


def _connect(address: str, timeout: float, tls: ClientTls | None) -> socket.socket | TlsSocket:
    deadline = time.monotonic() + timeout
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
        secured = None if tls is None else shake_hands(sock, tls, address, host, deadline)
        sock.settimeout(None)
        slice_ = struct.pack("ll", int(SEND_SLICE), int(SEND_SLICE % 1 * 1_000_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, slice_)
    except OSError as error:
        sock.close()
        raise RemotingConnectError(
            f"No connection to {address}: {error}.", remedy="Check the address and that a server runs there."
        ) from error
    except RocketError:  # no TLS, or files for it that cannot be read any more
        sock.close()
        raise
    return secured or sock
