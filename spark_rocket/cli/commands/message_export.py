"""``rocket message export``: write the messages of topics to a Parquet, Arrow, JSON lines or CSV file, without Spark.

The options, columns and errors are those of ``format("rocket")``. The file appears when it is complete
(output_file.py).

Exit status: 0 success, 1 failure, 2 invalid command line. Corresponds to mqadmin's printMsg, and to nothing else there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from spark_rocket.cli.arguments import PATH, moment, past, settings, whole
from spark_rocket.cli.commands.bench import Rates
from spark_rocket.cli.connect import Link, complete_topics, connection
from spark_rocket.cli.output_file import is_stream, output_file
from spark_rocket.cli.text import Bar
from spark_rocket.common.extras import requires
from spark_rocket.common.units import count_text

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_rocket.arrow import PlannedRead

_BY_ENDING = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}
_ROW_GROUP_BYTES = 64 << 20

Write = Callable[["pa.RecordBatch"], None]


@click.command("export")
@click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC", shell_complete=complete_topics, help="topic; repeatable"
)
@click.argument("file", type=PATH)
@click.option(
    "--format", "form", type=click.Choice([*dict.fromkeys(_BY_ENDING.values())]), help="default: by the ending of FILE"
)
@click.option("--start", metavar="POSITION", help="earliest (default), group, a time, 2h (ago), or offsets as JSON")
@click.option("--end", metavar="POSITION", help="latest (default), group, a time, 2h (ago), or offsets as JSON")
@click.option("--columns", metavar="NAMES", help="only these columns, separated by commas")
@click.option("--body-format", metavar="FORMAT", help="decode bodies: json, csv, avro, protobuf, arrow or text")
@click.option("--schema", metavar="DDL", help="the columns of the rows, as in 'id bigint, name string'")
@click.option("-o", "--option", "options", multiple=True, metavar="NAME=VALUE", help='an option of format("rocket")')
@click.option("--threads", type=whole(1, 64, "number of threads"), metavar="N", help="threads (one per CPU, at most 4)")
@connection
def export(
    link: Link,
    topics: tuple[str, ...],
    file: Path,
    form: str | None,
    start: str | None,
    end: str | None,
    columns: str | None,
    body_format: str | None,
    schema: str | None,
    options: tuple[str, ...],
    threads: int | None,
) -> int:
    """Write the messages of topics to a file: Parquet, Arrow, JSON lines or CSV. An existing file is replaced.

    \b
    rocket message export -t orders orders.parquet
    rocket message export -t orders --start 1h --body-format text --columns value orders.csv
    rocket message export -t orders --body-format json --schema "id bigint, item string" -o badRecords=drop orders.jsonl

    All options of reads can be given with -o; list them with: rocket options --scope read
    """
    if file.is_dir():
        raise click.UsageError(f"{file} is a directory: name the file to write.")
    form = form or _BY_ENDING.get(file.suffix.lower())
    if form is None:
        raise click.UsageError(f"Give --format, or a FILE that ends in {', '.join(_BY_ENDING)}.")
    if not topics and not options:
        raise click.UsageError("Give a topic with -t.")
    with requires("rocket message export", "arrow"):
        from spark_rocket.arrow import plan_read
    given = settings(options)
    if not any(name.lower() == "storepath" for name in given):  # the files of a store need no connection
        given = _connection_options(link, given) | given
    given |= _position("starting", start) | _position("ending", end)
    if topics:
        given["subscribe"] = ",".join(topics)
    if body_format is not None:
        given["bodyFormat"] = body_format
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    read = plan_read(given, schema=schema, columns=names, threads=threads)
    try:
        with output_file(file) as out, _FORMATS[form](out, read.schema) as write:
            rows = _copy(read, write)
    except KeyboardInterrupt:
        print(f"Interrupted: {file} was not written.", file=sys.stderr)
        return 1
    done = f"Wrote {count_text(rows)} row{'s' if rows != 1 else ''} to {file}."
    print(done, file=sys.stderr if is_stream(file) else sys.stdout)  # the rows may be on stdout
    return 0


def _connection_options(link: Link, given_options: dict[str, str]) -> dict[str, str]:
    """Return the connection as options of the data source, but for those that are given in any case."""
    given: dict[str, object] = {
        "nameServer": link.name_server,
        "requestTimeout": f"{round(link.timeout * 1000)}ms",
        "accessKey": link.access_key,
        "secretKey": link.secret_key,
        "credentialsFile": link.credentials,
        "tlsCaFile": link.tls_ca,
        "tlsCertFile": link.tls_cert,
        "tlsKeyFile": link.tls_key,
        "tlsVerify": link.tls_verify,
        "addressMap": link.address_map,
        "namespace": link.namespace,
        "namespaceV2": link.namespace_v2,
    }
    has_tls = link.tls or any(value is not None for name, value in given.items() if name.startswith("tls"))
    given["tls"] = "true" if has_tls else None
    others = {name.lower() for name in given_options}
    return {name: str(value) for name, value in given.items() if value is not None and name.lower() not in others}


def _position(side: str, text: str | None) -> dict[str, str]:
    from spark_rocket.arrow import option_of

    if text is None:
        return {}
    option = option_of(side, text)
    return {option: text if option.endswith("Offsets") else str((past if side == "starting" else moment)(text))}


def _copy(read: PlannedRead, write: Write) -> int:
    """Write all batches, and return the number of rows."""
    rows = size = 0
    total, rates = read.max_rows, Rates("written")
    with Bar(is_bytes=False, what="messages") as bar:
        for batch in read.reader():
            write(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if total is None:
                rates.tick(rows, size)
            else:
                bar(min(rows, total), total)
    rates.end()
    return rows


# --- formats ---------------------------------------------------------------------------------------------------------


@contextmanager
def _parquet(out: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    """Row groups of some 64 MB: batches are smaller."""
    import pyarrow as pa
    import pyarrow.parquet

    held: list[pa.RecordBatch] = []
    size = 0

    def put() -> None:
        nonlocal size
        file.write_table(pa.Table.from_batches(held, schema))
        held.clear()
        size = 0

    def write(batch: pa.RecordBatch) -> None:
        nonlocal size
        held.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            put()

    with pyarrow.parquet.ParquetWriter(out, schema) as file:
        yield write
        if held:
            put()


@contextmanager
def _arrow(out: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    import pyarrow as pa

    with pa.ipc.new_file(out, schema) as file:
        yield file.write_batch


@contextmanager
def _jsonl(out: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    from spark_rocket.datasource.bodies.rendering import json_objects, lines_of
    from spark_rocket.datasource.bodies.types import check_types
    from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings

    check_types(schema, BodySettings(BodyFormat.JSON), "EXPORT")

    def write(batch: pa.RecordBatch) -> None:
        out.write(lines_of(json_objects(batch.columns, schema.names)))

    yield write


@contextmanager
def _csv(out: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    import pyarrow as pa

    from spark_rocket.datasource.bodies.rendering import csv_lines, lines_of
    from spark_rocket.datasource.bodies.types import check_types
    from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings

    check_types(schema, BodySettings(BodyFormat.CSV), "EXPORT")
    out.write(lines_of(csv_lines([pa.array([name]) for name in schema.names], ",", '"')))

    def write(batch: pa.RecordBatch) -> None:
        out.write(lines_of(csv_lines(batch.columns, ",", '"')))

    yield write


_FORMATS: dict[str, Callable[[IO[bytes], pa.Schema], AbstractContextManager[Write]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "jsonl": _jsonl,
    "csv": _csv,
}
