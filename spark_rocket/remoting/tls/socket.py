"""A blocking socket with TLS, for one thread that reads and others that write at the same time.

OpenSSL wants one thread at a time in a connection, and Python's ``SSLSocket`` of this age keeps none out; with a lock
around it, a read that waits would keep the writers waiting. So the socket is not OpenSSL's here: whoever reads waits
for encrypted bytes without any lock, and the lock is held only while they are decrypted, or others are encrypted.

It has the methods of a socket that ``connection`` uses, with what it relies on:

=======================  =============================================================================================
``recv``, ``recv_into``  wait once. BlockingIOError: what came was not enough for a byte, wait again
``poll``                 whether they would find something: decrypted bytes that nobody took yet count
``send``, ``sendmsg``    say how much was taken, as a socket's do. While encrypted bytes are left that the kernel did
                         not take, the last byte of what they are counts as not taken: the caller comes again with it,
                         or gives the connection up. Only one thread at a time
=======================  =============================================================================================

Corresponds to netty's SslHandler on a client's channel.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from spark_rocket.errors import RemotingConnectError
from spark_rocket.protocol.wire.command import Buffer
from spark_rocket.remoting.tls.contexts import ClientTls
from spark_rocket.remoting.tls.problems import problem_of

_RECEIVE = 128 * 1024
_MOST = 256 * 1024  # encrypted before it is sent
_LAST_WORDS = 2.0  # seconds that a writer waits for the reader to see why the connection has ended


Reader: TypeAlias = Callable[[int, Buffer], int]
"""SSLObject.read into a buffer."""


class TlsSocket:
    """A connected socket, that is to shake hands first."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> None:
        """``name``: what the server was called by."""
        self._socket = sock
        self._name = name
        self._lock = threading.Lock()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._received = memoryview(bytearray(_RECEIVE))
        self._plain = memoryview(b"")
        self._more = False  # there may be decrypted bytes, or such as can be
        self._unsent = memoryview(b"")
        self._owed = 0  # bytes of what will be sent next that are encrypted already
        self._ended = threading.Event()
        self._problem: OSError | None = None
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def shake_hands(self, deadline: float) -> None:
        """OSError, TimeoutError among them, when there is no TLS with this peer."""
        while True:
            try:
                self._ssl.do_handshake()
                return
            except ssl.SSLWantReadError:
                pass
            finally:
                if self._outgoing.pending:
                    self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                    self._socket.sendall(self._outgoing.read())
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            count = self._socket.recv_into(self._received)
            if not count:
                raise ConnectionResetError("it was closed by the peer")
            self._incoming.write(self._received[:count])

    # --- receiving ------------------------------------------------------------------------------------------------

    def poll(self, milliseconds: float) -> bool:
        """Whether there is something to receive; waits for it."""
        return self._more or bool(self._poll.poll(milliseconds))

    def recv(self, size: int) -> bytes:
        """What is there, up to so many bytes; nothing at the end."""
        if len(self._plain) != size:
            self._plain = memoryview(bytearray(size))
        return bytes(self._plain[: self.recv_into(self._plain)])

    def recv_into(self, into: memoryview) -> int:
        """The same, into a buffer."""
        try:
            count = self._receive(into)
        except BlockingIOError:
            raise
        except OSError as error:
            self._problem = self._named(error)
            self._ended.set()
            raise self._problem from error
        if not count:
            self._ended.set()
        return count

    def _receive(self, into: memoryview) -> int:
        count = 0
        if not self._more:
            count = self._socket.recv_into(self._received)
            if not count:
                return 0
        at, size = 0, len(into)
        with self._lock:
            incoming, sslobj = self._incoming, self._ssl
            read = cast(Reader, sslobj.read)
            if count:
                incoming.write(self._received[:count])
            try:
                while at < size and (incoming.pending or sslobj.pending()):
                    done = read(size - at, into[at:] if at else into)
                    if not done:
                        return at
                    at += done
            except ssl.SSLWantReadError:  # not all of a record is there
                pass
            except ssl.SSLZeroReturnError:
                return at
        self._more = at == size
        if not at:
            raise BlockingIOError
        return at

    # --- sending --------------------------------------------------------------------------------------------------

    def send(self, data: Buffer, flags: int = 0) -> int:
        """How much of it was taken."""
        return self._send((data,), flags)

    def sendmsg(self, pieces: Sequence[Buffer]) -> int:
        """How much of them was taken."""
        return self._send(pieces, 0)

    def _send(self, pieces: Sequence[Buffer], flags: int) -> int:
        try:
            if self._unsent and not self._push(flags):
                return 0
            taken = self._encrypt(pieces)
            if self._push(flags):
                return taken
        except OSError as error:
            # The reader may have read what the peer said before it closed.
            self._ended.wait(_LAST_WORDS)
            raise self._problem or error from error
        self._owed = 1
        return taken - 1

    def _encrypt(self, pieces: Sequence[Buffer]) -> int:
        taken, owed = self._owed, self._owed
        with self._lock:
            for piece in pieces:
                view = memoryview(piece)[owed:]
                owed -= min(owed, len(piece))
                view = view[: _MOST - taken]
                while view:
                    done = self._ssl.write(view)
                    taken += done
                    view = view[done:]
                if taken >= _MOST:
                    break
            self._unsent = memoryview(self._outgoing.read())
        self._owed = 0
        return taken

    def _push(self, flags: int) -> bool:
        """Send what is encrypted; whether that was all."""
        if self._unsent:
            try:
                sent = self._socket.send(self._unsent, flags)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]
        return not self._unsent

    # --- the end --------------------------------------------------------------------------------------------------

    def shutdown(self, how: int) -> None:
        """As a socket's: whoever reads sees the end."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """As a socket's."""
        self._ended.set()
        self._socket.close()

    def _named(self, error: OSError) -> OSError:
        if not isinstance(error, ssl.SSLError):
            return error
        problem = problem_of(error, server=False, name=self._name)
        return OSError(f"it {problem.text}. {problem.remedy}".strip().rstrip("."))


def shake_hands(sock: socket.socket, tls: ClientTls, address: str, host: str, deadline: float) -> TlsSocket:
    """TLS over a connected socket. RemotingConnectError that says why not; the socket is left to the caller."""
    secure = TlsSocket(sock, tls.context(), host)
    try:
        secure.shake_hands(deadline)
    except (OSError, ValueError) as error:
        problem = problem_of(error, server=False, name=host)
        raise RemotingConnectError(
            f"No TLS connection to {address}: it {problem.text}.",
            remedy=problem.remedy,
            code=problem.error_code,
            retriable=not problem.is_lasting,
        ) from error
    return secure
