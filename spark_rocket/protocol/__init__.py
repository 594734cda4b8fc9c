"""RocketMQ's bytes: requests, messages, filters, files. Pure functions and immutable values, except where a module says
otherwise; no I/O.
"""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What encoders and decoders accept without a copy. ``collections.abc.Buffer`` needs Python 3.12."""
