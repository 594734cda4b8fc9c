"""Address patterns of white lists, in Apache's syntax.

=============================================  =======================================================================
``*``, ``*.*.*.*``, ``*:*:*:*:*:*:*:*``        every address
``10.0.0.7``, ``fe80::7``                      one address
``10.0.0.7,10.0.0.9``                          a list of addresses
``10.0.0.{7,9}``, ``fe80::{7,9}``              a list of values of the last part
``10.0.0.*``, ``10.0.*.*``, ``fe80:…:*``       every value of a part
``10.0.0.5-20``, ``fe80::1-ff``                a range of values of a part (IPv6: hexadecimal)
=============================================  =======================================================================

Each part of a pattern is a number, ``*``, a range or a list; an address matches if all of its parts match. (Apache's
broker ignores parts after the first range or ``*``: there ``10.1-3.0.7`` matches 10.2.9.9, but not here.)

Corresponds to org.apache.rocketmq.acl.plain.RemoteAddressStrategyFactory.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, ip_address

_EVERY = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_DECIMAL = re.compile(r"[0-9]{1,3}")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{1,4}")

Part = tuple[tuple[int, int], ...]  # ranges, first and last


class AddressPattern:
    """One entry of a white list. ValueError with the reason for an invalid one."""

    __slots__ = ("_alternatives", "_every")

    def __init__(self, text: str) -> None:
        text = text.strip()
        self._every = text in _EVERY
        self._alternatives: tuple[tuple[Part, ...], ...] = ()
        if self._every:
            return
        if "/" in text:
            raise ValueError("write networks with *, as in 10.0.*.*")
        texts = [text] if "{" in text else text.split(",")
        self._alternatives = tuple(_parts(one.strip()) for one in texts)

    def matches(self, parts: tuple[int, ...]) -> bool:
        """Whether the pattern matches an address, given as ``parts_of`` returns it."""
        if self._every:
            return True
        return any(
            len(pattern) == len(parts)
            and all(any(low <= value <= high for low, high in part) for part, value in zip(pattern, parts, strict=True))
            for pattern in self._alternatives
        )


def parts_of(address: str) -> tuple[int, ...]:
    """The parts of an address without port; empty, which only ``*`` matches, for other strings."""
    try:
        ip = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return ()
    if not isinstance(ip, IPv4Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    packed = ip.packed
    if len(packed) == 4:
        return tuple(packed)
    return tuple(packed[at] << 8 | packed[at + 1] for at in range(0, 16, 2))


def _parts(text: str) -> tuple[Part, ...]:
    if not text:
        raise ValueError("an address is empty")
    exact = parts_of(text)
    if exact:
        return tuple(((value, value),) for value in exact)
    if ":" not in text:
        texts = text.split(".")
        if len(texts) != 4:
            raise ValueError(f"{text!r} is not four numbers separated by dots, or eight separated by colons")
        return tuple(_part(one, 255, is_last=at == 3) for at, one in enumerate(texts))
    left, twice, right = text.partition("::")
    before, after = (side.split(":") if side else [] for side in (left, right))
    filled = ["0"] * (8 - len(before) - len(after)) if twice else []
    texts = [*before, *filled, *after]
    if len(texts) != 8 or "::" in right or (twice and not filled):
        raise ValueError(f"{text!r} does not have eight parts")
    return tuple(_part(one, 0xFFFF, is_last=at == 7) for at, one in enumerate(texts))


def _part(text: str, most: int, *, is_last: bool) -> Part:
    if text == "*":
        return ((0, most),)
    if text.startswith("{") and text.endswith("}") and is_last:
        return tuple((value, value) for value in (_number(one.strip(), most) for one in text[1:-1].split(",")))
    first, minus, last = text.partition("-")
    low = _number(first, most)
    high = _number(last, most) if minus else low
    if low > high:
        raise ValueError(f"the range {text} ends before it begins")
    return ((low, high),)


def _number(text: str, most: int) -> int:
    digits, base = (_DECIMAL, 10) if most == 255 else (_HEXADECIMAL, 16)
    if digits.fullmatch(text) is None or (value := int(text, base)) > most:
        raise ValueError(f"{text!r} is not 0 to {most:x}" if base == 16 else f"{text!r} is not 0 to 255")
    return value
