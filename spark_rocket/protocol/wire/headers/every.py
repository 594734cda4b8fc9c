"""All typed headers, for tables of them in servers and for tests. A client imports the modules of families instead."""

from spark_rocket.protocol.wire.headers.admin import *
from spark_rocket.protocol.wire.headers.base import Header
from spark_rocket.protocol.wire.headers.consumer import *
from spark_rocket.protocol.wire.headers.membership import *
from spark_rocket.protocol.wire.headers.messages import *
from spark_rocket.protocol.wire.headers.namesrv import *
from spark_rocket.protocol.wire.headers.producer import *
from spark_rocket.protocol.wire.headers.pull import *
from spark_rocket.protocol.wire.headers.routes import *
