"""What a user reads when something is refused: the error, without the calls beneath it.

Spark shows the whole traceback of a data source's error, and the error itself last. A ``RocketError`` names the option,
queue or topic and says what to do; which of our functions found it helps nobody but us, and is logged at DEBUG. Errors
of any other kind keep their tracebacks. Safe from any thread. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from spark_rocket.errors import RocketError

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("spark_rocket.datasource")


def short(method: Callable[P, T]) -> Callable[P, T]:
    """For methods that Spark calls."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except RocketError as error:
            log.debug("%s", error, exc_info=True)
            raise error.with_traceback(None) from None

    return called


def short_while(values: Iterator[T]) -> Iterator[T]:
    """For what a task reads."""
    try:
        yield from values
    except RocketError as error:
        log.debug("%s", error, exc_info=True)
        raise error.with_traceback(None) from None
