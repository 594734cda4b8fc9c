"""gRPC on ``grpc.aio``: connections, calls and their limits, independent of the messages."""
