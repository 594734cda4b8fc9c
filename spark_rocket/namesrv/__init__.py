"""A RocketMQ name server. Its objects are used on one event loop, except where a module says otherwise."""
