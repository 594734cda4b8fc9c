"""Addresses as records and message ids hold them: 4 or 16 bytes of IP, then the port in 4 bytes, big endian.

Thread-safety: pure functions behind small caches. Corresponds to common.message.MessageExt's socketAddress2ByteBuffer.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from spark_rocket.errors import ProtocolError

IPV4_HOST_SIZE = 8
IPV6_HOST_SIZE = 20

_PORT = struct.Struct(">i")
_IPV4_HOST = struct.Struct(">BBBBi")


@lru_cache(maxsize=4096)
def pack_host(host: tuple[str, int]) -> bytes:
    """``("127.0.0.1", 10911)`` as 8 bytes, an IPv6 address as 20. Names are not looked up."""
    address, port = host
    try:
        return ip_address(address.partition("%")[0]).packed + _PORT.pack(port)  # a scope ("%eth0") is local knowledge
    except (ValueError, AttributeError, struct.error):
        raise ProtocolError(
            f"{host!r} is not an IP address with a port.", remedy="Give a numeric IPv4 or IPv6 address."
        ) from None


@lru_cache(maxsize=4096)
def unpack_host(raw: bytes) -> tuple[str, int]:
    """The reverse of ``pack_host``, told apart by length."""
    if len(raw) == IPV4_HOST_SIZE:
        a, b, c, d, port = _IPV4_HOST.unpack(raw)
        return f"{a}.{b}.{c}.{d}", port
    if len(raw) == IPV6_HOST_SIZE:
        return IPv6Address(raw[:16]).compressed, _PORT.unpack_from(raw, 16)[0]
    raise ProtocolError(
        f"A host of {len(raw)} bytes is neither IPv4 (8) nor IPv6 (20).",
        remedy="The record or id that it is from is damaged: read it again.",
    )


def parse_host(text: str) -> tuple[str, int]:
    """``"127.0.0.1:10911"`` or ``"[::1]:10911"`` as a pair. The address part may be a name."""
    address, colon, port = text.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if not colon or not address or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65_535:
        raise ProtocolError(f"{text!r} is not host:port.", remedy="Write it like 127.0.0.1:10911.")
    return address, int(port)
