"""The life of a client: started by its first request, closed once, and then not started again.

Each client passes through the states of :class:`ServiceState` once.

In a forked child the clients stay usable (:mod:`instance`). Corresponds to ServiceState, and to the start and shutdown
of RocketMQ's clients.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from enum import Enum
from types import FunctionType
from typing import Any, NoReturn

from spark_rocket.client.core.client_config import ClientConfig
from spark_rocket.client.core.instance import ClientInstance, acquire, release
from spark_rocket.client.core.short_names import short_arguments
from spark_rocket.common.arguments import Arguments, checked
from spark_rocket.errors import StateError
from spark_rocket.protocol.namespace import Namespace
from spark_rocket.remoting.exposition import Exposition


class ServiceState(Enum):
    """The state of a producer or consumer."""

    CREATE_JUST = "CREATE_JUST"
    RUNNING = "RUNNING"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"
    START_FAILED = "START_FAILED"


class Client:
    """The base class of producers, consumers, reader and admin: start, close, the shared instance."""

    prepares_arguments = False
    """Whether arguments have names to shorten."""

    def __init_subclass__(cls, **settings: Any) -> None:
        """Check the arguments of the public methods (``arguments``), and shorten their names (``short_names``)."""
        super().__init_subclass__(**settings)
        for name, member in list(vars(cls).items()):
            if isinstance(member, FunctionType) and (name == "__init__" or not name.startswith("_")):
                setattr(cls, name, checked(member, _with_short_names))

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.prepares_arguments = bool(config.namespace)
        self._shared: ClientInstance | None = None
        self._closed = False
        self._failed = False
        _clients.add(self)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: connections and threads belong to their process."""
        raise StateError(
            f"A {type(self).__name__} cannot be pickled, as for a Spark task or another process.",
            remedy="Create it in the function that uses it: in Spark once per partition, with foreachPartition.",
        )

    def after_fork(self) -> None:
        """Reset the client in a forked child: the threads of the parent do not exist there."""

    def add_metrics(self, exposition: Exposition) -> None:
        """Add the metrics of the client, if it has any (``core.metrics``)."""

    @property
    def name_server(self) -> str:
        return self._config.address_server or ";".join(self._config.name_servers)

    @property
    def access_key(self) -> str | None:
        """The account that signs the requests; None without credentials."""
        return None if self._config.credentials is None else self._config.credentials.access_key

    @property
    def namespace(self) -> Namespace:
        """The namespace of the names that this client sends."""
        return self._config.namespace

    @property
    def state(self) -> ServiceState:
        if self._failed:
            return ServiceState.START_FAILED
        if self._closed:
            return ServiceState.SHUTDOWN_ALREADY
        return ServiceState.CREATE_JUST if self._shared is None else ServiceState.RUNNING

    def start(self) -> None:
        """Start the client. Optional: the first request starts it."""
        self.instance()

    def close(self) -> None:
        """Release the connections. May be called more than once."""
        with _lock:
            shared, self._shared, self._closed = self._shared, None, True
        if shared is not None:
            release(shared)

    def _start_failed(self) -> None:
        """Release the connections permanently after a failed start."""
        with _lock:
            shared, self._shared, self._failed = self._shared, None, True
        if shared is not None:
            release(shared)

    def instance(self) -> ClientInstance:
        """Return the shared instance; the first call creates it. For internal use in this package."""
        shared = self._shared
        if shared is not None:
            return shared
        if self._failed:
            raise StateError(f"This {type(self).__name__} failed to start earlier.", remedy="Create a new one.")
        if self._closed:
            raise StateError(f"This {type(self).__name__} is closed.", remedy="Create a new one.")
        acquired = acquire(self._config)
        with _lock:
            if self._shared is None:
                self._shared = acquired
                return acquired
            shared = self._shared
        release(acquired)  # another thread created it first
        return shared


def _with_short_names(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    return short_arguments(args[0].namespace, method, args, kwargs)


_lock = threading.RLock()  # a signal handler may close what the interrupted code starts
_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def living_clients() -> list[Client]:
    """Return all clients of this process that are still referenced."""
    return list(_clients)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    for client in list(_clients):
        client.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)  # after the instances'
