"""The type of bytes that encoders and decoders accept without a copy. ``collections.abc.Buffer`` needs Python 3.12."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
