"""Standard JSON: orjson where it is installed, else the standard library.

Spark's workers run the connector from a zip file with no more than pyspark, pyarrow and numpy, so orjson may be missing
there. Both read and write the same RocketMQ texts; they differ on input that no peer sends, such as lone surrogates.

Pure. Corresponds to RemotingSerializable.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


def plain_loads(data: Buffer | str) -> Any:
    """``loads`` of the standard library."""
    try:
        return json.loads(data if isinstance(data, str) else str(data, "utf-8"), parse_constant=_reject)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _reject(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def plain_dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """``dumps`` of the standard library."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys).encode()
    except (ValueError, RecursionError) as error:
        raise TypeError(f"not JSON: {error}") from None


try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

#: The value of a text; ValueError if it is not standard JSON in UTF-8.
loads = plain_loads if orjson is None else orjson.loads
#: UTF-8 without blanks, in the order of the dicts, whose keys must be strings; TypeError if JSON cannot express it.
dumps = plain_dumps if orjson is None else orjson.dumps


def dumps_sorted(value: Any) -> bytes:
    """``dumps`` with sorted keys, which may be numbers."""
    if orjson is None:
        return plain_dumps(value, sort_keys=True)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
