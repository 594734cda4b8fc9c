"""One attempt to send to one queue, for a caller that limits, orders and repeats its attempts itself.

An attempt is the request of its connection's session and has that request's deadline: no other table has it, no hook
sees it, and a producer that is closed does not wait for it. It fails with the errors of a send, and is counted as one.

Thread-safety: as a promise. Corresponds to MQClientAPIImpl.sendMessage with no retries.
"""

from __future__ import annotations

import time

from spark_rocket.client.send.outgoing import Outgoing
from spark_rocket.client.send.pipeline import Pipeline
from spark_rocket.model import MessageQueue, SendResult
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.promise import Promise
from spark_rocket.remoting.client.request import Submitted


class Attempt(Promise[SendResult], Submitted):
    """The promise of the result. ``timeout`` includes the look-up of the broker and connecting to it."""

    def __init__(self, pipeline: Pipeline, out: Outgoing, queue: MessageQueue, timeout: float) -> None:
        super().__init__()
        self.code = out.code
        self._pipeline = pipeline
        self._out = out
        self._queue = queue
        self._address = ""
        self._begun = time.monotonic()
        self.begin(timeout, self._begun)
        try:
            self._address = pipeline.router.address(queue, self.deadline)
            pipeline.instance.remoting.submit(self._address, out.request(pipeline.group, queue), self)
        except Exception as error:
            self.fail(error)

    def respond(self, response: RemotingCommand) -> None:
        seconds = time.monotonic() - self._begun
        try:
            result = self._pipeline.answered(self._out, self._queue, self._address, seconds, response)
        except Exception as error:
            self.fail(error)
        else:
            self.resolve(result)

    def fail(self, error: BaseException) -> None:
        self._pipeline.failed(self._out, self._queue, self._address, time.monotonic() - self._begun, error)
        super().fail(error)
