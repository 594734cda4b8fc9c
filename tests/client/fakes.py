"""Name servers and brokers with configured responses, on real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from spark_rocket.protocol.wire.bodies.route import BrokerData, QueueData, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.remoting_server import RemotingServer
from tests.kit.brokers import LoopThread

Answer = Callable[[RemotingCommand], RemotingCommand | None]


class Fake(LoopThread):
    """A server on a thread. ``answers`` may be changed while it runs; every request is kept in ``requests``."""

    def __init__(self, answers: Mapping[int, Answer] | None = None, port: int = 0) -> None:
        self.answers: dict[int, Answer] = dict(answers or {})
        self.requests: list[RemotingCommand] = []
        self.arrived = threading.Semaphore(0)
        super().__init__()
        self._server = RemotingServer("127.0.0.1", port, {}, default_handler=self._serve, busy_poll=0)
        self._closed = False
        self.do(self._server.start())
        self.address = self._server.address

    def _serve(self, _: object, request: RemotingCommand) -> RemotingCommand | None:
        request.body = bytes(request.body)
        self.requests.append(request)
        answer = self.answers.get(request.code)
        try:
            if answer is None:
                return RemotingCommand.response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no such thing here")
            return answer(request)
        finally:
            self.arrived.release()

    def codes(self) -> list[int]:
        return [request.code for request in self.requests]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.do(self._server.close())
            self.stop_loop()


def says(code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b"") -> Answer:
    """Return a handler with a constant response."""
    return lambda request: RemotingCommand.response(request, code, remark, ext, body)


def route(
    queues: Mapping[str, tuple[int, int, int]], addresses: Mapping[str, Mapping[int, str]], cluster: str = "c"
) -> TopicRouteData:
    """``queues``: broker name -> (read queues, write queues, perm)."""
    return TopicRouteData(
        queue_datas=[QueueData(name, read, write, perm) for name, (read, write, perm) in queues.items()],
        broker_datas=[BrokerData(cluster, name, dict(by_id)) for name, by_id in addresses.items()],
    )


STORED = {"msgId": "0A", "queueId": "0", "queueOffset": "7", "transactionId": "T"}
POSITION = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1", "suggestWhichBrokerId": "0"}


class FakeCluster:
    """One name server and some brokers, ``b0`` … with the same number of queues of every topic in ``topics``."""

    def __init__(self, brokers: int = 2) -> None:
        self.topics: dict[str, TopicRouteData] = {}
        self.brokers = [Fake() for _ in range(brokers)]
        self.name_server = Fake({RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route})

    def add(self, topic: str, queues: int = 2, perm: int = 6) -> str:
        names = [f"b{i}" for i in range(len(self.brokers))]
        self.topics[topic] = route(
            dict.fromkeys(names, (queues, queues, perm)),
            {name: {0: broker.address} for name, broker in zip(names, self.brokers, strict=True)},
        )
        return topic

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        found = self.topics.get(request.ext_fields["topic"])
        if found is None:
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        return RemotingCommand.response(request, 0, None, None, found.to_json(standard=True))

    def everywhere(self, code: int, answer: Answer) -> None:
        for broker in self.brokers:
            broker.answers[code] = answer

    def accept(self) -> None:
        """Store every message and register every member."""
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            self.everywhere(code, says(0, ext=STORED))
        for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
            self.everywhere(code, says(0))

    def close(self) -> None:
        for server in (self.name_server, *self.brokers):
            server.close()
