"""A certificate authority for tests: its certificate and the issued ones are PEM files in one directory.

Keys use the curve P-256 and are stored unencrypted beside the certificates unless a password is given: use this for
tests only. ``tls_of`` creates settings for servers and their clients.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spark_rocket.remoting.tls.settings import TlsSettings

HOSTS = ("localhost", "127.0.0.1", "::1")
_PEM = serialization.Encoding.PEM


class CertificateFiles(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class CertificateAuthority:
    """``CertificateAuthority(directory).issue("broker")``"""

    def __init__(self, directory: Path | str, name: str = "ca") -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.certificate = self._directory / f"{name}.pem"
        """The authority's certificate, for peers that trust it."""
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        own = (
            self._builder(self._name, self._key.public_key(), _now() - timedelta(days=1), _now() + timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(own.public_bytes(_PEM))

    def issue(
        self,
        name: str,
        hosts: Iterable[str] = HOSTS,
        *,
        begins: datetime | None = None,
        ends: datetime | None = None,
        password: str = "",
    ) -> CertificateFiles:
        """Issue a certificate, for servers and clients, for these names and addresses; existing files are replaced."""
        key = ec.generate_private_key(ec.SECP256R1())
        begins = begins or _now() - timedelta(days=1)
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        issued = (
            self._builder(_name(name), key.public_key(), begins, ends or _now() + timedelta(days=365))
            .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
            .add_extension(usages, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password.encode())
        pair = CertificateFiles(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        pair.certificate.write_bytes(issued.public_bytes(_PEM))
        pair.key.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption))
        pair.key.chmod(0o600)
        return pair

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, begins: datetime, ends: datetime
    ) -> x509.CertificateBuilder:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(authority, critical=False)
        )


def tls_of(authority: CertificateAuthority, pair: CertificateFiles, given: TlsSettings | None = None) -> TlsSettings:
    """Settings of servers and clients that use this certificate and trust this authority."""
    certificate, key = map(str, pair)
    return replace(
        given or TlsSettings(enable=True),
        server_cert_path=certificate,
        server_key_path=key,
        server_trust_cert_path=str(authority.certificate),
        client_trust_cert_path=str(authority.certificate),
        client_cert_path=certificate,
        client_key_path=key,
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _now() -> datetime:
    return datetime.now(UTC)
