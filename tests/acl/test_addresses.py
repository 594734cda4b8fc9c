"""Patterns of addresses in white lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.acl.addresses import AddressPattern, parts_of


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", ["10.0.0.1", "fe80::1", "somewhere"], []),
        ("*.*.*.*", ["10.0.0.1"], []),
        ("*:*:*:*:*:*:*:*", ["fe80::1"], []),
        ("10.0.0.7", ["10.0.0.7", "::ffff:10.0.0.7"], ["10.0.0.70", "10.0.0.8", "::1"]),
        ("10.0.0.7, 10.0.0.9", ["10.0.0.7", "10.0.0.9"], ["10.0.0.8"]),
        ("10.0.0.{7,9}", ["10.0.0.7", "10.0.0.9"], ["10.0.0.8", "10.0.1.7"]),
        ("10.0.0.*", ["10.0.0.0", "10.0.0.255"], ["10.0.1.0"]),
        ("10.0.*.*", ["10.0.9.9"], ["10.1.9.9"]),
        ("10.0.0.5-20", ["10.0.0.5", "10.0.0.20"], ["10.0.0.4", "10.0.0.21"]),
        ("10.1-3.*.*", ["10.2.9.9"], ["10.4.9.9"]),
        ("10.1-3.0.7", ["10.2.0.7"], ["10.2.9.9"]),
        ("fe80::7", ["fe80::7", "FE80:0:0:0:0:0:0:7", "fe80::7%eth0", "[fe80::7]"], ["fe80::8", "10.0.0.7"]),
        ("fe80::{7,a}", ["fe80::7", "fe80::a"], ["fe80::8"]),
        ("1050:0:0:0:5:600:300c:*", ["1050::5:600:300c:ffff"], ["1050::5:600:300d:1"]),
        ("5::7:6:1-200:*", ["5::7:6:200:9", "5::7:6:1:0"], ["5::7:6:201:9"]),
        ("::1", ["::1"], ["::2", "127.0.0.1"]),
        ("1::", ["1::"], ["1::1"]),
    ],
)
def test_patterns(pattern: str, inside: list[str], outside: list[str]) -> None:
    found = AddressPattern(pattern)
    for address in inside:
        assert found.matches(parts_of(address)), address
    for address in outside:
        assert not found.matches(parts_of(address)), address


@pytest.mark.parametrize(
    "pattern",
    ["", "10.0.0", "10.0.0.256", "10.0.0.-5", "10.0.0.9-5", "10.0.0.{}", "10.{1,2}.0.1", "10.0.0.0/8", "host", "1:2",
     "::1::2", "10.0.0.7,", "g::1", "10.0.0.²", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7::8", "10.0.0.1-2-3", "12345::1"],
)  # fmt: skip
def test_invalid_patterns(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        AddressPattern(pattern)


@given(st.text(st.sampled_from("0123456789abcdef.:*-{},/ "), max_size=20), st.ip_addresses().map(str))
def test_any_text_is_a_pattern_or_no_value(text: str, address: str) -> None:
    try:
        AddressPattern(text).matches(parts_of(address))
    except ValueError:
        pass


@given(st.ip_addresses().map(str))
def test_an_address_is_a_pattern_of_itself(address: str) -> None:
    assert AddressPattern(address).matches(parts_of(address))
