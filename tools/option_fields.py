"""The fields of parsed options that hold the value of one option, from the table. ``generated_tables`` writes them."""

from __future__ import annotations

import re
from pathlib import Path

from spark_rocket.datasource.options.table import OPTIONS, READS, VIEWS, WRITES, Option, Scope

MODULE = Path("spark_rocket/datasource/options/options.py")
_SCOPES = {"read": READS, "write": WRITES, "view": VIEWS}
_FIELDS = re.compile(rf"( +# <options of a ({'|'.join(_SCOPES)})>\n).*?( +# <end>\n)", re.DOTALL)


def written(text: str) -> str:
    """Return the text of the module with current fields."""
    return _FIELDS.sub(lambda found: found[1] + _fields(_SCOPES[found[2]]) + found[3], text)


def _fields(scopes: frozenset[Scope]) -> str:
    own = (option for option in OPTIONS if option.has_field and option.scopes & scopes)
    return "".join(f"    {option.field}: {_type(option)}\n" for option in own)


def _type(option: Option) -> str:
    """Return the type of the parser's result, or None without a default."""
    found: str = option.parse.__annotations__["return"]
    return found if option.default is not None or found.endswith(" | None") else f"{found} | None"
