"""A blocking TLS socket with one reading thread and concurrent writers.

OpenSSL allows one thread at a time per connection, and Python's ``SSLSocket`` does not enforce that; with a lock around
it, a blocked read would block writers. So OpenSSL does not own the socket here: the reader waits for encrypted bytes
without any lock, and the lock is held only for decryption or encryption.

It has the socket methods that ``connection`` uses, with the required semantics:

=======================  =============================================================================================
``recv``, ``recv_into``  wait once. BlockingIOError: too few bytes for a record were received, call again
``poll``                 whether they would return data, including decrypted bytes that were not read yet
``send``, ``sendmsg``    return the number of accepted bytes, like a socket. While the kernel has not accepted all
                         encrypted bytes, the last plaintext byte counts as not accepted: the caller retries with it, or
                         drops the connection. Only one thread at a time
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

_RECEIVE_BYTES = 128 * 1024
_MAX_PLAINTEXT_BYTES = 256 * 1024  # bytes encrypted per write
_REASON_TIMEOUT_S = 2.0  # how long a writer waits for the reader to read the reason of a close


Reader: TypeAlias = Callable[[int, Buffer], int]
"""SSLObject.read into a buffer."""


class TlsSocket:
    """A TLS connection over a connected socket; call ``shake_hands`` first."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> None:
        """``name``: the host name or address used for the connection."""
        self._socket = sock
        self._name = name
        self._lock = threading.Lock()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._plain = memoryview(b"")
        self._more = False  # there may be decrypted bytes, or complete records
        self._unsent = memoryview(b"")
        self._owed = 0  # bytes at the start of the next send that are already encrypted
        self._ended = threading.Event()
        self._problem: OSError | None = None
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def shake_hands(self, deadline: float) -> None:
        """Run the handshake. OSError, including TimeoutError, if it fails."""
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
                raise ConnectionResetError("closed by the peer")
            self._incoming.write(self._received[:count])

    # --- receiving ------------------------------------------------------------------------------------------------

    def poll(self, milliseconds: float) -> bool:
        """Wait for data; return whether there is some."""
        return self._more or bool(self._poll.poll(milliseconds))

    def recv(self, size: int) -> bytes:
        """Return available data, up to ``size`` bytes; empty at the end."""
        if len(self._plain) != size:
            self._plain = memoryview(bytearray(size))
        return bytes(self._plain[: self.recv_into(self._plain)])

    def recv_into(self, into: memoryview) -> int:
        """Like ``recv``, into a buffer."""
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
            except ssl.SSLWantReadError:  # incomplete record
                pass
            except ssl.SSLZeroReturnError:
                return at
        self._more = at == size
        if not at:
            raise BlockingIOError
        return at

    # --- sending --------------------------------------------------------------------------------------------------

    def send(self, data: Buffer, flags: int = 0) -> int:
        """Return the number of accepted bytes."""
        return self._send((data,), flags)

    def sendmsg(self, pieces: Sequence[Buffer]) -> int:
        """Return the number of accepted bytes."""
        return self._send(pieces, 0)

    def _send(self, pieces: Sequence[Buffer], flags: int) -> int:
        try:
            if self._unsent and not self._push(flags):
                return 0
            taken = self._encrypt(pieces)
            if self._push(flags):
                return taken
        except OSError as error:
            # The reader may have received an alert with the reason.
            self._ended.wait(_REASON_TIMEOUT_S)
            raise self._problem or error from error
        self._owed = 1
        return taken - 1

    def _encrypt(self, pieces: Sequence[Buffer]) -> int:
        taken, owed = self._owed, self._owed
        with self._lock:
            for piece in pieces:
                view = memoryview(piece)[owed:]
                owed -= min(owed, len(piece))
                view = view[: _MAX_PLAINTEXT_BYTES - taken]
                while view:
                    done = self._ssl.write(view)
                    taken += done
                    view = view[done:]
                if taken >= _MAX_PLAINTEXT_BYTES:
                    break
            self._unsent = memoryview(self._outgoing.read())
        self._owed = 0
        return taken

    def _push(self, flags: int) -> bool:
        """Send encrypted bytes; return whether all were accepted."""
        if self._unsent:
            try:
                sent = self._socket.send(self._unsent, flags)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]
        return not self._unsent

    # --- the end --------------------------------------------------------------------------------------------------

    def shutdown(self, how: int) -> None:
        """Like that of a socket: the reader gets the end of the stream."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Like that of a socket."""
        self._ended.set()
        self._socket.close()

    def _named(self, error: OSError) -> OSError:
        if not isinstance(error, ssl.SSLError):
            return error
        problem = problem_of(error, server=False, name=self._name)
        return OSError(f"it {problem.text}. {problem.remedy}".strip().rstrip("."))


def shake_hands(sock: socket.socket, tls: ClientTls, address: str, host: str, deadline: float) -> TlsSocket:
    """Start TLS over a connected socket. RemotingConnectError with the reason; the caller closes the socket."""
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
