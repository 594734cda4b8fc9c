"""What a request may cost: bounds of its header, its body and the state that it may leave behind, by request code."""

from spark_rocket.protocol.wire.request_limits.body_collections import BodyCollection, collections_of
from spark_rocket.protocol.wire.request_limits.broker import BROKER_LIMITS
from spark_rocket.protocol.wire.request_limits.decode import LIMITS, body_of
from spark_rocket.protocol.wire.request_limits.limit import HEADER_SEPARATORS, RawBody, RequestLimit
from spark_rocket.protocol.wire.request_limits.namesrv import NAMESRV_LIMITS
from spark_rocket.protocol.wire.request_limits.state import STATE_LIMITS, StateLimit

__all__ = [
    "BROKER_LIMITS",
    "HEADER_SEPARATORS",
    "LIMITS",
    "NAMESRV_LIMITS",
    "STATE_LIMITS",
    "BodyCollection",
    "RawBody",
    "RequestLimit",
    "StateLimit",
    "body_of",
    "collections_of",
]
