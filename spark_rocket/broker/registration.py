"""Registration of this broker with its name servers: at the start, after every change of a topic, every 30 seconds.

There is one task per name server address, so that an unresponsive one does not delay the others. Changes during a
registration share the next one. The broker also serves without a name server: the first failure and the recovery are
logged.

A registration (103) contains all topics. A few new or changed topics are sent alone (217), as by Apache's brokers from
5.1 on, so that the cost does not grow with the number of topics. A name server without support for 217 gets a complete
registration. The next registration, with a newer version, includes the topics sent with 217.

A registration that does not fit into a frame is divided, whatever created the topics. Name servers ignore topics whose
data version they have, so each part has a version of its own, and the last one has the table's. While a name server
has the table's version, which it is asked first, the parts are not sent again: they would undo wiped write permissions.
With ``deleteTopicWithBrokerRegistration`` at an Apache name server (off by default), each part deletes the topics of
the others.

A name server that restarted, or considered the broker dead, has closed the connection: the task checks this every
second, and registers again. The response to a slave has its master's address (``on_master``).

A thread builds the body from atomic copies of the tables. Corresponds to org.apache.rocketmq.broker.out.BrokerOuterAPI
and BrokerController.registerBrokerAll.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.topic_config_manager import PERM_READ_WRITE, TopicConfigManager
from spark_rocket.errors import RemotingError, RocketError
from spark_rocket.protocol.wire.bodies.config import DataVersion
from spark_rocket.protocol.wire.bodies.route import MASTER_ID, QueueData, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.namesrv import (
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from spark_rocket.protocol.wire.headers.routes import GetRouteInfoRequestHeader
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.client.async_client import AsyncRemotingClient
from spark_rocket.remoting.tls.problems import error_text

_log = logging.getLogger(__name__)

_UNREGISTER_TIMEOUT_S = 1.0
_ROUTE_TIMEOUT_S = 3.0
_MAX_ROUTE_BYTES = 2 << 20  # of a topic on some thousand brokers
_MAX_INLINE_BYTES = 32 * 1024  # of a route that is decoded on the event loop
_FEW_TOPICS = 32
_MAX_BODY_BYTES = 12 << 20  # of a registration; a frame has at most 16 MiB
_BYTES_PER_SECOND = 1 << 20  # of a large registration at a busy name server
# An unreachable name server is retried after this delay, then after twice as long, up to the usual period.
_FIRST_RETRY_S = 0.5
_CONNECTION_CHECK_S = 1.0


class _NameServer:
    """One name server: its state and the pending registrations."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.healthy = True
        self.registered = False
        self.knows_217 = True
        self.everything = True
        self.topics: set[str] = set()
        self.waiting: list[asyncio.Future[None]] = []
        self.woken = asyncio.Event()


class NameServerRegistration:
    """Keeps this broker registered with every name server."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        *,
        broker_addr: str,
        ha_server_addr: str,
        on_master: Callable[[str | None, str | None], None],
    ) -> None:
        """``on_master(ha_address, address)`` is called with each response to a slave's registration."""
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._topics = topics
        self._on_master = on_master
        self._broker_addr = broker_addr
        self._ha_server_addr = ha_server_addr
        self._period = config.register_name_server_period / 1000
        self._timeout = config.register_broker_timeout_mills / 1000
        self._client = AsyncRemotingClient(
            connect_timeout=self._timeout, tls=config.client_tls(), credentials=config.own_credentials
        )
        self._closed = False
        self._servers = [_NameServer(address) for address in config.name_servers]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [self._loop.create_task(self._keep_registered(server)) for server in self._servers]

    def register(self, topics: Collection[str] | None = None) -> asyncio.Future[Any]:
        """Register these topics, or all if None; done when every healthy name server has them.

        Healthy: the last request to the name server succeeded.
        """
        done = []
        for server in self._servers if not self._closed else ():
            if topics is None:
                server.everything = True
            else:
                server.topics.update(topics)
            server.woken.set()
            if server.healthy:
                server.waiting.append(self._loop.create_future())
                done.append(server.waiting[-1])
        return asyncio.gather(*done)

    def states(self) -> dict[str, bool]:
        """Whether each name server has accepted the last registration."""
        return {server.address: server.registered for server in self._servers}

    async def close(self) -> None:
        """Unregister from all name servers, and stop."""
        self._closed = True
        for server in self._servers:
            server.woken.set()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._client.close()
        for server in self._servers:
            _settle(server.waiting)

    async def queues_of(self, topic: str) -> list[QueueData]:
        """A topic's queues on all brokers, from the first name server that responds.

        RocketError if none does, or the route is too large.
        """
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic).to_ext())
        for server in self._servers:
            if server.healthy:
                with suppress(RemotingError):
                    response = await self._client.invoke(server.address, request, _ROUTE_TIMEOUT_S)
                    return await _queues_in(response.body)
        raise RocketError("No name server responds.")

    # --- one name server ----------------------------------------------------------------------------------------

    async def _keep_registered(self, server: _NameServer) -> None:
        was_registered = False
        retry = _FIRST_RETRY_S
        due = 0.0  # of the next complete registration: 217 does not count as a heartbeat of the broker
        while not self._closed:
            everything = server.everything or len(server.topics) > _FEW_TOPICS or self._loop.time() >= due
            alone = not everything and server.healthy and server.knows_217
            topics = sorted(server.topics) if alone else []
            waiting, server.waiting = server.waiting, []
            server.everything = False
            server.topics.clear()
            server.woken.clear()
            if not topics:
                due = self._loop.time() + self._period
            was_registered = await self._register_with(server, topics) or was_registered
            if server.healthy:
                retry = _FIRST_RETRY_S
            else:
                due = self._loop.time() + retry
                retry = min(2 * retry, self._period)
                _settle(server.waiting)
            _settle(waiting)
            if not await self._wait(server, due):
                due = 0.0
        if was_registered and server.healthy:
            try:
                await self._unregister(server.address)
            except RocketError as error:
                _log.info("Could not unregister from name server %s: %s", server.address, error.message)

    async def _wait(self, server: _NameServer, due: float) -> bool:
        """Wait for a request or for ``due``; returns False as soon as the connection is lost."""
        while True:
            left = max(due - self._loop.time(), 0.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _CONNECTION_CHECK_S)):
                    await server.woken.wait()
            if server.healthy and not self._client.is_connected(server.address):
                return False
            if server.woken.is_set() or self._loop.time() >= due:
                return True

    async def _register_with(self, server: _NameServer, topics: list[str]) -> bool:
        """Send these topics, or a complete registration if the list is empty; False if that failed."""
        try:
            for topic in topics:
                server.knows_217 = server.knows_217 and await self._send_topic(server.address, topic)
            if not topics or not server.knows_217:
                await self._send(server.address)
        except RocketError as error:
            if server.healthy:
                _log.warning(
                    "Registration with name server %s failed: %s Retrying. Clients that know this broker's address are "
                    "still served.",
                    server.address,
                    error_text(error),
                )
            server.healthy = server.registered = False
            server.everything = True
            return False
        if not server.healthy:
            _log.warning("Registered with name server %s again.", server.address)
        server.healthy = server.registered = True
        return True

    # --- requests -----------------------------------------------------------------------------------------------

    async def _send(self, address: str) -> None:
        """Send one complete registration; RocketError if it fails."""
        version, bodies = await asyncio.to_thread(self._bodies)
        is_master = self._config.broker_id == MASTER_ID
        if len(bodies) > 1 and is_master and not await self._has_changed(address, version):
            return
        refused: RocketError | None = None
        for body in bodies:
            timeout = self._timeout + len(body) / _BYTES_PER_SECOND
            response = await self._client.invoke(address, self._registration(body), timeout)
            if response.code != ResponseCode.SUCCESS:  # the other parts may be accepted
                refused = refused or RocketError(f"Response code {response.code}: {response.remark or ''}")
            elif not is_master:
                header = RegisterBrokerResponseHeader.from_ext(response.ext_fields)
                self._on_master(header.ha_server_addr, header.master_addr)
        if refused is not None:
            raise refused

    def _registration(self, body: bytes) -> RemotingCommand:
        config = self._config
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._broker_addr,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self._ha_server_addr,
            broker_id=config.broker_id,
            # Without this field, name servers ignore a slave's topics while there is no master.
            enable_acting_master=None if config.broker_id == MASTER_ID else False,
            compressed=False,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, header.to_ext(), body)

    async def _has_changed(self, address: str, version: DataVersion) -> bool:
        """Whether the name server has another version of the topics; otherwise the request counts as a heartbeat."""
        config = self._config
        header = QueryDataVersionRequestHeader(
            config.broker_name, self._broker_addr, config.broker_cluster_name, config.broker_id
        )
        request = RemotingCommand.request(RequestCode.QUERY_DATA_VERSION, header.to_ext(), version.to_json())
        response = await self._client.invoke(address, request, self._timeout)
        if response.code != ResponseCode.SUCCESS:
            return True
        return bool(QueryDataVersionResponseHeader.from_ext(response.ext_fields).changed)

    def _bodies(self) -> tuple[DataVersion, list[bytes]]:
        """The version of the topics, and the bodies of the requests (103) of one registration, uncompressed."""
        wrapper = self._topics.snapshot()
        version = DataVersion.from_value(wrapper["dataVersion"])
        mask = self._config.broker_permission | ~PERM_READ_WRITE
        entries = list(wrapper["topicConfigTable"].items())
        for _, entry in entries:
            entry["perm"] &= mask
        split = self._config.enable_split_registration
        size = self._config.split_registration_size if split else max(len(entries), 1)
        body = _body(entries, version)
        if len(entries) <= size and len(body) <= _MAX_BODY_BYTES:
            return version, [body]
        parts = [part for at in range(0, len(entries), size) for part in _divide(entries[at : at + size])]
        bodies = []
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1
            # No table has a negative timestamp.
            of_part = version if is_last else DataVersion(version.state_version, -1 - number, version.counter)
            bodies.append(_body(part, of_part))
        return version, bodies

    async def _send_topic(self, address: str, topic: str) -> bool:
        """Register one topic; False if the name server does not support the request."""
        entry = self._topics.get(topic)
        if entry is None:
            return True  # deleted since then
        queues = QueueData(
            broker_name=self._config.broker_name,
            read_queue_nums=entry.read_queue_nums,
            write_queue_nums=entry.write_queue_nums,
            perm=entry.perm & (self._config.broker_permission | ~PERM_READ_WRITE),
            topic_sys_flag=entry.topic_sys_flag,
        )
        body = TopicRouteData(queue_datas=[queues]).to_json()
        ext = RegisterTopicRequestHeader(topic=topic).to_ext()
        request = RemotingCommand.request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, ext, body)
        response = await self._client.invoke(address, request, self._timeout)
        if response.code not in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            raise RocketError(f"Response code {response.code}: {response.remark or ''}")
        return response.code == ResponseCode.SUCCESS

    async def _unregister(self, address: str) -> None:
        config = self._config
        header = UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._broker_addr,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        request = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header.to_ext())
        await self._client.invoke(address, request, _UNREGISTER_TIMEOUT_S)


async def _queues_in(body: bytes | bytearray | memoryview) -> list[QueueData]:
    """Decode the queues of a route; a large one in a thread. RocketError if it is too large."""
    size = len(body)
    if not size:
        return []
    if size > _MAX_ROUTE_BYTES:
        raise RocketError(f"A route has {size:,} bytes, at most {_MAX_ROUTE_BYTES:,} are allowed.")
    if size > _MAX_INLINE_BYTES:
        return (await asyncio.to_thread(TopicRouteData.from_json, body)).queue_datas
    return TopicRouteData.from_json(body).queue_datas


def _settle(waiting: list[asyncio.Future[None]]) -> None:
    for done in waiting:
        if not done.done():
            done.set_result(None)
    waiting.clear()


_Entries = list[tuple[str, dict[str, Any]]]


def _body(entries: _Entries, version: DataVersion) -> bytes:
    """Uncompressed body of REGISTER_BROKER (103)."""
    wrapper = {
        "dataVersion": version.to_value(),
        "topicConfigTable": dict(entries),
        "topicQueueMappingInfoMap": {},
        "topicQueueMappingDetailMap": {},
        "mappingDataVersion": version.to_value(),
    }
    return dumps_fastjson({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})


def _divide(entries: _Entries) -> list[_Entries]:
    """Divide topics into parts whose bodies fit into a frame. A topic that does not fit is omitted."""
    if len(_body(entries, DataVersion())) <= _MAX_BODY_BYTES:
        return [entries]
    if len(entries) == 1:
        _log.error("Topic %s is not registered: its settings do not fit into a frame.", entries[0][0])
        return []
    middle = len(entries) // 2
    return [*_divide(entries[:middle]), *_divide(entries[middle:])]
