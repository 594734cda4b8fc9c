"""Resources shared by all clients of one process and name server list: connections, routes, groups.

``acquire`` counts users; the last ``release`` closes the connections. Python workers fork: in the child the instance
stays usable, with its own connections, threads and client id, and without the parent's groups.

Corresponds to MQClientManager and MQClientInstance.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from spark_rocket.client.core.address_map import UNREACHABLE_REMEDY
from spark_rocket.client.core.client_config import ClientConfig, look_up
from spark_rocket.client.core.membership import Membership
from spark_rocket.client.core.name_servers import NameServers
from spark_rocket.client.core.responses import error_of, proxy_error
from spark_rocket.client.core.routes import Routes
from spark_rocket.common.system import now_ms
from spark_rocket.errors import (
    ClientError,
    RemotingConnectError,
    RemotingTimeoutError,
    TopicNotFoundError,
)
from spark_rocket.protocol.ids import UniqKeyGenerator
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.names import NameTranslation
from spark_rocket.remoting.address import own_ip
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.client.request import Request
from spark_rocket.remoting.event_loop import CallbackThread, loop_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

_ONLY_SUCCESS = frozenset({int(ResponseCode.SUCCESS)})


class ClientInstance:
    """Connections, routes, groups and unique keys, shared by the clients of a process."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.remoting = RemotingClient(
            connect_timeout=config.request_timeout,
            request_handler=lambda address, request: self.members.handle(address, request),
            credentials=config.credentials,
            names=NameTranslation(config.namespace) if config.namespace.translates else None,
            tls=config.tls,
            target_of=config.address_map.target,
            remedy=UNREACHABLE_REMEDY,
        )
        self.name_servers = NameServers(
            lambda: self.remoting.requests,
            config.name_servers,
            config.address_server,
            timeout=config.request_timeout,
            broker_names=self.remoting.requests.broker_names,
        )
        self.routes = Routes(self.name_servers, config, post=lambda call: loop_thread().post(call))
        self.members = Membership(config, self.remoting, self.routes, lambda: self.client_id)
        self.users = 0
        self._begin()

    def _begin(self) -> None:
        self._keys: UniqKeyGenerator | None = None
        self._client_id = ""
        self.tasks = CallbackThread("rocket-tasks")

    def after_fork(self) -> None:
        self._begin()
        self.name_servers.after_fork()
        self.routes.after_fork()
        self.members.after_fork()

    def close(self) -> None:
        self.members.close()
        self.remoting.close()
        loop_thread().post(self.routes.close)
        loop_thread().post(self.name_servers.close)

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the event loop of the connections, and wait for it."""
        return loop_thread().run(function, *args, **kwargs)

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
        promise = self.invoke_async(address, request, what, _unchanged, topic=topic, timeout=timeout, allowed=allowed)
        return promise.wait()

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

        def convert(response: RemotingCommand) -> T:
            if response.code in allowed:
                return value(response)
            raise self.refusal(request, response, address, what, topic)

        timeout = timeout or self.config.request_timeout
        promise = Request(int(request.code), timeout, convert, partial(self._failed, address))
        return self.remoting.invoke_async(address, request, timeout, promise)

    def _failed(self, address: str, error: BaseException) -> None:
        if isinstance(error, RemotingConnectError | RemotingTimeoutError):
            self.routes.mark_unavailable(address)

    def refusal(
        self, request: RemotingCommand, response: RemotingCommand, address: str, what: str, topic: str | None = None
    ) -> ClientError:
        """Return the error for a broker's response other than success."""
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and self._is_proxy(address):
            return proxy_error(response, address, what)
        error = error_of(response, f"Broker {address}", what, topic, request=request, account=self.config.account)
        if isinstance(error, TopicNotFoundError) and topic is not None:
            self.routes.forget(topic)
        return error

    def _is_proxy(self, address: str) -> bool:
        """Whether a server that is the broker of a route is known to be a proxy, or is a name server, too."""
        servers = self.name_servers
        is_both = address in servers.addresses and address in self.remoting.requests.broker_names
        return is_both or bool(servers.proxies)

    # --- small services ---------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The id that brokers use for this instance: ``ip@pid``, its name, and a suffix that makes it unique.

        Instances of one name that differ in namespace or account have different ids: brokers push replies by it.
        """
        if not self._client_id:  # without a lock, because the loop needs it, too
            name = f"#{self.config.instance_name}" if self.config.instance_name else ""
            address = own_ip(self.config.name_servers[0])
            made = f"{address}@{os.getpid()}{name}#{os.urandom(4).hex()}"
            self._client_id = self._client_id or made  # one step: of several threads the first one counts
        return self._client_id

    def next_key(self) -> str:
        """Return a new UNIQ_KEY."""
        return self.keys().next()

    def keys(self) -> UniqKeyGenerator:
        """Return the UNIQ_KEY generator of this process."""
        keys = self._keys
        if keys is None:
            seed = int.from_bytes(os.urandom(4), "big")
            address = own_ip(self.config.name_servers[0])
            keys = self._keys = UniqKeyGenerator(address, os.getpid(), now_ms, seed=seed)
        return keys

    def call_later(self, seconds: float, task: Callable[[], object]) -> None:
        """Run ``later`` after a delay. Tasks still pending when the instance is closed are dropped."""
        self.remoting.call_at(time.monotonic() + seconds, lambda: self.later(task))

    def later(self, task: Callable[[], object]) -> None:
        """Run a task that may block, on a thread that no connection depends on."""
        loop_thread().post(partial(self.tasks.submit, task))


def _unchanged(response: RemotingCommand) -> RemotingCommand:
    return response


_lock = threading.RLock()  # a signal handler may close what the interrupted code starts
_instances: dict[tuple[object, ...], ClientInstance] = {}


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


def _key(config: ClientConfig) -> tuple[object, ...]:
    return (
        config.address_server or config.name_servers,
        config.instance_name,
        config.credentials,
        config.tls,
        config.namespace,
        config.address_map,
    )


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
    _lock = threading.RLock()
    for instance in _instances.values():
        instance.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
