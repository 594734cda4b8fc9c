"""Telling the name servers about this broker: at once, after every change of a topic, and every 30 seconds.

One thread per name server address, since one that does not answer must not delay the others, and because the client
it uses blocks. Requests that come while a registration runs share the next one. The broker serves all the same when
no name server answers; that is logged once, and once more when it is over.

A registration (103) carries every topic. A few that are new or changed are told by themselves (217), as Apache's
brokers from 5.1 do, so that the thousandth topic costs no more than the first; a name server that does not know 217
gets a registration. What 217 told is repeated by the next registration, whose version is newer.

A name server that was restarted, or that took the broker for dead, has closed the connection: that is looked for every
second, and the broker registers again. To a slave the answer says where its master is (``on_master``).

Thread-safety: ``register`` and ``close`` are called on the event loop. The body is built by the worker threads from
tables that only ever get copied whole.
Corresponds to org.apache.rocketmq.broker.out.BrokerOuterAPI and BrokerController.registerBrokerAll.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.broker.state.topics import PERM_READ_WRITE, TopicConfigManager
from spark_rocket.errors import RemotingError, RocketError
from spark_rocket.protocol.wire.bodies import MASTER_ID, QueueData, TopicRouteData, dumps_fastjson
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import (
    GetRouteInfoRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.remoting.tls.problems import told

_log = logging.getLogger(__name__)

_UNREGISTER_TIMEOUT = 1.0
_ROUTE_TIMEOUT = 3.0
_FEW_TOPICS = 32
# A name server that does not answer is asked again after this long, then twice as long, up to the usual period.
_FIRST_RETRY = 0.5
_LOOK_SECONDS = 1.0  # whether the connection still stands


class NameServerRegistration:
    """Keeps every name server informed."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        *,
        broker_addr: str,
        ha_server_addr: str,
        on_master: Callable[[str | None, str | None], None],
    ) -> None:
        """``on_master(ha_address, address)`` is called on the loop with each answer to a slave's registration."""
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._topics = topics
        self._on_master = on_master
        self._broker_addr = broker_addr
        self._ha_server_addr = ha_server_addr
        period, timeout = config.register_name_server_period / 1000, config.register_broker_timeout_mills / 1000
        self._client = RemotingClient(
            connect_timeout=timeout, tls=config.client_tls(), credentials=config.own_credentials
        )
        self._closed = False
        self._waiting: list[tuple[dict[_Worker, int], asyncio.Future[None]]] = []
        self._workers = [_Worker(address, self, period, timeout) for address in config.name_servers]

    def start(self) -> None:
        for worker in self._workers:
            worker.thread.start()

    def register(self, topics: Collection[str] | None = None) -> asyncio.Future[None]:
        """Tell of these topics, or of everything; done when every name server that last answered knows."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._closed:
            done.set_result(None)
            return done
        for worker in self._workers:
            worker.wake(topics)
        expected = {worker: worker.wanted for worker in self._workers if worker.healthy}
        if expected:
            self._waiting.append((expected, done))
        else:
            done.set_result(None)
        return done

    def states(self) -> dict[str, bool]:
        """Whether each name server has taken the last registration."""
        return {worker.address: worker.registered for worker in self._workers}

    async def close(self) -> None:
        """Unregister where we are registered, and stop."""
        self._closed = True
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            if worker.thread.ident is not None:
                await asyncio.to_thread(worker.thread.join)
        self._client.close()
        for _, done in self._waiting:
            if not done.done():
                done.set_result(None)
        self._waiting.clear()

    def finished(self, worker: _Worker, ticket: int) -> None:
        """A worker has carried out every request up to its ``ticket``, or has failed to."""
        still = []
        for expected, done in self._waiting:
            if expected.get(worker, ticket + 1) <= ticket or not worker.healthy:
                expected.pop(worker, None)
            if expected:
                still.append((expected, done))
            elif not done.done():
                done.set_result(None)
        self._waiting = still

    def send(self, address: str, timeout: float) -> None:
        """One registration; RocketError when it did not succeed."""
        config = self._config
        body = self._body()
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._broker_addr,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self._ha_server_addr,
            broker_id=config.broker_id,
            # Without it, the name server takes no topics of a slave while there is no master.
            enable_acting_master=None if config.broker_id == MASTER_ID else False,
            compressed=False,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header.to_ext(), body)
        answer = self._client.invoke(address, request, timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise RocketError(f"It answered {answer.code}: {answer.remark or ''}")
        if config.broker_id != MASTER_ID:
            said = RegisterBrokerResponseHeader.from_ext(answer.ext_fields)
            with suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._on_master, said.ha_server_addr, said.master_addr)

    def _body(self) -> bytes:
        """The body of REGISTER_BROKER (103), not compressed."""
        wrapper = self._topics.snapshot()
        mask = self._config.broker_permission | ~PERM_READ_WRITE
        for entry in wrapper["topicConfigTable"].values():
            entry["perm"] &= mask
        wrapper.update(
            topicQueueMappingInfoMap={}, topicQueueMappingDetailMap={}, mappingDataVersion=wrapper["dataVersion"]
        )
        return dumps_fastjson({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})

    def is_connected(self, address: str) -> bool:
        return self._client.is_connected(address)

    def send_topic(self, address: str, topic: str, timeout: float) -> bool:
        """Tell of one topic; False when the name server does not know how to be told."""
        entry = self._topics.get(topic)
        if entry is None:
            return True  # deleted meanwhile
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
        answer = self._client.invoke(address, request, timeout)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            raise RocketError(f"It answered {answer.code}: {answer.remark or ''}")
        return answer.code == ResponseCode.SUCCESS

    def queues_of(self, topic: str) -> list[QueueData]:
        """A topic's queues on all brokers, as the first name server that answers says; RocketError when none does.

        For a thread of its own: it blocks.
        """
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic).to_ext())
        for worker in self._workers:
            if worker.healthy:
                with suppress(RemotingError):
                    answer = self._client.invoke(worker.address, request, _ROUTE_TIMEOUT)
                    return TopicRouteData.from_json(answer.body).queue_datas if answer.body else []
        raise RocketError("No name server answers.")

    def unregister(self, address: str) -> None:
        config = self._config
        header = UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._broker_addr,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        request = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header.to_ext())
        self._client.invoke(address, request, _UNREGISTER_TIMEOUT)

    def call_on_loop(self, worker: _Worker, ticket: int) -> None:
        try:
            self._loop.call_soon_threadsafe(self.finished, worker, ticket)
        except RuntimeError:  # the loop has closed: nobody waits any more
            pass


class _Worker:
    """The thread that talks to one name server."""

    def __init__(self, address: str, owner: NameServerRegistration, period: float, timeout: float) -> None:
        self.address = address
        self.healthy = True
        self.registered = False
        self.wanted = 0
        self._owner = owner
        self._period = period
        self._timeout = timeout
        self._condition = threading.Condition()
        self._stopping = False
        self._everything = True
        self._topics: set[str] = set()
        self._knows_217 = True
        self.thread = threading.Thread(target=self._run, name=f"register-{address}", daemon=True)

    def wake(self, topics: Collection[str] | None) -> None:
        with self._condition:
            self.wanted += 1
            if topics is None:
                self._everything = True
            else:
                self._topics.update(topics)
            self._condition.notify()

    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify()

    def _run(self) -> None:
        done = -1  # the first registration is not asked for
        registered = False
        retry = _FIRST_RETRY
        due = 0.0  # of everything: topics told by themselves are no sign of life to a name server
        while True:
            with self._condition:
                if done >= 0:
                    left = max(0.0, due - time.monotonic())
                    # The lambda is called within wait_for only, while ``done`` is what it is now.
                    called = self._condition.wait_for(
                        lambda: self._stopping or self.wanted > done,  # noqa: B023 - it is called in this turn of the loop only
                        min(left, _LOOK_SECONDS),
                    )
                    lost = self.healthy and not self._owner.is_connected(self.address)
                    if not called and not lost and time.monotonic() < due:
                        continue
                    if lost:
                        due = 0.0
                if self._stopping:
                    break
                everything = self._everything or len(self._topics) > _FEW_TOPICS or time.monotonic() >= due
                topics = [] if everything else sorted(self._topics)
                self._everything = False
                self._topics.clear()
                done = self.wanted
            topics = topics if self.healthy and self._knows_217 else []
            if not topics:
                due = time.monotonic() + self._period
            registered = self._register(topics) or registered
            if self.healthy:
                retry = _FIRST_RETRY
            else:
                due = time.monotonic() + retry
                retry = min(2 * retry, self._period)
            self._owner.call_on_loop(self, done)
        if registered and self.healthy:
            try:
                self._owner.unregister(self.address)
            except RocketError as error:
                _log.info("Could not unregister from name server %s: %s", self.address, error.message)

    def _register(self, topics: list[str]) -> bool:
        """Tell of these topics, or of everything if there are none."""
        try:
            if topics:
                self._knows_217 = all(self._owner.send_topic(self.address, topic, self._timeout) for topic in topics)
            if not topics or not self._knows_217:
                self._owner.send(self.address, self._timeout)
        except RocketError as error:
            if self.healthy:
                _log.warning(
                    "Not registered with name server %s: %s It is tried again; clients that know this broker's address "
                    "are served meanwhile.",
                    self.address,
                    told(error),
                )
            self.healthy = self.registered = False
            with self._condition:
                self._everything = True
            return False
        if not self.healthy:
            _log.warning("Registered with name server %s again.", self.address)
        self.healthy = self.registered = True
        return True
