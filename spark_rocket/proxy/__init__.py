"""The gRPC endpoint for RocketMQ 5's own clients, in the broker's process: ``apache.rocketmq.v2.MessagingService``."""

import os

# grpcio's C core writes a line to stderr for each invalid request; clients must not be able to fill a disk with that.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
