"""Certificates for the tests of a folder, made once; servers and clients that use them."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spark_rocket.remoting.tls.contexts import ServerTls
from spark_rocket.remoting.tls.settings import ClientAuth, TlsMode, TlsSettings
from spark_rocket.testing.certificates import CertificateAuthority, CertificateFiles

LIMIT = 30.0
PAST = datetime.now(UTC) - timedelta(days=1)


class Certificates:
    """A trusted and an untrusted authority, and their certificates."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = CertificateAuthority(directory)
        self.stranger = CertificateAuthority(directory / "stranger", "stranger")
        self.server = self.authority.issue("server")
        self.client = self.authority.issue("client", ["a-client"])
        self.expired = self.authority.issue("expired", begins=PAST - timedelta(days=9), ends=PAST)
        self.elsewhere = self.authority.issue("elsewhere", ["elsewhere.example"])
        self.strange = self.stranger.issue("strange")
        self.encrypted = self.authority.issue("encrypted", password="secret")

    def of_server(
        self,
        pair: CertificateFiles | None = None,
        *,
        mode: TlsMode = TlsMode.PERMISSIVE,
        auth: ClientAuth = ClientAuth.NONE,
        **more: Any,
    ) -> TlsSettings:
        certificate, key = pair or self.server
        return TlsSettings(
            mode=mode,
            server_cert_path=str(certificate),
            server_key_path=str(key),
            need_client_auth=auth,
            server_trust_cert_path=str(self.authority.certificate) if auth is not ClientAuth.NONE else "",
            **more,
        )

    def server_tls(self, pair: CertificateFiles | None = None, **settings: Any) -> ServerTls:
        return ServerTls(self.of_server(pair, **settings))

    def of_client(self, pair: CertificateFiles | None = None, *, trust: Path | None = None, **more: Any) -> TlsSettings:
        return TlsSettings(
            enable=True,
            client_trust_cert_path=str(trust or self.authority.certificate),
            client_cert_path="" if pair is None else str(pair.certificate),
            client_key_path="" if pair is None else str(pair.key),
            **more,
        )

    def openssl(self, pair: CertificateFiles | None = None) -> ssl.SSLContext:
        """A foreign client."""
        context = ssl.create_default_context(cafile=self.authority.certificate)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def dial(self, address: str, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        host, _, port = address.rpartition(":")
        raw = socket.create_connection((host, int(port)), timeout=LIMIT)
        try:
            return (context or self.openssl()).wrap_socket(raw, server_hostname=host)
        except BaseException:
            raw.close()
            raise
