"""Every typed header and body, from the modules of their packages."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import is_dataclass
from types import ModuleType
from typing import TypeGuard, TypeVar

from spark_rocket.protocol.requests import REQUESTS, SENT_TO_CLIENTS
from spark_rocket.protocol.wire import bodies, headers
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.base import Header

_Class = TypeVar("_Class")


def _classes_in(package: ModuleType, base: type[_Class]) -> list[type[_Class]]:
    modules = [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return [value for module in modules for value in vars(module).values() if _is_declared_in(module, value, base)]


def _is_declared_in(module: ModuleType, value: object, base: type[_Class]) -> TypeGuard[type[_Class]]:
    is_own = isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    return is_own and is_dataclass(value)


HEADERS = _classes_in(headers, Header)
BODIES = _classes_in(bodies, Body)
EVERY_REQUEST = {**REQUESTS, **SENT_TO_CLIENTS}


def decode_request_header(command: RemotingCommand) -> Header | None:
    """The typed header of a request, or None when its code has none."""
    row = EVERY_REQUEST.get(command.code)
    return None if row is None else row.header_of(command)
