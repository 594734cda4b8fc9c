"""gRPC on ``grpc.aio``: connections, calls and their limits. Knows nothing of messages."""
