"""A certificate for TLS that nobody has signed but itself, for an endpoint that is given none.

RocketMQ 5's clients for Java and Go call with TLS unless they are told otherwise, and trust whatever they meet:
Apache's proxy has such a certificate for them too. It keeps nobody from listening who can put himself in between.

The key is of the curve P-256. The library that makes it is loaded when one is made.

Stateless. Corresponds to io.netty.handler.ssl.util.SelfSignedCertificate, and to
``tlsTestModeEnable`` of org.apache.rocketmq.proxy.config.ProxyConfig.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

_DAYS = 3650
_NAME = "spark_rocket"


class KeyPair(NamedTuple):
    """Both as PEM."""

    certificate: bytes
    key: bytes


def self_signed(hosts: Iterable[str], now: datetime | None = None) -> KeyPair:
    """A certificate for these names and addresses, good from the day before ``now`` for ten years."""
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
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(certificate.public_bytes(pem), private)
