"""Typed headers: the ext fields of each request and response as a dataclass."""

from spark_rocket.protocol.wire.headers.admin import *
from spark_rocket.protocol.wire.headers.base import Header
from spark_rocket.protocol.wire.headers.consumer import *
from spark_rocket.protocol.wire.headers.namesrv import *
from spark_rocket.protocol.wire.headers.producer import *
