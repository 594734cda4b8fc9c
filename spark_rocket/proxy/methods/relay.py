"""Relays requests of brokers (for administration tools) to gRPC clients by their Telemetry streams.

====  ============================  ===================================================================================
code  command to the client         result
====  ============================  ===================================================================================
307   PrintThreadStackTraceCommand  the stacks, and the proxy's data of the client; without ``jstackEnable`` no command
                                    is sent
309   VerifyMessageCommand          OK: CR_SUCCESS; FAILED_TO_CONSUME_MESSAGE: CR_LATER; MESSAGE_CORRUPTED:
                                    CR_RETURN_NULL; others: CR_THROW_EXCEPTION
====  ============================  ===================================================================================

If a client does not respond within 5 s, the broker gets the same error as for a classic client.

Corresponds to org.apache.rocketmq.proxy.service.relay.{ProxyRelayService, ProxyChannel}.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from spark_rocket.errors import RemotingTimeoutError
from spark_rocket.protocol.record.record import iter_records
from spark_rocket.protocol.wire.bodies.consumer import (
    CR_LATER,
    CR_RETURN_NULL,
    CR_SUCCESS,
    CR_THROW_EXCEPTION,
    PROP_CLIENT_VERSION,
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster, Pushed
from spark_rocket.proxy.messages.message_out import body_of, properties_of, write_message
from spark_rocket.proxy.methods.client_registry import ClientRegistry
from spark_rocket.proxy.methods.grpc_client import GrpcClient

_Code = definitions.Code
_RESULTS: dict[int, str] = {
    _Code.OK: CR_SUCCESS,
    _Code.FAILED_TO_CONSUME_MESSAGE: CR_LATER,
    _Code.MESSAGE_CORRUPTED: CR_RETURN_NULL,
}


class Relay:
    """Handles requests of brokers to clients."""

    def __init__(self, cluster: ProxyCluster, clients: ClientRegistry) -> None:
        self._cluster = cluster
        self._clients = clients

    def handlers(self) -> dict[int, Pushed]:
        """Return the handlers of the requests, by code."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: partial(_begin, self.running_info),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: partial(_begin, self.consume_directly),
        }

    async def running_info(self, request: RemotingCommand) -> RemotingCommand:
        """Handle GET_CONSUMER_RUNNING_INFO (307)."""
        header = GetConsumerRunningInfoRequestHeader.from_ext(request.ext_fields)
        client = self._clients.named(header.client_id)
        info = self._known(client, header.consumer_group)
        if header.jstack_enable:
            command = definitions.TelemetryCommand()
            command.print_thread_stack_trace_command.nonce = nonce = uuid.uuid4().hex
            response = await client.ask(command, nonce)
            if response.status.code != _Code.OK:
                remark = response.status.message or f"the client responded with {response.status.code}"
                return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, remark)
            info.jstack = response.thread_stack_trace.thread_stack_trace
        return RemotingCommand.response(request, body=info.to_json())

    def _known(self, client: GrpcClient, group: str) -> ConsumerRunningInfo:
        data = client.data.get(group)
        settings = self._cluster.groups.last(group)
        orderly = settings is not None and settings.consume_message_orderly
        return ConsumerRunningInfo(
            properties={
                PROP_CONSUME_TYPE: "" if data is None else data.consume_type,
                PROP_CONSUME_ORDERLY: "true" if orderly else "false",
                PROP_CLIENT_VERSION: client.version,
                PROP_CONSUMER_START_TIMESTAMP: str(client.since),
            },
            subscription_set=[] if data is None else data.subscription_data_set,
        )

    async def consume_directly(self, request: RemotingCommand) -> RemotingCommand:
        """Handle CONSUME_MESSAGE_DIRECTLY (309): the request's body is the stored message."""
        header = ConsumeMessageDirectlyResultRequestHeader.from_ext(request.ext_fields)
        client = self._clients.named(header.client_id or "")
        record = next(iter(iter_records(request.body)))
        nonce = uuid.uuid4().hex
        command = definitions.TelemetryCommand()
        command.verify_message_command.nonce = nonce
        write_message(
            command.verify_message_command.message,
            record,
            properties_of(record),
            header.topic or str(record.topic, "utf-8"),
            body_of(record, self._clients.max_body_size),
        )
        started = time.monotonic()
        response = await client.ask(command, nonce)
        result = ConsumeMessageDirectlyResult(
            consume_result=_RESULTS.get(response.status.code, CR_THROW_EXCEPTION),
            remark=response.status.message or "from a gRPC client",
            spent_time_mills=int((time.monotonic() - started) * 1000),
        )
        return RemotingCommand.response(request, body=result.to_json())


def _begin(
    handle: Callable[[RemotingCommand], Coroutine[Any, Any, RemotingCommand]], broker: str, request: RemotingCommand
) -> asyncio.Future[RemotingCommand]:
    async def respond() -> RemotingCommand:
        try:
            return await handle(request)
        except RemotingTimeoutError as error:
            return RemotingCommand.response(request, ResponseCode.CONSUME_MSG_TIMEOUT, error.message)

    return asyncio.get_running_loop().create_task(respond())
