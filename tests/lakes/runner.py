"""Runs micro-batches of a recipe in processes that a test can kill: ``python -m tests.lakes.runner FORMAT``.

The libraries are imported once. For each line on standard input, a JSON object, a forked process prints its number,
waits for a line, and runs the micro-batch; then the exit status of the process is printed.

``kill_at``: the step before which an Iceberg process kills itself (``stopping.py``). A Delta process is killed by the
object store of the test. ``is_late``: another driver writes the micro-batch after this one has read the table.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pyarrow as pa

from tests.kit.pages import examples

COLUMNS = pa.schema([("id", pa.int64()), ("item", pa.string()), ("price", pa.float64())])
PAGE = "docs/recipes/lakes.md"


def recipe(form: str) -> dict[str, Any]:
    """The functions of the recipe, as they are on its page, or those of the job."""
    if form == "changes":
        import jobs.changes

        return vars(jobs.changes)
    blocks = [block.code for block in examples(PAGE) if "def append_once(" in block.code]
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    exec(blocks[form == "iceberg"], names)
    return names


def delta_table(order: dict[str, Any]) -> Any:
    from deltalake import DeltaTable

    DeltaTable.create(order["table"], COLUMNS, mode="ignore", storage_options=order["options"])
    return DeltaTable(order["table"], storage_options=order["options"])


def iceberg_table(order: dict[str, Any]) -> Any:
    from tests.lakes.stopping import STEPS, Catalog

    folder = order["table"]
    files = {"warehouse": f"file://{folder}", "py-io-impl": "tests.lakes.stopping.Files"}
    catalog = Catalog("lake", uri=f"sqlite:///{folder}/catalog.db", **files)
    catalog.create_namespace_if_not_exists("shop")
    catalog.create_table_if_not_exists("shop.orders", COLUMNS, properties={"commit.retry.num-retries": "0"})
    table = catalog.load_table("shop.orders")
    STEPS.begin(order.get("kill_at"))
    return table


def changed_table(order: dict[str, Any]) -> Any:
    from jobs.changes import create_table

    return create_table(order["table"], order["options"])


TABLES = {"delta": delta_table, "iceberg": iceberg_table, "changes": changed_table}


def rows_of(order: dict[str, Any]) -> pa.Table:
    if order["step"] == "apply_once":
        rows = pa.Table.from_pylist(order["rows"], COLUMNS.append(pa.field("op", pa.string())))
        price = rows.schema.get_field_index("price")
        return rows.set_column(price, "price", rows["price"].cast(pa.decimal128(10, 2)))
    return pa.Table.from_pylist(order["rows"], COLUMNS)


def run(form: str, order: dict[str, Any], names: dict[str, Any]) -> None:
    table = TABLES[form](order)
    if order["step"] == "read":
        rows = table.scan().to_arrow() if form == "iceberg" else table.to_pyarrow_table()
        rows = rows.select(COLUMNS.names).cast(COLUMNS)
        print(json.dumps(rows.to_pylist()), flush=True)
        return
    given = (rows_of(order), order["query"], order["batch"])
    if order.get("is_late"):
        names[order["step"]](TABLES[form](order), *given)
    names[order["step"]](table, *given)


def main() -> None:
    form = sys.argv[1]
    names = recipe(form)
    import pandas  # noqa: F401  # as Arrow does for its first rows

    if form == "iceberg":
        import tests.lakes.stopping  # noqa: F401
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                print(os.getpid(), flush=True)
                assert os.read(0, 3) == b"go\n"
                run(form, json.loads(line), names)
                status = 0
            except Exception as error:
                print(json.dumps(str(error)), flush=True)
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
