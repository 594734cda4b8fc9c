"""Standard JSON: orjson where it is installed, the standard library where it is not.

Spark's workers need no more than pyspark, pyarrow and numpy to run the connector from a zip, so orjson is not there
for certain; what depends on it is how quick headers are, not what they say. Both ways take and refuse the same texts,
but that the library reads whole numbers beyond 64 bits, which orjson reads as floats.

Pure. Corresponds to RemotingSerializable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

loads: Callable[[Buffer | str], Any]
"""The value of a text; ValueError for what is not standard JSON in UTF-8."""
dumps: Callable[[Any], bytes]
"""UTF-8, no blanks, in the order of the dicts, whose keys must be strings; TypeError for what JSON cannot say."""
dumps_sorted: Callable[[Any], bytes]
"""The same with sorted keys, of which some may be numbers."""


def plain_loads(data: Buffer | str) -> Any:
    """``loads`` by the standard library alone."""
    text = data if isinstance(data, str) else str(data, "utf-8")
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_float)
        text.encode()  # which a lone surrogate does not let be; nor, escaped, one in the value
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is no number that a float can hold")
    return value


def plain_dumps(value: Any) -> bytes:
    """``dumps`` by the standard library alone."""
    return _encode(_checked(value, False, 0))


def plain_dumps_sorted(value: Any) -> bytes:
    """``dumps_sorted`` by the standard library alone."""
    return _encode(_checked(value, True, 0))


def _encode(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise TypeError("a text has a lone surrogate") from error


def _checked(value: Any, is_sorted: bool, depth: int) -> Any:
    """What orjson would write: no other keys, types or numbers than it takes."""
    if depth > 250:
        raise TypeError("it is nested too deeply")
    if isinstance(value, dict):
        if is_sorted:
            named = {_key(key): item for key, item in value.items()}
            return {key: _checked(named[key], True, depth + 1) for key in sorted(named)}
        if any(type(key) is not str for key in value):
            raise TypeError("a key is no text")
        return {key: _checked(item, False, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_checked(item, is_sorted, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(1 << 63) <= value < 1 << 64:
            raise TypeError("a whole number has more than 64 bits")
        return int(value)
    if value is None or isinstance(value, str | float | bool):
        return value
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool | int | float):
        return _encode(_checked(key, False, 0)).decode()
    raise TypeError(f"a {type(key).__name__} is no key")


try:
    import orjson
except ImportError:
    loads, dumps, dumps_sorted = plain_loads, plain_dumps, plain_dumps_sorted
else:
    loads, dumps = orjson.loads, orjson.dumps

    def _sorted_by_orjson(value: Any) -> bytes:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)

    dumps_sorted = _sorted_by_orjson
