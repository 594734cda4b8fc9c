"""``format("rocket")`` itself: what Spark makes first, from the options, on the driver.

Spark imports this in every planning process, so it imports nothing heavy until a reader or writer is asked for.
Values only; Spark pickles it. Corresponds to KafkaSourceProvider in Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_rocket.datasource.batch import RocketBatchReader
    from spark_rocket.datasource.store_directory import StoreDirectoryReader
    from spark_rocket.datasource.stream import RocketStreamReader
    from spark_rocket.datasource.writer import RocketStreamWriter, RocketWriter


class RocketDataSource(DataSource):
    """RocketMQ topics as data frames."""

    @classmethod
    def name(cls) -> str:
        return "rocket"

    def schema(self) -> StructType:
        from spark_rocket.datasource.options import READS, check_options
        from spark_rocket.datasource.schema import SOURCE_SCHEMA

        check_options(self.options, READS)
        return SOURCE_SCHEMA

    def reader(self, schema: StructType) -> RocketBatchReader | StoreDirectoryReader:
        from spark_rocket.datasource.option_parsers import Pushdown
        from spark_rocket.datasource.options import Scope, parse_read_options

        options = parse_read_options(self.options, Scope.READ)
        if options.store_path is not None:
            from spark_rocket.datasource.store_directory import StoreDirectoryReader

            return StoreDirectoryReader(options, schema)
        if options.filter_pushdown is not Pushdown.OFF:
            from spark_rocket.datasource.filtered_batch import FilterPushdownReader

            return FilterPushdownReader(options, schema)
        from spark_rocket.datasource.batch import RocketBatchReader

        return RocketBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> RocketStreamReader:  # noqa: N802
        from spark_rocket.datasource.options import Scope, parse_read_options
        from spark_rocket.datasource.stream import RocketStreamReader

        return RocketStreamReader(parse_read_options(self.options, Scope.READ_STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> RocketWriter:
        from spark_rocket.datasource.options import Scope, parse_write_options
        from spark_rocket.datasource.writer import RocketWriter, check_append

        check_append(overwrite, 'Use .mode("append").')
        return RocketWriter(parse_write_options(self.options, Scope.WRITE), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketStreamWriter:  # noqa: N802
        from spark_rocket.datasource.options import Scope, parse_write_options
        from spark_rocket.datasource.writer import RocketStreamWriter, check_append

        check_append(overwrite, 'Use .outputMode("append").')
        return RocketStreamWriter(parse_write_options(self.options, Scope.WRITE_STREAM), schema)
