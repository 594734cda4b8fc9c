"""Sends that are waited for: attempts on the caller's own thread, until one succeeds or the time is over.

Thread-safety: functions without a state. Corresponds to DefaultMQProducerImpl.{sendDefaultImpl, sendKernelImpl}.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_rocket.client.core.hooks import SendContext
from spark_rocket.client.send.outgoing import STORED_CODES, Outgoing
from spark_rocket.errors import RemotingConnectError, RemotingError, RocketError
from spark_rocket.model import Message, MessageQueue, SendResult, SendStatus

if TYPE_CHECKING:
    from spark_rocket.client.send.producer import Producer


def send_and_wait(
    producer: Producer,
    message: Message | Sequence[Message],
    out: Outgoing,
    fixed: MessageQueue | None,
    timeout: float,
    deadline: float,
) -> SendResult:
    """Attempts, on another broker each; only one if the queue is given (``fixed``)."""
    destinations = producer.destinations
    last_broker: str | None = None
    retries = 0 if fixed is not None else producer.retry_times_when_send_failed
    while True:
        queue, address = (fixed, "") if fixed else destinations.choose(out.topic, last_broker, deadline)
        try:
            result = attempt(producer, message, out, queue, address, deadline, may_go_on=retries > 0)
        except RocketError as error:
            if retries <= 0 or not producer.may_go_elsewhere(error):
                raise
            if time.monotonic() >= deadline:
                raise producer.late(out.topic, timeout, error) from error
            if isinstance(error, RemotingError):
                destinations.refresh(out.topic, deadline)
        else:
            if (
                result.status is SendStatus.SEND_OK
                or not producer.retry_another_broker_when_not_store_ok
                or retries <= 0
                or time.monotonic() >= deadline
            ):
                return result
        retries -= 1
        producer.stats.of(out.topic).retries += 1
        last_broker = queue.broker_name


def attempt(
    producer: Producer,
    message: Message | Sequence[Message],
    out: Outgoing,
    queue: MessageQueue,
    address: str,
    deadline: float,
    *,
    may_go_on: bool = False,
) -> SendResult:
    """One request and its answer. An empty address is asked for. ``may_go_on``: there may be another attempt."""
    instance = producer.running()
    hooks, faults = producer.hooks, producer.faults
    context: SendContext | None = None
    if hooks is not None:
        context = SendContext(producer.group, message, queue, "sync")
        hooks.before(context)
    begun = time.monotonic()
    try:
        if not address:
            address = producer.destinations.address(queue, deadline)
        request = out.request(producer.group, queue)
        if may_go_on:
            producer.connect(address, deadline)
        answer = instance.remoting.invoke(address, request, producer.allowance(deadline))
        spent = time.monotonic() - begun
        if faults.enabled:
            faults.update(queue.broker_name, spent)
        if answer.code not in STORED_CODES:
            raise producer.refused(answer, address, queue.topic)
        result = out.result(queue, answer)
        producer.stats.sent(out.topic, out.count, len(out.body), spent)
    except RocketError as error:
        producer.stats.failed(out.topic, time.monotonic() - begun)
        if isinstance(error, RemotingError):
            faults.update(queue.broker_name, time.monotonic() - begun, isolated=True)
            if isinstance(error, RemotingConnectError) and address:
                instance.routes.went_away(address)
        if hooks is not None and context is not None:
            context.error, context.broker_address = error, address
            hooks.after(context)
        raise
    if hooks is not None and context is not None:
        context.result, context.broker_address = result, address
        hooks.after(context)
    return result
