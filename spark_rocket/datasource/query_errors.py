"""The one line of a failed query that says what is wrong, among the traces of Spark.

Spark prints the error of a Python source with Python's and Java's traces, in the log of each failed attempt of a task
and in ``query.exception()``. The line ``spark_rocket.errors.RecordError: [BAD_RECORD] message orders/broker-a/0 at 17
…`` is always complete: condition, topic, queue, offset, column, value and remedy (``processes.py`` drops the rest).

Pure, without PySpark.
"""

from __future__ import annotations

import re

_LINE = re.compile(r"^spark_rocket(?:\.\w+)+: (\[[A-Z_]+(?:\.[A-Z_]+)*\] .*)$", re.MULTILINE)


def error_line(error: object) -> str | None:
    """Return the line of this package in an exception of Spark, or in its text.

    Returns None if the error has another cause. ``error_line(query.exception())`` works on all versions of Spark.
    """
    found = _LINE.search(str(error))
    return found[1] if found else None
