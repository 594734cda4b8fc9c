"""Life of a client: Telemetry, Heartbeat, NotifyClientTermination, and the broker's lists."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.proxy import definitions
from spark_rocket.proxy.method_types import MAX_TOPICS
from spark_rocket.proxy.methods import client_registry as clients_module
from spark_rocket.proxy.methods.client_registry import ClientRegistry
from spark_rocket.proxy.methods.grpc_client import GrpcClient
from spark_rocket.proxy.server import ProxyServer
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.waiting import until
from tests.proxy.caller import SECONDS, Caller, Telemetry, consumer_settings, producer_settings, resource

pytestmark = pytest.mark.live

Code = definitions.Code
R = TypeVar("R")


@pytest.fixture
def registry(proxy: ProxyServer) -> ClientRegistry:
    assert proxy.methods is not None
    return proxy.methods.clients


@pytest.fixture
def run(parts: BrokerParts) -> Callable[[Callable[[], Any]], Any]:
    """Run a function on the broker's loop and return its result."""

    def run(action: Callable[[], R]) -> R:
        async def act() -> R:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), parts.loop).result(SECONDS)

    return run


def members(wire: Wire, group: str) -> list[str]:
    answer = wire.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    return list(json.loads(bytes(answer.body))["consumerIdList"]) if answer.code == 0 else []


def producers(wire: Wire, group: str) -> list[str]:
    answer = wire.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup=group)
    return [one["clientId"] for one in json.loads(bytes(answer.body))["connectionSet"]] if answer.code == 0 else []


def refused(stream: Telemetry) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        stream.hear()
    return caught.value.code(), caught.value.details()


# --- coming and going -------------------------------------------------------------------------------------------


def test_a_producer_is_answered_listed_and_goes(client: Caller, wire: Wire, topic: str) -> None:
    with client.publish(topic) as stream:
        assert stream.settings.publishing.max_body_size == 4 * 1024 * 1024
        assert producers(wire, topic) == [client.client_id]
        assert client.call("Heartbeat", client_type=1).status.code == Code.OK
        assert client.call("NotifyClientTermination").status.code == Code.OK
        assert producers(wire, topic) == []
        assert client.call("Heartbeat", client_type=1).status.code == Code.UNRECOGNIZED_CLIENT_TYPE


@pytest.mark.parametrize(
    ("kind", "consume_type"),
    [
        ("PUSH_CONSUMER", "CONSUME_PASSIVELY"),
        ("SIMPLE_CONSUMER", "CONSUME_ACTIVELY"),
        ("PULL_CONSUMER", "CONSUME_ACTIVELY"),
    ],
)
def test_a_consumer_is_answered_listed_and_goes(
    client: Caller, wire: Wire, topic: str, group: str, kind: str, consume_type: str
) -> None:
    with client.subscribe(group, topic, kind=kind) as stream:
        assert stream.settings.subscription.receive_batch_size == 32
        assert members(wire, group) == [client.client_id]
        answer = wire.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        told = json.loads(bytes(answer.body))
        assert told["consumeType"] == consume_type
        assert told["subscriptionTable"][topic]["subString"] == "*"
        (connection,) = told["connectionSet"]
        assert (connection["clientId"], connection["language"]) == (client.client_id, "PYTHON")
        assert connection["clientAddr"].startswith("127.0.0.1:")
        assert client.call("Heartbeat", group=resource(group), client_type=2).status.code == Code.OK
        assert client.call("NotifyClientTermination", group=resource(group)).status.code == Code.OK
        assert members(wire, group) == []


def test_members_of_both_protocols_are_in_one_list(client: Caller, wire: Wire, topic: str, group: str) -> None:
    body = {"clientID": "classic", "consumerDataSet": [{"groupName": group, "subscriptionDataSet": []}]}
    assert wire.ask(RequestCode.HEART_BEAT, json.dumps(body).encode()).code == 0
    with client.subscribe(group, topic):
        assert members(wire, group) == sorted(["classic", client.client_id])


def test_a_group_of_a_namespace(cluster: LocalCluster, client: Caller, wire: Wire, topic: str, group: str) -> None:
    cluster.create_topic(f"shop%{topic}", 1)
    settings = consumer_settings(group, topic)
    settings.subscription.group.resource_namespace = "shop"
    settings.subscription.subscriptions[0].topic.resource_namespace = "shop"
    with client.telemetry().say_settings(settings) as stream:
        assert stream.settings.subscription.group == resource(group, "shop")
        assert members(wire, f"shop%{group}") == [client.client_id]
        assert client.call("Heartbeat", group=resource(group, "shop"), client_type=3).status.code == Code.OK
        assert members(wire, group) == []


def test_settings_that_change(cluster: LocalCluster, client: Caller, wire: Wire, topic: str, group: str) -> None:
    cluster.create_topic(f"{topic}-2")
    with client.publish(topic) as stream:
        stream.say_settings(producer_settings(f"{topic}-2"))
        assert (producers(wire, topic), producers(wire, f"{topic}-2")) == ([], [client.client_id])
    with client.subscribe(group, topic) as stream:
        assert producers(wire, f"{topic}-2") == []
        stream.say_settings(consumer_settings(f"{group}-2", topic))
        assert (members(wire, group), members(wire, f"{group}-2")) == ([], [client.client_id])


def test_a_heartbeat_before_the_settings(client: Caller, group: str) -> None:
    answer = client.call("Heartbeat", group=resource(group), client_type=2)
    assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    assert "settings" in answer.status.message
    assert client.call("NotifyClientTermination").status.code == Code.UNRECOGNIZED_CLIENT_TYPE


def test_a_heartbeat_of_another_group_joins_it(client: Caller, wire: Wire, topic: str, group: str) -> None:
    with client.subscribe(group, topic):
        assert client.call("Heartbeat", group=resource(f"{group}-2"), client_type=3).status.code == Code.OK
        assert members(wire, f"{group}-2") == [client.client_id]
        assert client.call("Heartbeat", group=resource("no name")).status.code == Code.ILLEGAL_CONSUMER_GROUP
        assert client.call("Heartbeat").status.code == Code.ILLEGAL_CONSUMER_GROUP
        client.call("NotifyClientTermination", group=resource(group))
        assert members(wire, f"{group}-2") == []


def test_a_silent_client_is_removed(
    client: Caller, wire: Wire, topic: str, group: str, registry: ClientRegistry, run: Callable[..., Any]
) -> None:
    gone: list[tuple[str, tuple[str, ...]]] = []
    registry.on_gone.append(lambda client_id, groups: gone.append((client_id, tuple(groups))))
    try:
        with client.subscribe(group, topic) as stream:
            run(registry.expire)
            assert members(wire, group) == [client.client_id]
            found = registry.named(client.client_id)
            found.last_seen -= 120.001
            run(registry.expire)
            until(lambda: members(wire, group) == [])
            assert gone == [(client.client_id, (group,))]
            assert client.call("Heartbeat", group=resource(group)).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
            stream.say_settings(consumer_settings(group, topic))
            assert members(wire, group) == [client.client_id]
    finally:
        registry.on_gone.pop()


def test_a_client_is_registered_again_at_a_broker_that_lost_it(
    client: Caller,
    wire: Wire,
    topic: str,
    group: str,
    parts: BrokerParts,
    registry: ClientRegistry,
    run: Callable[..., Any],
) -> None:
    """As after its restart: every client is announced on the new connection."""
    with client.subscribe(group, topic), client.publish(topic):
        for channel in parts.clients.producers[topic].channels():
            run(channel.close)
        client.call("GetOffset", message_queue={"topic": {"name": topic}}, group=resource(group))
        until(lambda: producers(wire, topic) == [client.client_id])


def test_many_clients_leave_nothing(
    cluster: LocalCluster,
    topic: str,
    group: str,
    parts: BrokerParts,
    registry: ClientRegistry,
    run: Callable[..., Any],
) -> None:
    def sizes() -> tuple[int, ...]:
        return len(registry), len(parts.clients.producers), len(parts.clients.consumers)

    before = sizes()
    with Caller(cluster.grpc_endpoint, "") as caller:
        for number in range(300):
            caller.client_id = f"many@{number}"
            caller.metadata["x-mq-client-id"] = caller.client_id
            if number % 2:
                caller.publish(topic).end()
            else:
                caller.subscribe(f"{group}-{number}", topic).end()
            if number % 3 == 0:
                assert caller.call("NotifyClientTermination").status.code == Code.OK
        assert sizes() != before
    for number in range(300):
        if registry.owner(f"many@{number}") is not None:
            registry.named(f"many@{number}").last_seen -= 120.001
    run(registry.expire)
    until(lambda: sizes() == before)


@pytest.mark.parametrize("limit", ["MAX_CLIENTS", "MAX_ALL_SETTINGS_BYTES"])
def test_too_many_clients(
    client: Caller, topic: str, registry: ClientRegistry, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(clients_module, limit, 0)
    with client.telemetry() as stream:
        stream.say(settings=producer_settings(topic))
        code, details = refused(stream)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "TOO_MANY_REQUESTS" in details


# --- streams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "remark"),
    [
        (definitions.Settings(client_type=1), "BAD_REQUEST"),
        (consumer_settings("g", kind="PRODUCER"), "UNRECOGNIZED_CLIENT_TYPE"),
        (consumer_settings("g", kind="CLIENT_TYPE_UNSPECIFIED"), "UNRECOGNIZED_CLIENT_TYPE"),
        (consumer_settings("no name"), "ILLEGAL_CONSUMER_GROUP"),
        (consumer_settings(""), "ILLEGAL_CONSUMER_GROUP"),
        (consumer_settings("g", "no topic"), "ILLEGAL_TOPIC"),
        (consumer_settings("g", "T", expression="x" * 100_000), "ILLEGAL_FILTER_EXPRESSION"),
        (consumer_settings("g", "T", expression="x" * 100_000, filter_type="SQL"), "ILLEGAL_FILTER_EXPRESSION"),
        (consumer_settings("g", *["T"] * (MAX_TOPICS + 1)), f"{MAX_TOPICS + 1} entries"),
        (producer_settings("no topic"), "ILLEGAL_TOPIC"),
        (producer_settings("SCHEDULE_TOPIC_XXXX"), "ILLEGAL_TOPIC"),
    ],
)
def test_invalid_settings(client: Caller, registry: ClientRegistry, settings: Any, remark: str) -> None:
    with client.telemetry() as stream:
        stream.say(settings=settings)
        code, details = refused(stream)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert remark in details
    assert registry.owner(client.client_id) is None


@pytest.mark.parametrize("kind", ["LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER"])
def test_lite_consumers_get_the_alternative(client: Caller, kind: str) -> None:
    with client.telemetry() as stream:
        stream.say(settings=consumer_settings("g", "T", kind=kind))
        code, details = refused(stream)
        assert code == grpc.StatusCode.UNIMPLEMENTED
        assert "UNSUPPORTED" in details
        assert "PushConsumer" in details
    answer = client.call("SyncLiteSubscription", topic=resource("T"), group=resource("g"))
    assert answer.status.code == Code.NOT_IMPLEMENTED
    assert "PushConsumer" in answer.status.message


def test_a_silent_stream_and_one_with_unexpected_commands(client: Caller, topic: str) -> None:
    with client.telemetry() as stream:
        stream.say()
        stream.say(thread_stack_trace=definitions.ThreadStackTrace(nonce="none"))
        stream.say(verify_message_result=definitions.VerifyMessageResult(nonce="none"))
        stream.say(status=definitions.Status(code=Code.OK))
        stream.say_settings(producer_settings(topic))
        stream.say(thread_stack_trace=definitions.ThreadStackTrace(nonce="none"))
        stream.end()
        assert list(stream) == []


def test_without_an_id(client: Caller, topic: str) -> None:
    del client.metadata["x-mq-client-id"]
    with client.telemetry() as stream:
        assert stream.hear().status.code == Code.CLIENT_ID_REQUIRED
        with pytest.raises(StopIteration):
            stream.hear()
    for method in ("Heartbeat", "QueryRoute", "NotifyClientTermination", "SendMessage"):
        assert client.call(method).status.code == Code.CLIENT_ID_REQUIRED
    assert [answer.status.code for answer in client.stream("ReceiveMessage")] == [Code.CLIENT_ID_REQUIRED]


def test_an_id_that_is_too_long(client: Caller) -> None:
    client.metadata["x-mq-client-id"] = "x" * 1_025
    assert client.call("Heartbeat").status.code == Code.REQUEST_HEADER_FIELDS_TOO_LARGE


def test_streams_that_break_leave_the_client_until_it_is_silent(
    cluster: LocalCluster,
    client: Caller,
    wire: Wire,
    topic: str,
    group: str,
    registry: ClientRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()
    stream_ended = registry.stream_ended
    monkeypatch.setattr(registry, "stream_ended", lambda *given: (stream_ended(*given), ended.set()))
    with Caller(cluster.grpc_endpoint, client.client_id) as other:
        broken = other.subscribe(group, topic)
        known = registry.named(client.client_id)
        assert len(known.streams) == 1
    with pytest.raises(grpc.RpcError):
        broken.hear()
    assert ended.wait(SECONDS)
    assert known.streams == []
    with client.subscribe(group, topic):
        assert registry.named(client.client_id) is known
        assert members(wire, group) == [client.client_id]


def test_invalid_bytes_end_the_stream(client: Caller) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.raw("Telemetry", b"\xff\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


# --- commands of the server -------------------------------------------------------------------------------------


def test_the_newest_stream_of_a_client_gets_commands(
    client: Caller, topic: str, registry: ClientRegistry, run: Callable[..., Any]
) -> None:
    command = definitions.TelemetryCommand()
    command.recover_orphaned_transaction_command.transaction_id = "1-2-b"
    with client.publish(topic) as first:
        with client.publish(topic) as second:
            assert run(lambda: registry.ask_producer_of(topic, command))
            assert second.hear() == command
            second.end()
            assert list(second) == []
        assert run(lambda: registry.ask_producer_of(topic, command))
        assert first.hear() == command
        first.end()
        assert list(first) == []
    assert not run(lambda: registry.ask_producer_of(topic, command))
    assert not run(lambda: registry.ask_producer_of("unknown", command))


def test_members_get_changes_of_their_group(
    client: Caller, wire: Wire, topic: str, group: str, proxy: ProxyServer, parts: BrokerParts
) -> None:
    assert proxy.methods is not None
    methods = proxy.methods
    with client.subscribe(group, topic) as stream:
        changed = {"groupName": group, "consumeMessageOrderly": True, "retryMaxTimes": 4}
        for settings in ({**changed, "brokerId": 1, "consumeMessageOrderly": False, "retryMaxTimes": 16}, changed):
            assert wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps(settings).encode()).code == 0
            methods.cluster.groups.forget(group)  # as if half a minute had gone by
            asyncio.run_coroutine_threadsafe(methods.clients.send_settings(), parts.loop).result(SECONDS)
        told = stream.hear()  # of the second: the first changed nothing for clients
        assert told.settings.subscription.fifo
        assert told.settings.backoff_policy.max_attempts == 5


@pytest.fixture
def answering(client: Caller, topic: str, group: str) -> Iterator[Callable[[Callable[[Any], Any]], threading.Thread]]:
    """A consumer that answers one command on a thread."""
    with client.subscribe(group, topic) as stream:
        threads: list[threading.Thread] = []

        def answer(make: Callable[[Any], Any]) -> threading.Thread:
            thread = threading.Thread(target=lambda: stream.say(make(stream.hear())))
            thread.start()
            threads.append(thread)
            return thread

        yield answer
        for thread in threads:
            thread.join(SECONDS)


def ask_info(wire: Wire, group: str, client_id: str, jstack: bool) -> Any:
    return wire.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup=group, clientId=client_id, jstackEnable=jstack)


def test_a_tool_sees_what_a_client_does(
    client: Caller, wire: Wire, topic: str, group: str, answering: Callable[..., Any]
) -> None:
    info = json.loads(bytes(ask_info(wire, group, client.client_id, False).body))
    assert info["properties"]["PROP_CLIENT_VERSION"] == "5.1.2"
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert [one["topic"] for one in info["subscriptionSet"]] == [topic]

    def stacks(command: Any) -> Any:
        answer = definitions.TelemetryCommand(status=definitions.Status(code=Code.OK))
        answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
        answer.thread_stack_trace.thread_stack_trace = "main at work"
        return answer

    answering(stacks)
    info = json.loads(bytes(ask_info(wire, group, client.client_id, True).body))
    assert info["jstack"] == "main at work"


def test_a_client_without_stacks(client: Caller, wire: Wire, group: str, answering: Callable[..., Any]) -> None:
    def refuse(command: Any) -> Any:
        answer = definitions.TelemetryCommand(status=definitions.Status(code=Code.UNSUPPORTED, message="not in C#"))
        answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
        return answer

    answering(refuse)
    answer = ask_info(wire, group, client.client_id, True)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "not in C#")


def test_a_client_that_does_not_answer(
    client: Caller, wire: Wire, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GrpcClient.ask, "__defaults__", (0.05,))
    with client.subscribe(group, topic):
        answer = ask_info(wire, group, client.client_id, True)
        assert (answer.code, "did not respond" in answer.remark) == (ResponseCode.CONSUME_MSG_TIMEOUT, True)


def test_a_client_without_a_stream_cannot_be_asked(client: Caller, wire: Wire, topic: str, group: str) -> None:
    with client.subscribe(group, topic) as stream:
        stream.end()
        assert list(stream) == []
        answer = ask_info(wire, group, client.client_id, True)
        assert (answer.code, "no open Telemetry stream" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
        other = wire.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic=topic, group=group, clientAddr="")
        assert json.loads(bytes(other.body))["consumerTable"] == {}


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (Code.OK, "CR_SUCCESS"),
        (Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (Code.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
        (Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED, "CR_THROW_EXCEPTION"),
    ],
)
def test_a_tool_selects_the_consumer_of_a_message(
    client: Caller, wire: Wire, topic: str, group: str, answering: Callable[..., Any], code: int, result: str
) -> None:
    sent = wire.send(topic, b"look at me", {"TAGS": "t"})
    seen: list[Any] = []

    def consume(command: Any) -> Any:
        seen.append(command.verify_message_command.message)
        answer = definitions.TelemetryCommand(status=definitions.Status(code=code))
        answer.verify_message_result.nonce = command.verify_message_command.nonce
        return answer

    answering(consume)
    answer = wire.ask(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        consumerGroup=group,
        clientId=client.client_id,
        msgId=sent.ext_fields["msgId"],
        topic=topic,
    )
    assert json.loads(bytes(answer.body))["consumeResult"] == result
    (message,) = seen
    assert (message.topic, message.body, message.system_properties.tag) == (resource(topic), b"look at me", "t")
