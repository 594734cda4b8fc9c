"""Which columns of JSON bodies are numbers of which unit since 1970 (``jsonEpochUnits``), and the numbers of a batch.

Pure. Corresponds to nothing in Spark, whose ``from_json`` reads all numbers as seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_rocket.datasource.column_types import type_name
from spark_rocket.datasource.options.bodies import EpochUnit, EpochUnits
from spark_rocket.errors import SchemaError

DAY_MICROS = 86_400_000_000
# The years 0 to 9999. A number outside them has another unit.
YEARS = range(-719_528, 2_932_897)
_NANOS = {
    EpochUnit.SECONDS: 10**9,
    EpochUnit.MILLISECONDS: 10**6,
    EpochUnit.MICROSECONDS: 10**3,
    EpochUnit.NANOSECONDS: 1,
}


def unit_of(units: EpochUnits, path: str, kind: pa.DataType) -> EpochUnit | None:
    """Return the unit of a column or member; None: as in ``from_json``. The longest matching name decides."""
    named = [(len(name), unit) for name, unit in units.columns if _is_named(path, name)]
    if named:
        return max(named, key=lambda pair: pair[0])[1]
    return next((unit for unit in units.default if _can_have(kind, unit)), None)


def check_units(units: EpochUnits, columns: pa.Schema) -> None:
    """Reject names that no column of type date or timestamp has, and units that its type cannot have."""
    leaves = {path: kind for item in columns for path, kind in _leaves(item.type, item.name)}
    for name, unit in units.columns:
        kinds = {path: kind for path, kind in leaves.items() if _is_named(path, name)}
        if not kinds:
            raise SchemaError(
                f"option jsonEpochUnits names {name}, which is not a column of type date or timestamp.",
                remedy=f"Such columns: {', '.join(leaves) or 'none'}.",
            )
        for path, kind in kinds.items():
            if not _can_have(kind, unit):
                wanted = "days" if pa.types.is_date32(kind) else "s, ms, us or ns"
                raise SchemaError(
                    f"option jsonEpochUnits: the column {path} is {type_name(kind)}, which cannot count {unit.value}.",
                    remedy=f"Its unit can be {wanted}.",
                )


def micros(number: int, unit: EpochUnit) -> int | None:
    """Return microseconds since 1970; None outside of the years 0 to 9999."""
    found = number * _NANOS[unit] // 1000
    return found if found // DAY_MICROS in YEARS else None


def times(numbers: pa.Array, unit: EpochUnit, kind: pa.DataType) -> pa.Array:
    """Convert a batch of integers; OverflowError if one is outside of the years 0 to 9999."""
    found = numbers.fill_null(0).to_numpy()
    ends = [int(found.min()), int(found.max())] if len(found) else []
    if unit is EpochUnit.DAYS:
        if any(end not in YEARS for end in ends):
            raise OverflowError("some date is far from 1970")
        made = found.astype(np.int32)
    else:
        if any(micros(end, unit) is None for end in ends):
            raise OverflowError("some time is far from 1970")
        made = found // 1000 if unit is EpochUnit.NANOSECONDS else found * (_NANOS[unit] // 1000)
    return pa.array(made, mask=numbers.is_null().to_numpy(zero_copy_only=False)).cast(kind)


def _is_named(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _can_have(kind: pa.DataType, unit: EpochUnit) -> bool:
    return bool(pa.types.is_date32(kind) if unit is EpochUnit.DAYS else pa.types.is_timestamp(kind))


def _leaves(kind: pa.DataType, path: str) -> Iterator[tuple[str, pa.DataType]]:
    types = pa.types
    if types.is_struct(kind):
        for item in kind:
            yield from _leaves(item.type, f"{path}.{item.name}")
    elif types.is_list(kind):
        yield from _leaves(kind.value_type, f"{path}.element")
    elif types.is_map(kind):
        yield from _leaves(kind.item_type, f"{path}.value")
    elif types.is_date32(kind) or types.is_timestamp(kind):
        yield path, kind
