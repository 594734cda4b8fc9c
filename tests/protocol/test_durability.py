"""What an acknowledgement of a broker guarantees, by its settings."""

from __future__ import annotations

import pytest

from spark_rocket.protocol.durability import durability


@pytest.mark.parametrize(
    ("flush", "role", "on_disk", "on_slave"),
    [
        ("ASYNC_FLUSH", "ASYNC_MASTER", False, False),
        ("SYNC_FLUSH", "ASYNC_MASTER", True, False),
        ("ASYNC_FLUSH", "SYNC_MASTER", False, True),
        ("SYNC_FLUSH", "SYNC_MASTER", True, True),
        ("SYNC_FLUSH", "SLAVE", True, False),
        ("", "", False, False),
        ("unknown", "unknown", False, False),
    ],
)
def test_guarantees(flush: str, role: str, on_disk: bool, on_slave: bool) -> None:
    found = durability(flush, role)
    assert found == (on_disk, on_slave)
    assert found.is_durable is (on_disk or on_slave)
