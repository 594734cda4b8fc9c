"""Typed bodies: the JSON of requests, responses and configuration files as dataclasses.

Import a body from the module of its family: a client needs few of them, and each costs time to import. The module
``every`` has all of them.
"""
