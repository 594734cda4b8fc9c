"""Typed bodies: the JSON of requests, responses and configuration files as dataclasses."""

from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.client import *
from spark_rocket.protocol.wire.bodies.config import *
from spark_rocket.protocol.wire.bodies.consumer import *
from spark_rocket.protocol.wire.bodies.register import *
from spark_rocket.protocol.wire.bodies.route import *
from spark_rocket.protocol.wire.bodies.stats import *
from spark_rocket.protocol.wire.json import dumps_fastjson, dumps_standard, loads_tolerant
