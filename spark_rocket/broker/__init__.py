"""A RocketMQ broker. Its objects are used on one event loop, except where a module says otherwise."""
