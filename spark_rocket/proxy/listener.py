"""A listening socket that takes plaintext and TLS on one port, and says who a proxy in front of it speaks for.

What a connection is, its first bytes say. They are looked at where they are, in the kernel (MSG_PEEK), so that whoever
is given the socket finds all of them:

===========================================  ============================================================
first bytes                                  connection
===========================================  ============================================================
``16``                                       TLS, a ClientHello
``"PROXY "`` … CR LF, at most 107 bytes      the PROXY protocol, version 1: taken out, then as below
``0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A`` …    the same, version 2: 2 bytes, length 2, addresses
anything else                                plaintext
===========================================  ============================================================

A connection that does not say what it is within ``PATIENCE`` seconds is closed; so is plaintext in mode ``enforcing``.
Whoever is refused is logged with the reason, each kind at most once in ten seconds.

Thread-safety: none; used on the event loop only.
Corresponds to org.apache.rocketmq.proxy.grpc.ProxyAndTlsProtocolNegotiator.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
from collections.abc import Callable

from spark_rocket.errors import ConfigError
from spark_rocket.remoting.address import format_address, format_peer
from spark_rocket.remoting.descriptors import leaves_reserve
from spark_rocket.remoting.tls import TlsMode
from spark_rocket.remoting.tls_contexts import ServerTls
from spark_rocket.remoting.tls_problems import Lines, problem_of

_log = logging.getLogger(__name__)

PATIENCE = 10.0
_BACKLOG = 1024
_ACCEPTS = 64  # connections taken before it is the others' turn
_PEEK = 536  # the longest header of the PROXY protocol that is worth reading
_AGAIN = 0.02  # seconds until the next look at an undecided connection
_NO_SOCKETS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

_V1 = re.compile(
    rb"PROXY (?:TCP[46] ([0-9a-fA-F.:]{2,39}) [0-9a-fA-F.:]{2,39} ([0-9]{1,5}) [0-9]{1,5}|UNKNOWN[^\r]*)\r\n"
)
_V1_SIZE = 107
_V2 = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEAD = 16

PLAIN, TLS, PROXIED, MORE, BAD = range(5)


def look_at(start: bytes) -> tuple[int, int, str | None]:
    """What first bytes are: PLAIN, TLS, PROXIED with its length and the address, BAD; MORE when they are too few."""
    if not start:
        return MORE, 0, None
    if start[0] == 0x16:
        return TLS, 0, None
    if start.startswith(b"PROXY "):
        found = _V1.match(start)
        if found is not None:
            address = format_address(found[1].decode(), int(found[2])) if found[1] else None
            return PROXIED, found.end(), address
        return (BAD if b"\r\n" in start or len(start) > _V1_SIZE else MORE), 0, None
    if start.startswith(_V2):
        return _look_at_v2(start)
    if b"PROXY ".startswith(start) or _V2.startswith(start):
        return MORE, 0, None
    return PLAIN, 0, None


def _look_at_v2(start: bytes) -> tuple[int, int, str | None]:
    if len(start) < _V2_HEAD:
        return MORE, 0, None
    command, family = start[12], start[13]
    end = _V2_HEAD + int.from_bytes(start[14:16], "big")
    if command >> 4 != 2 or end > _PEEK:
        return BAD, 0, None
    if len(start) < end:
        return MORE, 0, None
    address = None
    if command & 0x0F == 1:  # else the proxy speaks for itself
        for number, kind, size in ((1, socket.AF_INET, 4), (2, socket.AF_INET6, 16)):
            if family >> 4 == number and end >= _V2_HEAD + 2 * size + 4:
                host = socket.inet_ntop(kind, start[_V2_HEAD : _V2_HEAD + size])
                port = int.from_bytes(start[_V2_HEAD + 2 * size : _V2_HEAD + 2 * size + 2], "big")
                address = format_address(host, port)
    return PROXIED, end, address


class Listener:
    """Accepts connections; ``protocol(peer)`` makes what serves one."""

    def __init__(
        self, host: str, port: int, protocol: Callable[[str], asyncio.Protocol], tls: ServerTls | None = None
    ) -> None:
        self.port = port
        self._host = host
        self._protocol = protocol
        self._tls = tls
        self._lines = Lines(_log)
        self._loop: asyncio.AbstractEventLoop
        self._socket: socket.socket | None = None
        self._newcomers: dict[socket.socket, tuple[asyncio.TimerHandle, str]] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    async def bind(self) -> None:
        """Have the address, and connections wait. ConfigError when it cannot be had."""
        self._loop = loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                self._host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]  # one socket, so that port 0 means one port
            self._socket = sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError as error:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            taken = error.errno == errno.EADDRINUSE
            raise ConfigError(
                f"The gRPC endpoint cannot listen on {format_address(self._host, self.port)}: "
                f"{'the port is in use' if taken else error.strerror or error}.",
                remedy="Stop what listens there, or choose another port with --grpc-port (0 takes a free one)."
                if taken
                else "Give a host that is an address of this machine, for example 127.0.0.1 or 0.0.0.0.",
            ) from error
        sock.setblocking(False)
        self.port = sock.getsockname()[1]

    def when_called(self, action: Callable[[], None]) -> None:
        """Have ``action`` called, once, when a connection waits."""
        listening = self._socket
        assert listening is not None

        def called() -> None:
            self._loop.remove_reader(listening)
            action()

        self._loop.add_reader(listening, called)

    def accept(self) -> None:
        """Take connections from now on."""
        self._accept_again()

    def close(self) -> None:
        """Listen no more, and forget who has not said what it is."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._retry is not None:
            self._retry.cancel()
        for sock in list(self._newcomers):
            self._drop(sock)
        for task in self._connecting:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for connections that were being made."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _accept(self) -> None:
        listening = self._socket
        if listening is None:
            return
        for _ in range(_ACCEPTS):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_SOCKETS:
                    raise
                _log.error("no connection can be accepted for a second: %s", error)
                self._loop.remove_reader(listening)
                self._retry = self._loop.call_later(1.0, self._accept_again)
                return
            if not leaves_reserve(sock, "gRPC endpoint", format_peer(address)):
                sock.close()
                continue
            sock.setblocking(False)
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            timer = self._loop.call_later(PATIENCE, self._drop, sock)
            self._newcomers[sock] = timer, format_peer(address)
            self._look(sock)

    def _accept_again(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._accept)

    def _drop(self, sock: socket.socket) -> None:
        self._forget(sock)
        sock.close()

    def _forget(self, sock: socket.socket) -> str:
        timer, peer = self._newcomers.pop(sock)
        timer.cancel()
        self._loop.remove_reader(sock)
        return peer

    def _look(self, sock: socket.socket) -> None:
        """What is it? Asked until its first bytes say so."""
        if sock not in self._newcomers:
            return
        timer, peer = self._newcomers[sock]
        try:
            start = sock.recv(_PEEK, socket.MSG_PEEK)
            kind, size, address = look_at(start)
            if kind == PROXIED:
                sock.recv(size)
                self._newcomers[sock] = timer, address or peer
                self._look(sock)
                return
        except (BlockingIOError, InterruptedError):
            self._loop.add_reader(sock, self._look, sock)
            return
        except OSError:
            self._drop(sock)
            return
        if not start or kind == BAD:
            self._drop(sock)
        elif kind == MORE:  # the socket stays readable, so ask again later
            self._loop.remove_reader(sock)
            self._loop.call_later(_AGAIN, self._look, sock)
        elif kind == TLS and self._tls is None:
            self._refuse(sock, "DISABLED", peer, "calls with TLS, which is disabled here (tls.server.mode)")
        elif kind == PLAIN and self._tls is not None and self._tls.mode is TlsMode.ENFORCING:
            self._refuse(sock, "PLAINTEXT", peer, "calls without TLS, and tls.server.mode=enforcing")
        else:
            peer = self._forget(sock)
            task = self._loop.create_task(self._connect(sock, peer, kind == TLS))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, sock: socket.socket, peer: str, tls: bool) -> None:
        try:
            context = self._tls.context() if tls and self._tls is not None else None
        except Exception as error:  # a library that is missing, files that cannot be read any more
            _log.error("%s calls with TLS, for which there is no certificate: %s", peer, error)
            sock.close()
            return
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(peer),
                sock,
                ssl=context,
                ssl_handshake_timeout=PATIENCE if tls else None,
            )
        except (OSError, asyncio.CancelledError) as error:
            _log.debug("%s did not become a connection: %r", peer, error)
            sock.close()
            if tls and isinstance(error, OSError):
                problem = problem_of(error, server=True)
                self._say(problem.kind, peer, f"{problem.text}. {problem.remedy}".rstrip(". "))

    def _refuse(self, sock: socket.socket, kind: str, peer: str, text: str) -> None:
        self._drop(sock)
        self._say(kind, peer, text)

    def _say(self, kind: str, peer: str, text: str) -> None:
        self._lines.warn(kind, f"The gRPC endpoint closed the connection of {peer}: it {text}.")
