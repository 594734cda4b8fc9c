"""Resources shared by all clients of one process and name server list: connections, routes, groups.

``acquire`` counts users; the last ``release`` closes the connections. Python workers fork: in the child the instance
stays usable, with its own connections, threads and client id, and without the parent's groups.

Each client passes through the states of :class:`ServiceState` once: it cannot be restarted after its close.

Thread-safety: all of it. Corresponds to MQClientManager, MQClientInstance and ServiceState.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from spark_rocket.client.core.client_config import ClientConfig, look_up
from spark_rocket.client.core.membership import Membership
from spark_rocket.client.core.name_servers import NameServers
from spark_rocket.client.core.responses import error_of
from spark_rocket.client.core.routes import Routes, RouteTable
from spark_rocket.errors import (
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RocketError,
    StateError,
    TopicNotFoundError,
)
from spark_rocket.protocol.ids import UniqKeyGenerator
from spark_rocket.protocol.wire.bodies.client import GetConsumerListByGroupResponseBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.membership import GetConsumerListByGroupRequestHeader
from spark_rocket.remoting.address import parse_address
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.client.request import Request
from spark_rocket.remoting.event_loop import CallbackThread, loop_thread
from spark_rocket.remoting.exposition import Exposition

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ONLY_SUCCESS = frozenset({int(ResponseCode.SUCCESS)})


class ServiceState(Enum):
    """The state of a producer or consumer."""

    CREATE_JUST = "CREATE_JUST"
    RUNNING = "RUNNING"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"
    START_FAILED = "START_FAILED"


class ClientInstance:
    """Connections, routes, groups and unique keys, shared by the clients of a process."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.remoting = RemotingClient(
            connect_timeout=config.request_timeout,
            request_handler=lambda address, request: self.members.handle(address, request),
            credentials=config.credentials,
            tls=config.tls,
        )
        self.name_servers = NameServers(
            lambda: self.remoting.requests, config.name_servers, config.address_server, timeout=config.request_timeout
        )
        self._routes = Routes(self.name_servers, config, post=lambda call: loop_thread().post(call))
        self.routes = RouteTable(self._routes)
        self.members = Membership(config, self.remoting, self.routes, lambda: self.client_id)
        self.users = 0
        self._begin()

    def _begin(self) -> None:
        self._keys: UniqKeyGenerator | None = None
        self._client_id = ""
        self._members_broker = ""  # the broker that last returned members of a group
        self._tasks = CallbackThread("rocket-tasks")

    def after_fork(self) -> None:
        self._begin()
        self.name_servers.after_fork()
        self._routes.after_fork()
        self.members.after_fork()

    def close(self) -> None:
        self.members.close()
        self.remoting.close()
        loop_thread().post(self._routes.close)
        loop_thread().post(self.name_servers.close)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the connections, and wait for it."""
        return loop_thread().run(coroutine)

    # --- requests to brokers ----------------------------------------------------------------------------------

    def invoke(
        self,
        address: str,
        request: RemotingCommand,
        what: str,
        *,
        topic: str | None = None,
        timeout: float | None = None,
        allowed: frozenset[int] = _ONLY_SUCCESS,
    ) -> RemotingCommand:
        """Return the response if its code is in ``allowed``; otherwise raise its error."""
        try:
            answer = self.remoting.invoke(address, request, timeout or self.config.request_timeout)
        except RemotingError as error:
            self._failed(address, error)
            raise
        return self.checked(answer, address, what, topic, allowed)

    def invoke_async(
        self,
        address: str,
        request: RemotingCommand,
        what: str,
        value: Callable[[RemotingCommand], T],
        *,
        topic: str | None = None,
        timeout: float | None = None,
        allowed: frozenset[int] = _ONLY_SUCCESS,
    ) -> Promise[T]:
        """Like ``invoke``, but return a promise of ``value(response)``."""

        def convert(answer: RemotingCommand) -> T:
            return value(self.checked(answer, address, what, topic, allowed))

        timeout = timeout or self.config.request_timeout
        promise = Request(int(request.code), timeout, convert, partial(self._failed, address))
        return self.remoting.invoke_async(address, request, timeout, promise)

    def _failed(self, address: str, error: BaseException) -> None:
        if isinstance(error, RemotingConnectError | RemotingTimeoutError):
            self.routes.mark_unavailable(address)

    def checked(
        self, answer: RemotingCommand, address: str, what: str, topic: str | None, allowed: frozenset[int]
    ) -> RemotingCommand:
        if answer.code in allowed:
            return answer
        error = error_of(answer, f"Broker {address}", what, topic)
        if isinstance(error, TopicNotFoundError) and topic is not None:
            self.routes.forget(topic)
        raise error

    # --- small services ---------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The id that brokers use for this instance: ``ip@pid``, and a suffix that makes it unique."""
        if not self._client_id:
            with _lock:
                if not self._client_id:
                    name = self.config.instance_name or os.urandom(4).hex()
                    self._client_id = f"{_own_ip(self.config.name_servers[0])}@{os.getpid()}#{name}"
        return self._client_id

    def next_key(self) -> str:
        """Return a new UNIQ_KEY."""
        return self.keys().next()

    def keys(self) -> UniqKeyGenerator:
        """Return the UNIQ_KEY generator of this process."""
        keys = self._keys
        if keys is None:
            seed = int.from_bytes(os.urandom(4), "big")
            address = _own_ip(self.config.name_servers[0])
            keys = self._keys = UniqKeyGenerator(address, os.getpid(), lambda: time.time_ns() // 1_000_000, seed=seed)
        return keys

    def call_later(self, seconds: float, task: Callable[[], object]) -> None:
        """Run ``later`` after a delay. Tasks still pending when the instance is closed are dropped."""
        self.remoting.call_at(time.monotonic() + seconds, lambda: self.later(task))

    def consumer_ids(self, group: str, topic: str) -> list[str] | None:
        """Return the client ids of a group's members, sorted, from a broker of the topic; None if none responds."""
        header = GetConsumerListByGroupRequestHeader(consumer_group=group).to_ext()
        brokers = self.routes.route(topic).brokers.values()
        every = [address for addresses in brokers for address in addresses.values()]
        connected = self.remoting.is_connected
        # First the broker that responded last, then connected ones: an unavailable broker costs a timeout.
        for address in sorted(every, key=lambda address: (address != self._members_broker, not connected(address))):
            request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            try:
                answer = self.invoke(address, request, f"the query of the members of {group}")
                self._members_broker = address
                return sorted(GetConsumerListByGroupResponseBody.from_json(answer.body).consumer_id_list)
            except RocketError as error:
                logger.info("no members of group %s from broker %s: %s", group, address, error)
        return None

    def later(self, task: Callable[[], object]) -> None:
        """Run a task that may block, on a thread that no connection depends on."""
        self._tasks.submit(task)


def _own_ip(name_server: str) -> str:
    """Return the address of this host that routes to the name server; no packet is sent for that."""
    host, port = parse_address(name_server)
    try:
        family, kind, _, _, peer = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(peer)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


_lock = threading.Lock()
_instances: dict[tuple[object, ...], ClientInstance] = {}
_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def acquire(config: ClientConfig) -> ClientInstance:
    """Return the instance for the config's name servers and name; create it if needed."""
    key = _key(config)
    if config.address_server and key not in _instances:
        config = replace(config, name_servers=look_up(config.address_server, config.request_timeout))
    with _lock:
        instance = _instances.get(key)
        if instance is None:
            instance = _instances[key] = ClientInstance(config)
        instance.users += 1
        return instance


def living_clients() -> list[Client]:
    """Return all clients of this process that are still referenced."""
    return list(_clients)


def _key(config: ClientConfig) -> tuple[object, ...]:
    return config.address_server or config.name_servers, config.instance_name, config.credentials, config.tls


def release(instance: ClientInstance) -> None:
    """Release the instance; the last release closes its connections."""
    with _lock:
        instance.users -= 1
        if instance.users > 0:
            return
        key = _key(instance.config)
        if _instances.get(key) is instance:
            del _instances[key]
    instance.close()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for instance in _instances.values():
        instance.after_fork()
    for client in list(_clients):
        client.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Client:
    """The base class of producers, consumers, reader and admin: start, close, the shared instance."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._shared: ClientInstance | None = None
        self._closed = False
        self._failed = False
        _clients.add(self)

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
