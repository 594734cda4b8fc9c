"""Blocking calls to a gRPC endpoint, of this package or of Apache's proxy, to check that it is serving.

Errors are ClientErrors. For a failed call, ``code`` is the name of the gRPC status code. Thread-safety: one thread.
"""

from __future__ import annotations

import os
import socket
import time
from ssl import DER_cert_to_PEM_cert, SSLSocket
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from spark_rocket.errors import ClientError
from spark_rocket.protocol.auth import Credentials, authorization_of
from spark_rocket.proxy import definitions
from spark_rocket.proxy.messaging import CLIENT_ID
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.tls.contexts import ClientTls
from spark_rocket.remoting.tls.problems import problem_of
from spark_rocket.remoting.tls.settings import TlsSettings

# HTTP/2's connection preface and an empty SETTINGS frame. A server responds with a SETTINGS frame, which has type 4.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_FRAME_HEADER_BYTES = 9
_TYPE = slice(3, 4)


def check_http2(endpoint: str, tls: TlsSettings | None, timeout: float) -> bytes:
    """Check for HTTP/2 and return the server's certificate (DER); empty without ``tls``. ClientError on failure."""
    host, port = parse_address(endpoint)
    try:
        with socket.create_connection((host, port), timeout) as sock:
            if tls is None:
                return _check_settings(sock)
            with ClientTls(tls, alpn=["h2"]).context().wrap_socket(sock, server_hostname=host) as secured:
                _check_settings(secured)
                return secured.getpeercert(True) or b""
    except OSError as error:
        if tls is None:
            raise _no_http2() from error
        problem = problem_of(error, server=False, name=host)
        raise ClientError(f"it {problem.text}", remedy=problem.remedy) from None


def _check_settings(sock: socket.socket | SSLSocket) -> bytes:
    sock.sendall(_PREFACE)
    with sock.makefile("rb") as reading:
        if reading.read(_FRAME_HEADER_BYTES)[_TYPE] != b"\x04":
            raise _no_http2()
    return b""


def _no_http2() -> ClientError:
    return ClientError("it does not speak gRPC", remedy="Use the port of a gRPC proxy (8081).")


class Probe:
    """Calls an endpoint, over TLS if the server's ``certificate`` (DER) is given."""

    def __init__(self, endpoint: str, certificate: bytes, credentials: Credentials | None, timeout: float) -> None:
        self._address = parse_address(endpoint)
        self._credentials = credentials
        self._timeout = timeout
        options = [("grpc.enable_http_proxy", 0)]
        if certificate:
            trusted = grpc.ssl_channel_credentials(DER_cert_to_PEM_cert(certificate).encode())
            self._channel = grpc.secure_channel(endpoint, trusted, options)
        else:
            self._channel = grpc.insecure_channel(endpoint, options)

    def close(self) -> None:
        self._channel.close()

    def health(self) -> str:
        """Return ``SERVING``, ``NOT_SERVING`` or ``UNKNOWN``."""
        found = health_pb2.HealthCheckResponse.FromString(self._call(f"/{health.SERVICE_NAME}/Check", b""))
        name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(found.status)
        return name

    def route(self, topic: str) -> Any:
        """Return the QueryRouteResponse of a topic."""
        host, port = self._address
        request = definitions.QueryRouteRequest(topic={"name": topic})
        request.endpoints.scheme = definitions.AddressScheme.Value("IPv6" if ":" in host else "IPv4")
        request.endpoints.addresses.add(host=host, port=port)
        raw = self._call(f"/{definitions.SERVICE}/QueryRoute", request.SerializeToString())
        return definitions.QueryRouteResponse.FromString(raw)

    def _call(self, method: str, request: bytes) -> bytes:
        metadata = [(CLIENT_ID, f"rocket-doctor@{os.getpid()}"), ("x-mq-language", "PYTHON")]
        if self._credentials is not None:
            now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            metadata += [("x-mq-date-time", now), ("authorization", authorization_of(self._credentials, now))]
        try:
            response: bytes = self._channel.unary_unary(method)(request, timeout=self._timeout, metadata=metadata)
        except grpc.RpcError as error:
            name = error.code().name
            raise ClientError(f"{method} failed with {name}: {error.details()}", code=name) from None
        return response
