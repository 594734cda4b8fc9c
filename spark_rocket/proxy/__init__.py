"""The gRPC proxy for RocketMQ 5 clients: ``apache.rocketmq.v2.MessagingService``.

Its objects are used on one event loop, except where a module says otherwise.
"""

import os

# grpcio's C core writes a line to stderr for each invalid request, by which clients could fill a disk.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
