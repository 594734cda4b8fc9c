"""Filter expressions of requests.

Thread-safety: pure functions, immutable values. Corresponds to GrpcConverter.buildExpressionType and FilterAPI.build.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.filter.tags import SUB_ALL, TYPE_SQL92, TYPE_TAG, TagExpression, parse_tags
from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.statuses import StatusError

_SQL = int(definitions.FilterType.SQL)


class Filter(NamedTuple):
    """What a filter expression says."""

    kind: str
    expression: str
    tags: TagExpression | None
    """To compare tags with, for brokers compare hashes; None when the broker's answer is exact."""


def read_filter(expression: Any) -> Filter:
    """The filter of a request; StatusError with ILLEGAL_FILTER_EXPRESSION. What SQL says is left to the broker."""
    text = expression.expression or SUB_ALL
    if expression.type == _SQL:
        return Filter(TYPE_SQL92, text, None)
    try:
        tags = parse_tags(text)
    except ProtocolError as error:
        raise StatusError(definitions.Code.ILLEGAL_FILTER_EXPRESSION, error.message) from None
    return Filter(TYPE_TAG, text, None if tags.matches_all else tags)
