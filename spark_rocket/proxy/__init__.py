"""The gRPC endpoint for RocketMQ 5's own clients, in the broker's process: ``apache.rocketmq.v2.MessagingService``."""
