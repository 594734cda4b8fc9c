"""grpcio's TLS credentials for the gRPC port, reloaded when their files change.

grpcio asks for the certificate at each handshake. The files are those of ``ServerTls``, which compares and validates
them: invalid files change nothing. TLS 1.2 and 1.3. grpcio logs no reason for a failed handshake, and neither requests
client certificates without requiring them nor disables session tickets.

Thread-safety: grpcio calls the fetcher in threads of its own.
Corresponds to org.apache.rocketmq.proxy.grpc.ProxyAndTlsProtocolNegotiator.
"""

from __future__ import annotations

from pathlib import Path

import grpc

from spark_rocket.common.files import read_file
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.settings import ClientAuth


class _Certificates:
    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._trusted = tls.settings.server_trust_cert_path
        self._used = tls.context()

    def current(self) -> grpc.ServerCertificateConfiguration:
        pair = self._tls.key_pair()
        trusted = read_file(Path(self._trusted).expanduser()) if self._trusted else None
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], trusted)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the certificates if they have changed since the last call; None if not."""
        context = self._tls.context()
        if context is self._used:
            return None
        found = self.current()
        self._used = context
        return found


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Return the credentials of the port. ConfigError for a setting that grpcio does not have."""
    auth = tls.settings.need_client_auth
    if auth is ClientAuth.OPTIONAL:
        raise ConfigError(
            "tls.server.need.client.auth=optional is not supported on the gRPC port.",
            remedy="Set it to none or require for the proxy.",
        )
    certificates = _Certificates(tls)
    return grpc.dynamic_ssl_server_credentials(
        certificates.current(), certificates.changed, require_client_authentication=auth is ClientAuth.REQUIRE
    )
