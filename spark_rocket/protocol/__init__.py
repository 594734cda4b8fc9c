"""RocketMQ's bytes: requests, messages, filters, files. Pure functions and immutable values, except where a module says
otherwise; no I/O.
"""
