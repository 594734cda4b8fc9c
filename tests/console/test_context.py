"""What a request says, as the API reads it."""

from __future__ import annotations

import pytest

from spark_rocket.console.context import Asked
from spark_rocket.console.trouble import Refused


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "9" * 5000, "x", [], {}, True, 1.5, -1, 2**63])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(Refused, match="count is"):
        Asked({}, {}, {"count": value}).number("count")


@pytest.mark.parametrize("value", [0, "7", 2**63 - 1])
def test_a_number(value: int | str) -> None:
    assert Asked({}, {}, {"count": value}).number("count") == int(value)
