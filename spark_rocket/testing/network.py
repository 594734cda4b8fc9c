"""The network between the members of a test's cluster: relays in the test's process, which can be cut.

A member listens on 127.0.0.1; a relay listens on 127.0.0.2, on the same ports, which is the member's advertised
address. So all connections between members, and of clients to members, use a relay. The relay finds the calling member
in ``/proc`` of Linux. On other systems, without 127.0.0.2, members are called directly, and nothing can be cut.

===================  ==================================================================================================
while cut            bytes are held back in both directions, without an error, as with an unplugged cable. New
                     connections are accepted, but get no data
when healed          the held bytes are delivered, and connections opened in between continue
connections lost     those open now are dead: their bytes are discarded in both directions, without an error, as after
                     a restart of a stateful firewall or NAT. New connections work
half open            the same, and the member's ends are closed, as after a restart of its host
member moves         its old address is dead for old and new connections; it continues at another one
member is dead       its port refuses connections, as without a relay
===================  ==================================================================================================

Bytes that the relay had read before the cut may still be delivered. Thread-safety: call the methods of Network from one
thread at a time; relays run on an event loop of their own.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from spark_rocket.errors import StateError
from spark_rocket.remoting.event_loop import new_event_loop

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
#: All callers that are not members: the test, and processes that it has started.
CLIENTS = "clients"
HAS_MORE_LOOPBACK = sys.platform == "linux"
_RELAYS = "127.0.0.2"
_RESERVED = "127.0.0.3"
_MOVED = "127.0.0.4"  # the first one; each move takes the next
# Below the ephemeral ports, which systems use for outgoing connections.
_PORTS = (20_000, 32_000)
_TRIES = 200


class Network:
    """The relays, and the pairs of members whose connection is cut."""

    def __init__(self) -> None:
        self.can_be_cut = HAS_MORE_LOOPBACK
        #: The address that members advertise.
        self.host = _RELAYS if self.can_be_cut else LOOPBACK
        self.pids: dict[str, int] = {}
        self._hosts: dict[str, str] = {}  # of members that have moved
        self._cut: set[frozenset[str]] = set()
        self._links: set[_Link] = set()
        self._servers: dict[str, list[asyncio.Server]] = {}
        self._reserved: list[socket.socket] = []
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._thread.start()

    def reserve(self, count: int) -> int:
        """Reserve ``count`` consecutive free ports against other users of this method; returns the first one."""
        for _ in range(_TRIES):
            first = random.randrange(*_PORTS)
            taken: list[socket.socket] = []
            try:
                for port in range(first, first + count):
                    if self.can_be_cut:
                        sock = socket.socket()
                        taken.append(sock)
                        sock.bind((_RESERVED, port))
                    for host in {LOOPBACK, self.host}:
                        with socket.socket() as probe:
                            probe.bind((host, port))
            except OSError:
                for sock in taken:
                    sock.close()
                continue
            self._reserved += taken
            return first
        raise StateError("No free ports for the servers.", remedy="Stop servers that listen on ports 20000 to 32000.")

    def open(self, member: str, ports: Iterable[int]) -> None:
        """Start the relays for the ports of a member that is about to start."""
        if self.can_be_cut and member not in self._servers:
            self._servers[member] = [self._call(self._listen(member, port)) for port in ports]

    def host_of(self, member: str) -> str:
        """Return the address that the member advertises."""
        return self._hosts.get(member, self.host)

    async def _listen(self, member: str, port: int) -> asyncio.Server:
        host = self.host_of(member)
        return await self._loop.create_server(
            lambda: _Link(self, member, host, port), host, port, reuse_address=True, backlog=1024
        )

    def shut(self, member: str) -> None:
        """Stop the relays of a stopped member, so that connections are refused."""
        for server in self._servers.pop(member, []):
            self._loop.call_soon_threadsafe(server.close)
        self.pids.pop(member, None)

    def cut(self, member: str, others: Iterable[str]) -> None:
        self._check_can_be_cut()
        self._change(lambda: self._cut.update(frozenset((member, other)) for other in others if other != member))

    def heal(self, member: str) -> None:
        """Remove all cuts of this member."""
        self._change(lambda: self._cut.difference_update([pair for pair in self._cut if member in pair]))

    def lose(self, member: str, *, half_open: bool = False) -> None:
        """Lose the connections to a member that are open now."""
        self._check_can_be_cut()

        def change() -> None:
            for link in self._links:
                if link.member == member:
                    link.lose(half_open=half_open)

        self._change(change)

    def move(self, member: str, ports: Iterable[int]) -> str:
        """Give a stopped member another address, and return it. The relays of the old one discard all bytes."""
        self.lose(member, half_open=True)
        number = int(_MOVED.rpartition(".")[2]) + sum(host != self.host for host in self._hosts.values())
        self._hosts[member] = f"127.0.0.{number}"
        self._servers.setdefault(member, []).extend(self._call(self._listen(member, port)) for port in ports)
        return self._hosts[member]

    def _check_can_be_cut(self) -> None:
        if not self.can_be_cut:
            raise StateError("The network can be cut on Linux only.", remedy="Use pause(), which stops the process.")

    def _change(self, change: Callable[[], None]) -> None:
        async def apply() -> None:
            change()
            for link in list(self._links):
                link.update()

        self._call(apply())

    def close(self) -> None:
        for member in list(self._servers):
            self.shut(member)

        async def finish() -> None:
            for link in list(self._links):
                link.abort()
            await asyncio.sleep(0)

        self._call(finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        for sock in self._reserved:
            sock.close()

    def _call(self, action: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(30)

    # --- for the relays, on their loop ----------------------------------------------------------------------------

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cut

    def joined(self, link: _Link) -> None:
        self._links.add(link)

    def left(self, link: _Link) -> None:
        self._links.discard(link)

    def caller(self, port: int) -> str:
        """The member whose socket has this port."""
        inodes = {line.split()[9] for line in _sockets() if line.split()[1].endswith(f":{port:04X}")}
        for member, pid in list(self.pids.items()):
            with suppress(OSError):
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        target = str(descriptor.readlink())
                        if target.startswith("socket:[") and target[8:-1] in inodes:
                            return member
        return CLIENTS


def _sockets() -> list[str]:
    return Path("/proc/net/tcp").read_text().splitlines()[1:]


class _Link(asyncio.Protocol):
    """One connection through a relay: this end is the caller's, ``_far`` the member's."""

    def __init__(self, network: Network, member: str, host: str, port: int) -> None:
        self.member = member
        self._network = network
        self._host = host
        self._port = port
        self._lost = False
        self._caller = CLIENTS
        self._near: asyncio.Transport | None = None
        self._far: _FarEnd | None = None
        self._calling: asyncio.Task[None] | None = None
        self._near_full = False
        self._early: list[bytes] = []

    @property
    def is_cut(self) -> bool:
        return self._network.is_cut(self._caller, self.member)

    def lose(self, *, half_open: bool) -> None:
        """Discard all bytes from now on; the caller's end stays open."""
        self._lost = True
        if half_open and self._far is not None:
            self._far.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._near = cast(asyncio.Transport, transport)
        self._caller = self._network.caller(transport.get_extra_info("peername")[1])
        self._network.joined(self)
        self._lost = self._host != self._network.host_of(self.member)
        asyncio.get_running_loop().call_soon(self.update)  # the loop begins to read when this returns

    def update(self) -> None:
        """Pause, continue, connect or close as the state of the network requires."""
        near, far = self._near, self._far
        if self._lost:
            if near is not None:
                _let_read(near, True)  # to discard it
            else:
                self._network.left(self)
            return
        may = not self.is_cut
        if near is not None:
            _let_read(near, may and far is not None and not far.full)
        if far is not None and far.transport is not None:
            _let_read(far.transport, may and not self._near_full)
        if not may:
            return
        if near is None:
            self._network.left(self)
            if far is not None:
                far.close()
        elif far is None and self._calling is None:
            self._calling = asyncio.get_running_loop().create_task(self._call())
        elif far is not None and far.lost:
            near.close()

    async def _call(self) -> None:
        try:
            _, self._far = await asyncio.get_running_loop().create_connection(
                lambda: _FarEnd(self), LOOPBACK, self._port
            )
        except OSError:
            if self._near is not None:
                self._near.abort()
            return
        for data in self._early:
            self.data_received(data)
        self._early.clear()
        self.update()

    def data_received(self, data: bytes) -> None:
        if self._lost:
            return
        if self._far is None:
            self._early.append(data)
        elif self._far.transport is not None:
            self._far.transport.write(data)

    def to_caller(self, data: bytes) -> None:
        if self._near is not None and not self._lost:
            self._near.write(data)

    def pause_writing(self) -> None:
        self._near_full = True
        self.update()

    def resume_writing(self) -> None:
        self._near_full = False
        self.update()

    def connection_lost(self, error: Exception | None) -> None:
        self._near = None
        self.update()

    def abort(self) -> None:
        if self._near is not None:
            self._near.abort()
        if self._far is not None:
            self._far.close()


class _FarEnd(asyncio.Protocol):
    """The relay's connection to the member."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self.transport: asyncio.Transport | None = None
        self.full = False
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._link.to_caller(data)

    def pause_writing(self) -> None:
        self.full = True
        self._link.update()

    def resume_writing(self) -> None:
        self.full = False
        self._link.update()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.transport = None
        self._link.update()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


def _let_read(transport: asyncio.Transport, may: bool) -> None:
    if transport.is_closing():
        return
    if may and not transport.is_reading():
        transport.resume_reading()
    elif not may and transport.is_reading():
        transport.pause_reading()
