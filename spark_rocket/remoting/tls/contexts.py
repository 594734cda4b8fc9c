"""OpenSSL contexts, reloaded when their files change.

Time, size and inode of the files are compared for each new connection, so that a new certificate is used for the next
connection, and open ones continue. Invalid files change nothing: the old context remains, and the reason is logged.
Certificate and key are two files that are rarely replaced in one step; the second replacement fixes a mismatch.

TLS 1.2 and 1.3, without renegotiation (rejected by OpenSSL) and without tickets, so that a client whose CA is no longer
trusted cannot resume a session.

Thread-safety: all methods. Corresponds to org.apache.rocketmq.remoting.netty.TlsHelper and
org.apache.rocketmq.srvutil.FileWatchService.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from spark_rocket.common.files import read_file
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.tls.settings import ClientAuth, TlsMode, TlsSettings, Verify

_log = logging.getLogger(__name__)

_AUTH = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}
_SELF_SIGNED_DAYS = 3650
_REMEDY = "Use PEM files: the certificate chain, and its private key."


class _Reloaded:
    """A context that is reloaded when its files change."""

    def __init__(self, *files: str) -> None:
        self._files = [Path(file).expanduser() for file in files if file]
        self._seen = self._stamps()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        stamps = self._stamps()
        if stamps != self._seen:
            self._seen = stamps
            names = ", ".join(map(str, self._files))
            try:
                self._context = self._load()
            except ConfigError as error:
                _log.warning("TLS files not reloaded: %s: %s", names, error.message)
            else:
                _log.info("TLS files reloaded: %s", names)
        return self._context

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        found: list[tuple[int, int, int] | None] = []
        for file in self._files:
            try:
                stat = file.stat()
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError:
                found.append(None)
        return found

    def _load(self) -> ssl.SSLContext:
        """Create a context from the current files."""
        raise NotImplementedError


class ServerTls(_Reloaded):
    """The server side: its mode, and a context for each connection. ConfigError for unusable files."""

    def __init__(self, settings: TlsSettings, hosts: Iterable[str] = ()) -> None:
        """``hosts``: the names of a self-signed certificate in test mode."""
        self.mode = settings.server_mode
        self.settings = settings
        self._hosts = tuple(dict.fromkeys(hosts))
        super().__init__(settings.server_cert_path, settings.server_key_path, settings.server_trust_cert_path)

    def context(self) -> ssl.SSLContext:
        return super().context() if self.settings.server_cert_path else self._own

    def key_pair(self) -> KeyPair:
        """Return the certificate chain and the decrypted key, for libraries that do not take a context."""
        settings = self.settings
        if not settings.server_cert_path:
            return self._self_signed
        certificate, key = (
            read_file(Path(path).expanduser()) for path in (settings.server_cert_path, settings.server_key_path)
        )
        return KeyPair(certificate, _decrypted(key, settings.server_key_password) if b"ENCRYPTED" in key else key)

    @cached_property
    def _self_signed(self) -> KeyPair:
        return self_signed(self._hosts or ("localhost", "127.0.0.1", "::1"))

    @cached_property
    def _own(self) -> ssl.SSLContext:
        """With a self-signed certificate: its library is imported for the first connection that needs it."""
        context = self._load()
        pair = self._self_signed
        # OpenSSL needs files; the directory is readable only by this user.
        with TemporaryDirectory(prefix="rocket-tls-") as directory:
            certificate, key = Path(directory, "certificate.pem"), Path(directory, "key.pem")
            certificate.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            context.load_cert_chain(certificate, key)
        return context

    def listening(self) -> ssl.SSLContext:
        """For ``create_server(ssl=…)``, which retains it: each connection uses the current files.

        Whether clients present certificates is fixed at the start.
        """

        def renew(sslobj: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            sslobj.context = self.context()

        listening = self._load() if self.settings.server_cert_path else self._own
        listening.sni_callback = renew
        return listening

    def _load(self) -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        settings = self.settings
        if settings.server_cert_path:
            _load_pair(
                context, settings.server_cert_path, settings.server_key_path, settings.server_key_password, "tls.server"
            )
        if settings.need_client_auth is not ClientAuth.NONE:
            _load_trust(context, settings.server_trust_cert_path, "tls.server.trustCertPath")
            context.verify_mode = _AUTH[settings.need_client_auth]
        return context


class ClientTls(_Reloaded):
    """The client side: a context for each connection. ConfigError for unusable files."""

    def __init__(self, settings: TlsSettings, *, alpn: Sequence[str] = ()) -> None:
        self.settings = settings
        self._alpn = alpn
        super().__init__(settings.client_trust_cert_path, settings.client_cert_path, settings.client_key_path)

    def _load(self) -> ssl.SSLContext:
        settings = self.settings
        context = _context(ssl.PROTOCOL_TLS_CLIENT, self._alpn)
        if settings.checks is not Verify.FULL:
            context.check_hostname = False
        if settings.checks is Verify.NONE:
            context.verify_mode = ssl.CERT_NONE
        elif settings.client_trust_cert_path:
            _load_trust(context, settings.client_trust_cert_path, "tls.client.trustCertPath")
        else:
            context.load_default_certs()
        if settings.client_cert_path:
            _load_pair(
                context, settings.client_cert_path, settings.client_key_path, settings.client_key_password, "tls.client"
            )
        return context


def server_tls(settings: TlsSettings, hosts: Iterable[str] = ()) -> ServerTls | None:
    """Return the TLS context of a server; None in mode ``disabled``."""
    return None if settings.server_mode is TlsMode.DISABLED else ServerTls(settings, hosts)


def client_tls(settings: TlsSettings | None) -> ClientTls | None:
    """Return the TLS context of a server's outgoing connections; None without TLS."""
    return ClientTls(settings) if settings is not None and settings.is_client else None


def _context(protocol: int, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def _load_pair(context: ssl.SSLContext, certificate: str, key: str, password: str, side: str) -> None:
    asked: list[bool] = []

    def give() -> str:
        asked.append(True)
        return password or "\0"

    paths = _readable(certificate, f"{side}.certPath"), _readable(key, f"{side}.keyPath")
    try:
        context.load_cert_chain(*paths, give)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        if reason == "KEY_VALUES_MISMATCH":
            problem = ConfigError(f"{key} is not the private key of {certificate}.", remedy="Use a matching pair.")
        elif asked and not password:
            problem = ConfigError(f"{key} is encrypted.", remedy=f"Set {side}.keyPassword.")
        elif asked:
            problem = ConfigError(f"{side}.keyPassword is not the password of {key}.", remedy="Correct the password.")
        else:
            problem = ConfigError(f"Cannot use {certificate} and {key} for TLS: {reason}.", remedy=_REMEDY)
        raise problem from None


def _load_trust(context: ssl.SSLContext, trusted: str, name: str) -> None:
    try:
        context.load_verify_locations(cafile=_readable(trusted, name))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name}={trusted} contains no CA certificate: {getattr(error, 'reason', None) or error}.",
            remedy="Use a PEM file with the certificates of the CAs.",
        ) from None


def _readable(file: str, name: str) -> Path:
    path = Path(file).expanduser()
    try:
        os.close(os.open(path, os.O_RDONLY))
        if path.is_dir():
            raise IsADirectoryError("it is a directory")
    except OSError as error:
        raise ConfigError(
            f"Cannot read {name}={file}: {error.strerror or error}.",
            remedy="Use a PEM file that the process can read.",
        ) from None
    return path


class KeyPair(NamedTuple):
    """A certificate and its key, both in PEM format."""

    certificate: bytes
    key: bytes


def _decrypted(key: bytes, password: str) -> bytes:
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(key, password.encode())
    return loaded.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def self_signed(hosts: Iterable[str], now: datetime | None = None) -> KeyPair:
    """Create a self-signed certificate for these names and addresses, valid from the day before ``now`` for ten years.

    RocketMQ 5's clients for Java and Go use TLS by default and trust any certificate: Apache's proxy uses such a
    certificate for them too (netty's SelfSignedCertificate). It does not protect against man-in-the-middle attacks. The
    key uses the curve P-256. The library is imported here, because few processes need it.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def alternative(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host.encode("idna").decode())

    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "spark_rocket")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(certificate.public_bytes(pem), private)
