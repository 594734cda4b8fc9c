"""``format("rocket")``: the data source class that Spark instantiates on the driver from the options.

Spark imports this in every planning process, so it imports nothing heavy until Spark requests a reader or writer.
Holds only values, because Spark pickles it. Corresponds to KafkaSourceProvider in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from spark_rocket.datasource.processes import PickledByValue, hide_traceback

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_rocket.datasource.batch_reader import RocketBatchReader
    from spark_rocket.datasource.stream import RocketStreamReader
    from spark_rocket.datasource.views.views import ViewReader
    from spark_rocket.datasource.write.writer import RocketStreamWriter, RocketWriter

# Options of rocketmq-spark that are renamed here, in lower case.
_OLD_READS = {
    "topic": "subscribe",
    "group": "consumerGroup",
    "subexpression": "tags",
    "pulltimeout": "requestTimeout",
    "pulltimeoutms": "requestTimeout",
}
_OLD_WRITES = {"group": "producerGroup"}


class RocketDataSource(PickledByValue, DataSource):
    """RocketMQ topics as data frames."""

    @classmethod
    def name(cls) -> str:
        return "rocket"

    @hide_traceback
    def schema(self) -> StructType:
        from spark_rocket.datasource.tables import is_two_way, new_table, options_of_direction, plain, table_options

        if (options := table_options(self.options)) is not None:
            return new_table(self._to_read(options), self._schema_of)
        given = self._to_read(self.options)
        schema = self._schema_of(options_of_direction(given, reading=True))
        return plain(schema, all_nullable=True) if is_two_way(given) else schema

    def _schema_of(self, options: Mapping[str, str]) -> StructType:
        from spark_rocket.datasource.options.parse import body_of, is_view
        from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA, spark_schema

        if is_view(options):
            from spark_rocket.datasource.views.views import view_schema

            return view_schema(options)
        if (body := body_of(options)) is not None:
            from spark_rocket.datasource.read.typed_rows import schema_of

            return spark_schema(schema_of(body))
        return SOURCE_SCHEMA

    @hide_traceback
    def reader(self, schema: StructType) -> RocketBatchReader | ViewReader:
        from spark_rocket.datasource.options.parse import is_view, parse_read_options
        from spark_rocket.datasource.options.table import Scope
        from spark_rocket.datasource.read_tasks import warn_of_names
        from spark_rocket.datasource.tables import options_to_read, plain

        given = options_to_read(self._to_read(self.options), schema)
        schema = plain(schema)
        if is_view(given):
            from spark_rocket.datasource.views.views import ViewReader, checked_view_options

            return ViewReader(checked_view_options(given), schema)
        options = parse_read_options(given, Scope.READ)
        warn_of_names(options, schema.names)
        from spark_rocket.datasource.batch_reader import RocketBatchReader

        return RocketBatchReader(options, schema)

    @hide_traceback
    def streamReader(self, schema: StructType) -> RocketStreamReader:  # noqa: N802
        from spark_rocket.datasource.options.parse import parse_read_options
        from spark_rocket.datasource.options.table import Scope
        from spark_rocket.datasource.read_tasks import warn_of_names
        from spark_rocket.datasource.stream import stream_reader
        from spark_rocket.datasource.tables import options_to_read, plain

        options = parse_read_options(options_to_read(self._to_read(self.options), schema), Scope.READ_STREAM)
        warn_of_names(options, schema.names)
        return stream_reader(options, plain(schema))

    @hide_traceback
    def writer(self, schema: StructType, overwrite: bool) -> RocketWriter:
        from spark_rocket.datasource.options.parse import parse_write_options
        from spark_rocket.datasource.options.table import Scope
        from spark_rocket.datasource.tables import options_to_write, written
        from spark_rocket.datasource.write.writer import RocketWriter, check_append

        check_append(overwrite, 'Use .mode("append").')
        options = self._to_write(self.options)
        parsed = parse_write_options(options_to_write(options, schema), Scope.WRITE)
        columns = written(schema, options)
        only_read = [name for name in schema.names if name not in columns.names]
        if parsed.exactly_once:
            from spark_rocket.datasource.exactly_once.writer import ExactlyOnceWriter

            return ExactlyOnceWriter(parsed, columns, only_read)
        return RocketWriter(parsed, columns, only_read)

    @hide_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketStreamWriter:  # noqa: N802
        from spark_rocket.datasource.options.parse import parse_write_options
        from spark_rocket.datasource.options.table import Scope
        from spark_rocket.datasource.tables import options_to_write
        from spark_rocket.datasource.write.writer import RocketStreamWriter, check_append

        check_append(overwrite, 'Use .outputMode("append").')
        parsed = parse_write_options(options_to_write(self._to_write(self.options), schema), Scope.WRITE_STREAM)
        if parsed.exactly_once:
            from spark_rocket.datasource.exactly_once.writer import ExactlyOnceStreamWriter

            return ExactlyOnceStreamWriter(parsed, schema)
        return RocketStreamWriter(parsed, schema)

    def _to_read(self, options: Mapping[str, str]) -> dict[str, str]:
        """Translate the options of a read to the names used here."""
        return dict(options)

    def _to_write(self, options: Mapping[str, str]) -> dict[str, str]:
        """Translate the options of a write to the names used here."""
        return dict(options)


class RocketMQDataSource(RocketDataSource):
    """The same source with the name and the option names of the old Scala connector, rocketmq-spark.

    It also accepts all options of ``format("rocket")``. ``subExpression=*`` selects all messages. The columns are those
    of ``format("rocket")``: ``properties`` is a map where the old connector had JSON text (``to_json(properties)``).
    Corresponds to rocketmq-spark's RocketMQSourceProvider and RocketMQConf.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def _to_read(self, options: Mapping[str, str]) -> dict[str, str]:
        return _translate(options, _OLD_READS)

    def _to_write(self, options: Mapping[str, str]) -> dict[str, str]:
        return _translate(options, _OLD_WRITES)


def _translate(options: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    from spark_rocket.datasource.conditions import error

    translated = {key: text for key, text in options.items() if key.lower() not in names}
    given = {key.lower() for key in translated}
    for key, text in options.items():
        new = names.get(key.lower())
        if new is None or (new == "tags" and text.strip() == "*"):
            continue
        if new.lower() in given:
            raise error("BAD_OPTION.CONFLICT", case="RENAMED", option=key, other=new)
        given.add(new.lower())
        translated[new] = text
    return translated
