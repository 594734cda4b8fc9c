"""One client's connection: what HTTP/2 says becomes calls, and what calls answer is written, once per turn of the loop.

A peer that has sent very much at once is served for ``TIME_SLICE`` seconds, then it is the others' turn; nothing more
is read from it meanwhile, nor while it does not read what it was sent.

Called now and then by the server, :meth:`GrpcConnection.look` closes a connection without streams after the idle time,
asks with PING whether a silent peer with open streams is still there, and ends requests and answers that do not move.

Thread-safety: none; used on the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, cast

from spark_rocket.logs import log_once_per
from spark_rocket.proxy import http2
from spark_rocket.proxy.context import GrpcCode, RpcError
from spark_rocket.proxy.frames import Block, ErrorCode, block
from spark_rocket.proxy.grpc_call import Call, status_block
from spark_rocket.proxy.grpc_messages import ENCODINGS
from spark_rocket.proxy.http2_output import Stream
from spark_rocket.proxy.request_headers import MAX_HEADER_LIST

if TYPE_CHECKING:
    from spark_rocket.proxy.grpc_server import Http2Server

_log = logging.getLogger(__name__)
_often = log_once_per(10, _log)  # whoever breaks the protocol may do so on thousands of connections

TIME_SLICE = 5e-3
_SHORTEST = 0.3e-3  # of it, when many have something to serve
HIGH_WATER = 1024 * 1024
# Looks without a byte from the peer, or without progress on a stream: then a PING; then the end.
_LOOKS_TO_PING = 2
_LOOKS_TO_END = 4
_KEEPALIVE = b"rocketka"

_NO_GRPC = block(
    (b":status", b"415"), (b"content-type", b"text/plain"), (b"grpc-status", b"2"),
    (b"grpc-message", b"the content-type is not application/grpc"),
)  # fmt: skip
_NO_POST = block((b":status", b"405"), (b"allow", b"POST"))
_ACCEPTED = (b"grpc-accept-encoding", b",".join(ENCODINGS))


class GrpcConnection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_events", "_flushing", "_idle_looks", "_reading", "_since", "_size", "_transport", "grant", "peer", "server",
        "session", "waited",
    )  # fmt: skip

    def __init__(self, server: Http2Server, peer: str) -> None:
        self.server = server
        self.peer = peer
        self.session = http2.Session(server.loop.time)
        self.grant = self.session.grant
        self._transport: asyncio.Transport | None = None
        self._events: deque[http2.Event] = deque()  # that wait for their turn
        self._flushing = False  # somebody will flush
        self._reading = True
        self._idle_looks = 0
        self._since = 0.0  # when the first of the events that wait came
        self._size = 0  # bytes that came with them
        self.waited = 0.0  # how long those that are served now have waited

    def __repr__(self) -> str:
        return f"GrpcConnection({self.peer})"

    # --- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self.server.admit(self)

    def data_received(self, data: bytes) -> None:
        self._idle_looks = 0
        events = self.session.receive(data)
        self._flushing = True
        if self._events:
            self._events += events
            self._count(len(data))
        elif events:
            self._handle(events)
            if self._events:
                self._count(len(data))
        self.flush()

    def eof_received(self) -> bool:
        return False  # the transport closes

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._events:
            self.server.waiting -= 1
        self._count(-self._size)
        for _, stream, _ in self._events:  # some may be over, and the session has forgotten them
            if stream.owner is not None:
                stream.owner.cancel()
        self._events.clear()
        self._end_all()
        self.server.forget(self)

    def pause_writing(self) -> None:
        self.session.corked = True
        self._read(False)

    def resume_writing(self) -> None:
        self._idle_looks = 0
        self._handle(self.session.uncork())
        self.flush_soon()
        if not self._events:
            self._read(True)

    # --- events -----------------------------------------------------------------------------------------------

    def _handle(self, events: list[http2.Event]) -> None:
        until = perf_counter() + max(TIME_SLICE / (1 + self.server.waiting), _SHORTEST) if len(events) > 8 else 0.0
        for index, (kind, stream, payload) in enumerate(events):
            if until and index and perf_counter() > until:
                if not self._events:
                    self.server.waiting += 1
                if not self._size:
                    self._since = self.server.clock()
                self._events.extend(events[index:])
                self._read(False)
                self.server.loop.call_soon(self._handle_rest)
                return
            if kind == http2.LAST:
                if stream.owner is not None:
                    stream.owner.feed(payload, True)
            elif kind == http2.REQUEST:
                if stream.open:  # else it was reset in the same read
                    self._request(stream, payload)
            elif kind == http2.DATA:
                if stream.owner is not None:
                    stream.owner.feed(payload, False)
            elif kind == http2.RESET:
                if stream.owner is not None:
                    stream.owner.cancel()
            elif kind == http2.DRAINED:
                if stream.owner is not None:
                    stream.owner.writable()
            elif kind == http2.OVERSIZE:
                self.session.send_trailers(
                    stream,
                    status_block(
                        GrpcCode.RESOURCE_EXHAUSTED,
                        f"the request's headers are larger than the limit of {MAX_HEADER_LIST}",
                        alone=True,
                    ),
                )
            else:
                _often.warning(self.host, "%s closed: %s", self, payload.message)
                self._end_all()

    def _handle_rest(self) -> None:
        events = list(self._events)
        if not events:  # the connection is gone
            return
        server = self.server
        self._events.clear()
        server.waiting -= 1
        full = server.overload.waiting_bytes > server.limits.max_request_bytes
        self.waited = inf if full else server.clock() - self._since
        self._flushing = True
        self._handle(events)
        self.waited = 0.0
        self.flush()
        if not self._events:
            self._count(-self._size)
            if not self.session.corked:
                self._read(True)

    def _count(self, size: int) -> None:
        """So many bytes more wait, or fewer."""
        self._size += size
        self.server.overload.waiting_bytes += size

    @property
    def host(self) -> str:
        """Its address without the port."""
        return self.peer.rpartition(":")[0]

    def _request(self, stream: Stream, whole: bool) -> None:
        headers = stream.headers
        refusal: Block | None = None
        if headers[b":method"] != b"POST":
            refusal = _NO_POST
        elif not _is_grpc(headers.get(b"content-type", b"")):
            refusal = _NO_GRPC
        else:
            path = headers[b":path"]
            rpc = self.server.rpcs.get(path)
            encoding = headers.get(b"grpc-encoding", b"identity")
            if rpc is None:
                name = path[:256].decode("latin-1")
                refusal = status_block(GrpcCode.UNIMPLEMENTED, f"there is no method {name}", True)
            elif encoding not in ENCODINGS:
                name = encoding[:64].decode("latin-1")
                refusal = status_block(
                    GrpcCode.UNIMPLEMENTED, f"messages compressed with {name} are not read", True, _ACCEPTED
                )
            elif self.server.closing:
                refusal = status_block(GrpcCode.UNAVAILABLE, "the server closes", True)
            else:
                try:
                    call = Call(self, stream, rpc)
                except RpcError as error:
                    refusal = status_block(error.code, error.message, True)
                else:
                    stream.owner = call
                    call.begin()
                    if whole:
                        call.feed(b"", True)
                    return
        self.session.send_trailers(stream, refusal)

    def _end_all(self) -> None:
        """The connection is over, and with it all calls."""
        for stream in list(self.session.streams.values()):
            if stream.owner is not None:
                stream.owner.cancel()
        self.session.streams.clear()

    # --- writing ----------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write what there is, with all that comes in this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self.server.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what there is."""
        self._flushing = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        session = self.session
        if session.has_output:
            transport.write(b"".join(session.take()))
        if session.closed or (session.leaving and not session.streams):
            transport.close()

    def _read(self, on: bool) -> None:
        transport = self._transport
        if on is not self._reading and transport is not None and not transport.is_closing():
            self._reading = on
            transport.resume_reading() if on else transport.pause_reading()

    # --- the server's -----------------------------------------------------------------------------------------

    def look(self, now: float, patience: float) -> None:
        """Four times in the idle time, ``patience``."""
        transport = self._transport
        if transport is None:
            return
        session = self.session
        looks = self._idle_looks
        self._idle_looks = looks + 1
        if transport.is_closing() or session.corked:
            if looks >= _LOOKS_TO_END:
                _log.warning("%s reads nothing; dropped", self)
                transport.abort()
            return
        if not session.streams:
            if looks == _LOOKS_TO_END:
                _log.info("%s closed: nothing came from it within the idle time", self)
                self.drain()  # what it sends in this moment is served
            elif looks > _LOOKS_TO_END:
                self.close()
            return
        if looks == _LOOKS_TO_PING:
            session.ping(_KEEPALIVE)
        elif looks >= _LOOKS_TO_END:
            _log.warning("%s dropped: it does not answer", self)
            transport.abort()
            return
        for stream in list(session.streams.values()):
            if stream.owner is not None:
                stream.owner.look(now, patience)
            if stream.pending is not None:
                stream.stalls += 1
                if stream.stalls > _LOOKS_TO_END:
                    session.reset(stream, ErrorCode.CANCEL)
                    if stream.owner is not None:
                        stream.owner.cancel()
        self.flush_soon()

    def drain(self) -> None:
        """Take no more calls; those under way go on."""
        if self.session.greeted:
            self.session.drain()
            self.flush_soon()
        else:
            self.close()

    def end_calls(self) -> None:
        """Those that are still under way."""
        for stream in list(self.session.streams.values()):
            if stream.owner is not None:
                stream.owner.end(GrpcCode.UNAVAILABLE, "the server closes")

    def close(self) -> None:
        """Close after what was written has been sent."""
        self.session.refuse_more()
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


def _is_grpc(content_type: bytes) -> bool:
    return content_type == b"application/grpc" or content_type.startswith((b"application/grpc+", b"application/grpc;"))
