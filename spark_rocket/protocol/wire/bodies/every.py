"""All typed bodies, for tables of them in servers and for tests. A client imports the modules of families instead."""

from spark_rocket.protocol.wire.bodies.assignment import *
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.client import *
from spark_rocket.protocol.wire.bodies.config import *
from spark_rocket.protocol.wire.bodies.consume_queue import *
from spark_rocket.protocol.wire.bodies.consumer import *
from spark_rocket.protocol.wire.bodies.register import *
from spark_rocket.protocol.wire.bodies.route import *
from spark_rocket.protocol.wire.bodies.stats import *
