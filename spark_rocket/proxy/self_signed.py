"""A certificate for TLS that nobody has signed but itself, for an endpoint that is given none.

RocketMQ 5's clients for Java and Go call with TLS unless they are told otherwise, and trust whatever they meet:
Apache's proxy has such a certificate for them too. It keeps nobody from listening who can put himself in between.

The key is of the curve P-256, made anew by each process and never written where it stays. Only the signature of the
certificate is made here, once, in some 20 ms; TLS itself is OpenSSL's.

Thread-safety: used on the event loop only. Corresponds to io.netty.handler.ssl.util.SelfSignedCertificate, and to
``tlsTestModeEnable`` of org.apache.rocketmq.proxy.config.ProxyConfig.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import secrets
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeAlias

from spark_rocket.proxy.listener import tls_context

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_Point: TypeAlias = tuple[int, int]

_DAYS = 3650
_NAME = "spark_rocket"
_ECDSA_SHA256 = "1.2.840.10045.4.3.2"
_EC_PUBLIC_KEY = "1.2.840.10045.2.1"
_PRIME256V1 = "1.2.840.10045.3.1.7"
_COMMON_NAME = "2.5.4.3"
_SUBJECT_ALT_NAME = "2.5.29.17"


class KeyPair(NamedTuple):
    """Both as PEM."""

    certificate: str
    key: str


class SelfSigned:
    """A TLS context with such a certificate, made when it is first asked for."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = tuple(dict.fromkeys(hosts))
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        if self._context is None:
            pair = self_signed(self._hosts)
            with TemporaryDirectory(
                prefix="rocket-tls-"
            ) as directory:  # OpenSSL reads files; only we may read this one
                certificate, key = Path(directory, "certificate.pem"), Path(directory, "key.pem")
                certificate.write_text(pair.certificate)
                key.write_text(pair.key)
                self._context = tls_context(certificate, key)
        return self._context


def self_signed(hosts: Iterable[str], now: datetime | None = None) -> KeyPair:
    """A certificate for these names and addresses, good from the day before ``now`` for ten years."""
    key = secrets.randbelow(_N - 1) + 1
    public = _multiply(key, _G)
    point = b"\x04" + public[0].to_bytes(32, "big") + public[1].to_bytes(32, "big")
    signed = _certified(point, hosts, now or datetime.now(UTC))
    algorithm = _sequence(_oid(_ECDSA_SHA256))
    certificate = _sequence(signed, algorithm, _bits(_signature(signed, key)))
    private = _sequence(
        _integer(1), _tlv(0x04, key.to_bytes(32, "big")), _tlv(0xA0, _oid(_PRIME256V1)), _tlv(0xA1, _bits(point))
    )
    return KeyPair(_pem("CERTIFICATE", certificate), _pem("EC PRIVATE KEY", private))


def _certified(point: bytes, hosts: Iterable[str], now: datetime) -> bytes:
    name = _sequence(_tlv(0x31, _sequence(_oid(_COMMON_NAME), _tlv(0x0C, _NAME.encode()))))
    known = b"".join(_alternative(host) for host in hosts)
    extensions = _sequence(_sequence(_oid(_SUBJECT_ALT_NAME), _tlv(0x04, _sequence(known))))
    return _sequence(
        _tlv(0xA0, _integer(2)),  # version 3
        _integer(secrets.randbits(63) + 1),
        _sequence(_oid(_ECDSA_SHA256)),
        name,
        _sequence(_time(now - timedelta(days=1)), _time(now + timedelta(days=_DAYS))),
        name,
        _sequence(_sequence(_oid(_EC_PUBLIC_KEY), _oid(_PRIME256V1)), _bits(point)),
        _tlv(0xA3, extensions),
    )


def _alternative(host: str) -> bytes:
    try:
        return _tlv(0x87, ipaddress.ip_address(host).packed)
    except ValueError:
        return _tlv(0x82, host.encode("idna"))


# --- ECDSA ------------------------------------------------------------------------------------------------------


def _signature(data: bytes, key: int) -> bytes:
    digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
    while True:
        nonce = secrets.randbelow(_N - 1) + 1
        r = _multiply(nonce, _G)[0] % _N
        s = pow(nonce, -1, _N) * (digest + r * key) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


def _multiply(times: int, point: _Point) -> _Point:
    found: _Point | None = None
    while times:
        if times & 1:
            found = point if found is None else _add(found, point)
        times >>= 1
        point = _add(point, point)
    assert found is not None  # for 0 < times < N
    return found


def _add(a: _Point, b: _Point) -> _Point:
    """Of points that are not each other's inverse, which no two in a multiplication of the generator are."""
    if a == b:
        slope = (3 * a[0] * a[0] - 3) * pow(2 * a[1], -1, _P) % _P
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _P) % _P
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


# --- DER --------------------------------------------------------------------------------------------------------


def _tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tlv(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _tlv(0x03, b"\x00" + content)


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    content = bytearray((first * 40 + second,))
    for number in rest:
        septets = [number & 0x7F]
        while number := number >> 7:
            septets.append(number & 0x7F | 0x80)
        content += bytes(reversed(septets))
    return _tlv(0x06, bytes(content))


def _time(moment: datetime) -> bytes:
    if moment.year < 2050:
        return _tlv(0x17, moment.strftime("%y%m%d%H%M%SZ").encode())
    return _tlv(0x18, moment.strftime("%Y%m%d%H%M%SZ").encode())


def _pem(what: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = "\n".join(text[start : start + 64] for start in range(0, len(text), 64))
    return f"-----BEGIN {what}-----\n{lines}\n-----END {what}-----\n"
