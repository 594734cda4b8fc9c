"""A small HTTP server for metrics and health: GET and HEAD of a few paths, on a server's event loop.

=====================  ==============================================================================================
peer                   server
=====================  ==============================================================================================
sends a long header    responds with 431 above ``MAX_HEADER_BYTES`` bytes
sends it slowly        closes after ``HEADER_SECONDS``; the same limit applies to the TLS handshake
does not read          closes after ``WRITE_SECONDS``
opens connections      above ``MAX_CONNECTIONS`` closes the oldest one with an incomplete request; the new one if there
                       is none, or if descriptors are scarce
sends a body           ignores it: every response ends its connection
uses another host      responds with 403 if it listens on loopback: protects against DNS rebinding by web pages
=====================  ==============================================================================================

Nothing is stored on disk. Corresponds to io.opentelemetry's PrometheusHttpServer, which Apache's broker starts for
metricsExporterType=PROM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from spark_rocket.remoting.address import format_address, format_peer, is_loopback
from spark_rocket.remoting.server.sockets import cannot_listen, leaves_reserve

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES = 8 * 1024
HEADER_SECONDS = 5.0
WRITE_SECONDS = 30.0
MAX_CONNECTIONS = 64

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(slots=True)
class HttpResponse:
    """The response of a path."""

    body: bytes = b""
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: Any, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
        return cls(json.dumps(value, ensure_ascii=False).encode() + b"\n", JSON, status)


HttpRoute = Callable[[], Awaitable[HttpResponse]]


class _BadRequestError(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class HttpServer:
    """Serves ``routes`` by path. ``ssl`` enables HTTPS."""

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, HttpRoute],
        *,
        name: str = "HTTP server",
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        self.host = host
        self.routes = dict(routes)
        self.name = name
        self._asked_port = port
        self._ssl = ssl
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._incomplete: dict[asyncio.StreamWriter, None] = {}  # with an incomplete request, the oldest first

    @property
    def port(self) -> int:
        """The actual port, also if the configured one is 0."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return f"{'https' if self._ssl else 'http'}://{format_address(self.host, self.port)}"

    async def start(self) -> None:
        """Listen. ConfigError if the port is in use or the host is not an address of this machine."""
        try:
            self._server = await asyncio.start_server(
                self._serve,
                self.host or None,
                self._asked_port,
                limit=MAX_HEADER_BYTES,
                ssl=self._ssl,
                ssl_handshake_timeout=HEADER_SECONDS if self._ssl is not None else None,
                backlog=64,
            )
        except OSError as error:
            raise cannot_listen(self.host, self._asked_port, error, self.name) from error

    async def close(self) -> None:
        """Stop listening, and drop all connections."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = format_peer(writer.get_extra_info("peername"))
        within_budget = leaves_reserve(writer.get_extra_info("socket"), self.name, peer)
        if not within_budget or (len(self._connections) >= MAX_CONNECTIONS and not self._close_oldest()):
            writer.transport.abort()
            return
        self._connections.add(writer)
        self._incomplete[writer] = None
        try:
            async with asyncio.timeout(HEADER_SECONDS):
                head = await self._head(reader)
            self._incomplete.pop(writer, None)
            if head is None:
                return
            method, response = await self._respond(head)
            if writer.is_closing():  # replaced by another or disconnected: uvloop raises RuntimeError for a write
                return
            writer.write(_encode(method, response))
            async with asyncio.timeout(WRITE_SECONDS):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, ssl_module.SSLError) as error:
            logger.debug("%s: connection dropped: %s", self.name, error)
        finally:
            self._incomplete.pop(writer, None)
            self._connections.discard(writer)
            writer.transport.abort()  # close() would wait for a peer that does not read

    def _close_oldest(self) -> bool:
        """Close the oldest connection with an incomplete request, if there is one, to make room; return whether it did.

        Otherwise silent connections could lock out Prometheus.
        """
        writer = next(iter(self._incomplete), None)
        if writer is None:
            return False
        del self._incomplete[writer]
        self._connections.discard(writer)
        writer.transport.abort()
        return True

    @staticmethod
    async def _head(reader: asyncio.StreamReader) -> bytes | _BadRequestError | None:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            return _BadRequestError(HTTPStatus.BAD_REQUEST, "the header has no end") if error.partial else None
        except asyncio.LimitOverrunError:
            return _BadRequestError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the header is longer than {MAX_HEADER_BYTES} bytes"
            )

    async def _respond(self, head: bytes | _BadRequestError) -> tuple[str, HttpResponse]:
        method = "GET"
        try:
            if isinstance(head, _BadRequestError):
                raise head
            method, path, headers = _parse(head)
            self._check_host(headers.get("host"))
            route = self.routes.get(path)
            if route is None:
                known = " ".join(sorted(self.routes))
                raise _BadRequestError(HTTPStatus.NOT_FOUND, f"unknown path {path[:100]}, use one of: {known}")
            return method, await route()
        except _BadRequestError as error:
            response = HttpResponse(f"{error}\n".encode(errors="replace"), status=error.status)
            if error.status is HTTPStatus.METHOD_NOT_ALLOWED:
                response.headers["Allow"] = "GET, HEAD"
            return method, response
        except Exception as error:
            logger.exception("%s failed", self.name)
            text = f"{type(error).__name__}: see the server's log\n".encode()
            return method, HttpResponse(text, status=HTTPStatus.INTERNAL_SERVER_ERROR)

    def _check_host(self, host: str | None) -> None:
        if host is None or not is_loopback(self.host):
            return
        name = urlsplit(f"//{host}").hostname if _is_host(host) else None
        if name is None or not is_loopback(name):
            raise _BadRequestError(HTTPStatus.FORBIDDEN, "invalid Host header: use 127.0.0.1 or localhost")


def _is_host(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return urlsplit(f"//{text}").netloc == text and "@" not in text
    return False


def _parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    lines = head[:-4].decode("latin-1").split("\r\n")
    request = lines[0].split(" ")
    if len(request) != 3 or not request[2].startswith("HTTP/1."):
        raise _BadRequestError(HTTPStatus.BAD_REQUEST, "the first line is not an HTTP/1.0 or 1.1 request")
    method, target, version = request
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or "\n" in line or "\r" in line:
            raise _BadRequestError(HTTPStatus.BAD_REQUEST, "invalid header line")
        if name.lower() == "host" and "host" in headers:
            raise _BadRequestError(HTTPStatus.BAD_REQUEST, "duplicate Host header")
        headers[name.lower()] = value.strip()
    if version != "HTTP/1.0" and "host" not in headers:
        raise _BadRequestError(HTTPStatus.BAD_REQUEST, "the Host header is missing")
    if method not in ("GET", "HEAD"):
        raise _BadRequestError(HTTPStatus.METHOD_NOT_ALLOWED, f"{method[:20]} is not supported, use GET or HEAD")
    if not target.startswith("/"):
        raise _BadRequestError(HTTPStatus.BAD_REQUEST, "the path does not start with /")
    return method, target.partition("?")[0], headers


def _encode(method: str, response: HttpResponse) -> bytes:
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Connection": "close",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head if method == "HEAD" else head + response.body
