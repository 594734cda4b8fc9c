"""Typed headers: the ext fields of each request and response as a dataclass.

Import a header from the module of its family: a client needs few of them, and each costs time to import. The module
``every`` has all of them.
"""
