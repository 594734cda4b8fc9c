"""The public port of the gRPC endpoint: accepts connections, detects their kind, and passes them to a forwarder.

The first bytes identify the kind of a connection (proxy_protocol.py). They are read with MSG_PEEK, so that they stay in
the socket for TLS and HTTP/2. TLS is terminated here, with the project's TLS settings, because one port accepts both
kinds, and a changed certificate is loaded without a restart.

A connection is closed, and the reason logged at most once in ten seconds for each kind, when

* the limits of descriptors or connections of the process, or of connections of its address, are reached,
* its first bytes do not arrive in time, or are invalid,
* it sends a PROXY header from an untrusted address, or a second one,
* it uses plaintext in mode ``enforcing``, or TLS while TLS is disabled, or its handshake fails.

Thread-safety: event loop only. Corresponds to org.apache.rocketmq.proxy.grpc.ProxyAndTlsProtocolNegotiator.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from spark_rocket.logs import RateLimited
from spark_rocket.proxy.transport.limits import GrpcLimits
from spark_rocket.proxy.transport.proxy_protocol import (
    BAD,
    MAX_HEADER_BYTES,
    MORE,
    PROXIED,
    TLS,
    TrustedAddresses,
    classify,
    host_of,
)
from spark_rocket.remoting.address import format_peer
from spark_rocket.remoting.server.sockets import bind, cannot_listen, leaves_reserve
from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.problems import problem_of, refusal_of
from spark_rocket.remoting.tls.settings import TlsMode

_log = logging.getLogger(__name__)

_BACKLOG = 1024
_MAX_ACCEPTS = 64  # per turn of the loop
_PEEK_AGAIN_S = 0.02
_DESCRIPTORS = 3
"""Descriptors per connection: its own, and both ends of the local one to grpcio (forwarding.py)."""
_NO_SOCKETS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
NAME = "gRPC endpoint"
_PORT_OPTIONS = " with --grpc-port"


@dataclass(slots=True)
class _Newcomer:
    """A connection of unknown kind."""

    peer: str
    timer: asyncio.TimerHandle
    is_proxied: bool = False


class Front:
    """Accepts connections. ``make_protocol(peer)`` creates the protocol of a connection of known kind.

    Call ``forget(peer)`` when that connection is closed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        make_protocol: Callable[[str], asyncio.Protocol],
        *,
        limits: GrpcLimits,
        tls: ServerTls | None = None,
        trusted: TrustedAddresses | None = None,
        reuse_port: bool = False,
    ) -> None:
        self.port = port
        self.refused: Counter[str] = Counter()
        """Connections refused by a limit: ``total``, ``address``, ``descriptors``."""
        self._host = host
        self._make_protocol = make_protocol
        self._limits = limits
        self._tls = tls
        self._trusted = trusted or TrustedAddresses()
        self._reuse_port = reuse_port
        self._often = RateLimited(_log)
        self._loop: asyncio.AbstractEventLoop
        self._socket: socket.socket | None = None
        self._newcomers: dict[socket.socket, _Newcomer] = {}
        self._of_address: Counter[str] = Counter()
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._others = 0  # descriptors in use before there are connections

    @property
    def connections(self) -> int:
        """Accepted connections, including those of unknown kind."""
        return len(self._newcomers) + self._of_address.total()

    async def bind(self) -> None:
        """Bind the address; connections queue. ConfigError if it is in use or not an address of this machine."""
        self._loop = asyncio.get_running_loop()
        sock = await bind(self._host, self.port, NAME, _PORT_OPTIONS, reuse_port=self._reuse_port)
        try:
            sock.listen(_BACKLOG)
        except OSError as error:  # another socket of the same address listens
            sock.close()
            raise cannot_listen(self._host, self.port, error, NAME, _PORT_OPTIONS) from error
        sock.setblocking(False)
        self._socket = sock
        self.port = sock.getsockname()[1]

    def accept(self) -> None:
        """Start accepting connections."""
        if self._socket is not None:
            with self._socket.dup() as next_one:
                self._others = next_one.fileno()
            self._loop.add_reader(self._socket, self._accept)

    async def close(self) -> None:
        """Stop listening and close connections of unknown kind."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._retry is not None:
            self._retry.cancel()
        for sock in list(self._newcomers):
            self._drop(sock)
        for sock in self._handshakes.values():  # do not cancel: a half-created transport would never end
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if self._handshakes:
            await asyncio.wait(list(self._handshakes))

    def forget(self, peer: str) -> None:
        """Record that a connection with a protocol is closed."""
        host = host_of(peer)
        self._of_address[host] -= 1
        if self._of_address[host] <= 0:
            del self._of_address[host]

    def reject(self, reason: str, peer: str, text: str) -> None:
        """Count and log a connection refused by a limit."""
        self.refused[reason] += 1
        self._often.warning(reason, "%s", f"refused gRPC connection {peer}: {text}")

    # --- accepting --------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        listening = self._socket
        if listening is None:
            return
        for _ in range(_MAX_ACCEPTS):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_SOCKETS:
                    raise
                self._often.warning("accept", "%s", f"accepting no gRPC connections for 1 s: {error}")
                self._loop.remove_reader(listening)
                self._retry = self._loop.call_later(1.0, self._loop.add_reader, listening, self._accept)
                return
            self._admit(sock, format_peer(address))

    def _admit(self, sock: socket.socket, peer: str) -> None:
        open_now, most = self.connections, self._limits.max_connections
        if not self._has_descriptors(sock, peer, 1):
            self.refused["descriptors"] += 1
        elif open_now >= most:
            self.reject("total", peer, f"{open_now} connections are open (maxConnections)")
        else:
            sock.setblocking(False)
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            timer = self._loop.call_later(self._limits.first_bytes_timeout, self._drop, sock)
            self._newcomers[sock] = _Newcomer(peer, timer)
            self._peek(sock)
            return
        sock.close()

    def _has_descriptors(self, sock: socket.socket, peer: str, more: int) -> bool:
        """Whether ``more`` descriptors are available, after those that open connections still need."""
        in_use = self._others + len(self._newcomers) + _DESCRIPTORS * self._of_address.total()
        return leaves_reserve(sock, NAME, peer, in_use + more - 1)

    def _drop(self, sock: socket.socket) -> None:
        self._take(sock)
        sock.close()

    def _take(self, sock: socket.socket) -> str:
        newcomer = self._newcomers.pop(sock)
        newcomer.timer.cancel()
        self._loop.remove_reader(sock)
        return newcomer.peer

    def _peek(self, sock: socket.socket) -> None:
        """Read the first bytes until they identify the connection's kind."""
        newcomer = self._newcomers.get(sock)
        if newcomer is None:
            return
        try:
            start = sock.recv(MAX_HEADER_BYTES, socket.MSG_PEEK)
            kind, size, address = classify(start)
            if kind == PROXIED and self._may_be_proxied(newcomer):
                sock.recv(size)
                newcomer.is_proxied = True
                newcomer.peer = address or newcomer.peer
                self._peek(sock)
                return
        except (BlockingIOError, InterruptedError):
            self._loop.add_reader(sock, self._peek, sock)
            return
        except OSError:
            self._drop(sock)
            return
        if not start or kind == BAD:
            self._drop(sock)
        elif kind == PROXIED:
            reason = "a second PROXY header" if newcomer.is_proxied else "a PROXY header, but its address is not in"
            more = "" if newcomer.is_proxied else " proxyProtocolTrustedAddresses"
            self._refuse(sock, "PROXY", f"sent {reason}{more}")
        elif kind == MORE:  # the socket stays readable: look again later
            self._loop.remove_reader(sock)
            self._loop.call_later(_PEEK_AGAIN_S, self._peek, sock)
        elif problem := refusal_of(kind == TLS, TlsMode.DISABLED if self._tls is None else self._tls.mode):
            self._refuse(sock, problem.kind, problem.text)
        else:
            self._hand_over(sock, kind == TLS)

    def _may_be_proxied(self, newcomer: _Newcomer) -> bool:
        return not newcomer.is_proxied and host_of(newcomer.peer) in self._trusted

    def _refuse(self, sock: socket.socket, kind: str, text: str) -> None:
        peer = self._newcomers[sock].peer
        self._drop(sock)
        self._often.warning(kind, "%s", f"closed gRPC connection {peer}: it {text}")

    # --- connections of known kind ----------------------------------------------------------------------------

    def _hand_over(self, sock: socket.socket, tls: bool) -> None:
        peer = self._take(sock)
        host, most = host_of(peer), self._limits.max_connections_per_address
        if 0 < most <= self._of_address[host]:
            self.reject("address", peer, f"{most} connections of its address are open (maxConnectionsPerAddress)")
            sock.close()
            return
        if not self._has_descriptors(sock, peer, _DESCRIPTORS):
            self.refused["descriptors"] += 1
            sock.close()
            return
        self._of_address[host] += 1
        task = self._loop.create_task(self._connect(sock, peer, tls))
        self._handshakes[task] = sock
        task.add_done_callback(self._handshakes.pop)

    async def _connect(self, sock: socket.socket, peer: str, tls: bool) -> None:
        try:
            context = self._tls.context() if tls and self._tls is not None else None
        except Exception as error:  # a missing library, unreadable files
            self._often.warning(
                "certificate", "%s", f"closed gRPC connection {peer}: it uses TLS, but there is no certificate: {error}"
            )
            sock.close()
            self.forget(peer)
            return
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(peer),
                sock,
                ssl=context,
                ssl_handshake_timeout=self._limits.first_bytes_timeout if tls else None,
            )
        except OSError as error:
            sock.close()
            self.forget(peer)
            if tls:
                problem = problem_of(error, server=True)
                text = f"it {problem.text}. {problem.remedy}".rstrip(". ")
                self._often.warning(problem.kind, "%s", f"closed gRPC connection {peer}: {text}")
