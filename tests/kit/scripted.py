"""Scripted name servers and brokers on real sockets: they record requests and give configured responses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from spark_rocket.model import MessageQueue
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.layout import COMPRESSED
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.protocol.wire.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.event_loop import new_event_loop
from spark_rocket.remoting.server.remoting_server import Handler as ChannelHandler
from spark_rocket.remoting.server.remoting_server import RemotingServer
from tests.kit.loop_thread import LoopThread

Handler = Callable[[RemotingCommand], RemotingCommand | None]

QUEUE = MessageQueue("t", "b0", 0)
STORED = {"msgId": "7F0000010000303900000000000000AB", "queueId": "0", "queueOffset": "7", "transactionId": "T"}
POSITION = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1", "suggestWhichBrokerId": "0"}
HOST = pack_host(("127.0.0.1", 1))


class Fake(LoopThread):
    """A server on a thread. ``responses`` may be changed while it runs; every request is kept in ``requests``.

    ``handlers`` are those that need the channel: they note their requests themselves. ``options`` are the server's.
    """

    #: Options of the server: it does not poll before it waits, since it shares the interpreter's lock with the test.
    defaults: ClassVar[Mapping[str, Any]] = {"busy_poll": 0.0}

    def __init__(
        self,
        responses: Mapping[int, Handler] | None = None,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        handlers: Mapping[int, ChannelHandler] | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
        **options: Any,
    ) -> None:
        self.responses: dict[int, Handler] = dict(responses or {})
        self.requests: list[RemotingCommand] = []
        self.arrived = threading.Semaphore(0)
        options = {"default_handler": self._serve, **self.defaults, **options}
        self.server = RemotingServer(host, port, handlers or {}, **options)
        super().__init__(loop_factory)
        self._closed = False
        try:
            self.do(self.server.start())
        except BaseException:
            self.stop_loop()
            raise
        self.address = self.server.address

    def note(self, request: RemotingCommand) -> None:
        self.requests.append(request)
        self.arrived.release()

    def _serve(self, _: object, request: RemotingCommand) -> RemotingCommand | None:
        request.body = bytes(request.body)
        self.requests.append(request)
        respond = self.responses.get(request.code, says(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no such thing here"))
        try:
            return respond(request)
        finally:
            self.arrived.release()

    def codes(self) -> list[int]:
        return [request.code for request in self.requests]

    def of(self, *codes: int) -> list[RemotingCommand]:
        """Return the requests with these codes."""
        return [request for request in self.requests if request.code in codes]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.do(self.server.close())
            self.stop_loop()


def says(code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b"") -> Handler:
    """Return a handler with a constant response."""
    return lambda request: RemotingCommand.response(request, code, remark, ext, body)


def says_offset(offset: int) -> Handler:
    return says(0, ext={"offset": str(offset)})


def route(
    queues: Mapping[str, tuple[int, int, int]], addresses: Mapping[str, Mapping[int, str]], cluster: str = "c"
) -> TopicRouteData:
    """``queues``: broker name -> (read queues, write queues, perm)."""
    return TopicRouteData(
        queue_datas=[QueueData(name, read, write, perm) for name, (read, write, perm) in queues.items()],
        broker_datas=[BrokerData(cluster, name, dict(by_id)) for name, by_id in addresses.items()],
    )


def record(
    offset: int,
    body: bytes = b"x",
    *,
    topic: str = "t",
    queue_id: int = 0,
    stored: int = 2,
    sys_flag: int = 0,
    **properties: str,
) -> bytes:
    """A message as a pull returns it. Its position in the commit log is a hundred times its offset."""
    return encode_record(
        topic.encode(),
        queue_id,
        body,
        encode_properties(properties),
        queue_offset=offset,
        physical_offset=offset * 100,
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=stored,
        store_host=HOST,
        sys_flag=sys_flag,
    )


def undecodable(offset: int) -> bytes:
    """A message that its producer marked as compressed, and did not compress."""
    return record(offset, b"not compressed", sys_flag=COMPRESSED)


class FakeCluster:
    """One name server and some brokers, ``b0`` … with the same number of queues of every topic in ``topics``.

    ``addresses`` are those of the brokers by broker ID, as the name server reports them with the cluster of each.
    """

    def __init__(self, brokers: int = 2) -> None:
        self.topics: dict[str, TopicRouteData] = {}
        self.brokers = [Fake() for _ in range(brokers)]
        self.addresses = {f"b{at}": {0: broker.address} for at, broker in enumerate(self.brokers)}
        self.clusters: dict[str, str] = {}
        self.name_server = Fake(
            {RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route, RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info}
        )

    def add(self, topic: str, queues: int = 2, perm: int = 6) -> str:
        self.topics[topic] = route(dict.fromkeys(self.addresses, (queues, queues, perm)), self.addresses)
        return topic

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        found = self.topics.get(request.ext_fields["topic"])
        if found is None:
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        return RemotingCommand.response(request, 0, None, None, found.to_json(standard=True))

    def _cluster_info(self, request: RemotingCommand) -> RemotingCommand:
        info = ClusterInfo({}, {})
        for name, addresses in self.addresses.items():
            cluster = self.clusters.get(name, "c")
            info.broker_addr_table[name] = BrokerData(cluster, name, addresses)
            info.cluster_addr_table.setdefault(cluster, []).append(name)
        return RemotingCommand.response(request, 0, None, None, info.to_json())

    def sends(self) -> list[RemotingCommand]:
        """Return the sends that all brokers received."""
        codes = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
        return [request for broker in self.brokers for request in broker.of(*codes)]

    def everywhere(self, code: int, respond: Handler) -> None:
        for broker in self.brokers:
            broker.responses[code] = respond

    def accept(self) -> None:
        """Store every message and register every member."""
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            self.everywhere(code, says(0, ext=STORED))
        for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
            self.everywhere(code, says(0))

    def close(self) -> None:
        for server in (self.name_server, *self.brokers):
            server.close()
