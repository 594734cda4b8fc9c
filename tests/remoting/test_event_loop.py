"""Event loops in a process whose parent has closed standard streams."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.live


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_loop_does_not_get_the_number_of_a_standard_stream(closed: int) -> None:
    """libuv aborts the process that closes such a descriptor. The command line is not the only user of loops."""
    program = f"""
import os
os.close({closed})
from spark_rocket.remoting.event_loop import new_event_loop
new_event_loop().close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
