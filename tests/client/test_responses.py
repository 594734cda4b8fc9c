"""Errors and remedies for the code and remark of a response."""

from __future__ import annotations

import time

import pytest

from spark_rocket.client.core.responses import error_of
from spark_rocket.errors import BrokerError, ClientError, MessageTooLargeError
from spark_rocket.protocol.requests.pipelines import SentRequest
from spark_rocket.protocol.wire.codes import SEE_FAQ, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand

NO_POLICY = "User:alice has no permission to access {} from 127.0.0.1, no matched policies."


def refused(code: int, remark: str) -> ClientError:
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {})
    return error_of(RemotingCommand.response(request, code, remark), "Broker b", "the send to T", "T")


@pytest.mark.parametrize(
    "remark",
    [
        "message body size over max value, MAX: 4194304",
        "the body has 5000000 bytes, more than maxMessageSize 4194304",
        "properties have 40000 bytes, more than 32767",
        # 4.9 and 5.3
        "the message is illegal, maybe msg body or properties length not matched. msg body length limit 128k, msg"
        " properties length limit 32k.",
        "the message is illegal, maybe msg body or properties length not matched. msg body length limit 4194304B, msg"
        " properties length limit 32KB.",
    ],
)
def test_message_too_large(remark: str) -> None:
    error = refused(ResponseCode.MESSAGE_ILLEGAL, remark)
    assert isinstance(error, MessageTooLargeError)
    assert "maxMessageSize" in error.remedy


@pytest.mark.parametrize(
    ("remark", "words"),
    [
        ("message topic length too long 200", "smaller"),
        ("invalid property DELAY 'abc': use the number of a delay level", "a delay level"),
        ("invalid property TIMER_DELAY_MS 'abc': use a whole number of milliseconds", "an integer"),
        (
            "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; or if set del "
            "msg, the delay time should be bigger than the current time",
            "timerMaxDelaySec",
        ),
        ("delayed messages cannot be sent in a batch", "one by one"),
        ("transactional messages cannot be sent in a batch", "one by one"),
    ],
)
def test_an_illegal_message_is_not_always_too_large(remark: str, words: str) -> None:
    error = refused(ResponseCode.MESSAGE_ILLEGAL, remark)
    assert isinstance(error, BrokerError)
    assert words in error.remedy
    assert ("smaller" in error.remedy) == (words == "smaller")


@pytest.mark.parametrize("piece", [", ", "User:", "accessKey="])
def test_a_remark_is_cut(piece: str) -> None:
    """Brokers relay those of consumers to administrators and the console, and they may have 16 MiB."""
    request = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, {})
    response = RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, "no permission " + piece * 20_000)
    begun = time.perf_counter()
    error = error_of(response, "Broker b", "the query", request=request)
    assert time.perf_counter() - begun < 1
    assert len(error.message) < 5_000
    assert "no permission" in error.message


def test_an_illegal_message_of_another_kind() -> None:
    assert refused(ResponseCode.MESSAGE_ILLEGAL, "the properties contain a NUL character").remedy == ""


def test_a_timed_message_for_a_broker_without_timers() -> None:
    remark = "accurate timer message is not enabled, timerWheelEnable is false"
    assert "delay_level" in refused(ResponseCode.SYSTEM_ERROR, remark).remedy


@pytest.mark.parametrize(
    ("code", "remark", "words"),
    [
        (ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid", "no longer be recalled"),
        (ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match", "the topic"),
        (ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid", "SendResult.recall_handle"),
        (ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden", "recallMessageEnable=true"),
        (ResponseCode.NO_PERMISSION, "the broker[b] sending message is forbidden", "perm 6"),
    ],
)
def test_a_refused_recall(code: int, remark: str, words: str) -> None:
    assert words in refused(code, remark).remedy


@pytest.mark.parametrize(
    ("code", "remark", "words"),
    [
        (
            1,
            "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, PlainAccessValidator",
            "secret_key=",
        ),
        (1, "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=u", "secret_key="),
        (1, "org.apache.rocketmq.acl.common.AclException: No default permission for T", "plain_acl.yml"),
        (16, "Check signature failed for accessKey=u", "secret_key="),
        (16, "No acl config for u", "secret_key="),
        (16, "Need admin permission for request code=17, but accessKey=u is not", "plain_acl.yml"),
        (16, "User:u is not found.", "secret_key="),
        (16, "check signature failed.", "secret_key="),
        (16, "username cannot be null.", "secret_key="),
        (16, "The subject is not exist.", "rocket acl update USER"),
        (16, "The resource is null.", "Correct the user, the resource"),
        (16, "User:u has no permission to access Topic:T from 127.0.0.1, no matched policies.", "createAcl"),
    ],
)
def test_access_control_of_4_9_and_5_x(code: int, remark: str, words: str) -> None:
    error = refused(code, remark)
    assert words in error.remedy
    assert bool(error.remedy) == bool(words)
    assert not error.retriable


@pytest.mark.parametrize(
    ("asked", "code", "remark", "words"),
    [
        (
            SentRequest(RequestCode.GET_MAX_OFFSET, "orders"), 16, NO_POLICY.format("Topic:orders"),
            "User alice needs Get on Topic:orders. Ask an administrator of the brokers to grant it: "
            "rocket acl allow alice Topic:orders Get (ACL 2.0).",
        ),
        (
            SentRequest(RequestCode.QUERY_CONSUMER_OFFSET, "orders", "billing"), 16, NO_POLICY.format("Group:billing"),
            "User alice needs Sub or Get on Group:billing.",
        ),
        (
            SentRequest(RequestCode.GET_ALL_TOPIC_CONFIG), 16, NO_POLICY.format("Topic:*"),
            "rocket acl allow alice 'Topic:*' List (ACL 2.0).",  # a shell would replace the *
        ),
        (
            SentRequest(RequestCode.GET_BROKER_CONFIG), 16, NO_POLICY.format("Cluster:prod"),
            "User alice needs Get on Cluster:prod.",
        ),
        (
            SentRequest(RequestCode.GET_MAX_OFFSET, "orders"), 16, NO_POLICY.format("Topic:MQ_INST_1_a%orders"),
            "User alice needs Get on Topic:MQ_INST_1_a%orders.",
        ),
        (
            SentRequest(RequestCode.PULL_MESSAGE, "orders", "billing"), 1,
            "org.apache.rocketmq.acl.common.AclException: No default permission for group:billing",
            "Account own needs SUB on Group:billing. Ask an administrator of the brokers to grant it: "
            "rocket acl update own --group billing=SUB (ACL 1.0).",
        ),
        (
            SentRequest(RequestCode.PULL_MESSAGE, "orders", "billing"), 1,
            "org.apache.rocketmq.acl.common.AclException: No default permission for orders",
            "Account own needs SUB on Topic:orders and SUB on Group:billing.",
        ),
        (
            SentRequest(RequestCode.UPDATE_AND_CREATE_TOPIC, "orders"), 16,
            "Need admin permission for request code=17, but accessKey=own is not",
            "rocket acl update own --admin",
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_the_missing_permission(asked: SentRequest, code: int, remark: str, words: str) -> None:
    """Apache's remarks do not name the action, and those of ACL 1.0 not the account."""
    response = RemotingCommand.response(RemotingCommand.request(11, {}), code, remark)
    error = error_of(response, "Broker b", "the request", request=asked.request(), account="own")
    assert words in str(error)


def test_a_refusal_that_names_everything_is_not_extended() -> None:
    asked, remark = (
        SentRequest(RequestCode.GET_MAX_OFFSET, "orders"),
        f"{NO_POLICY.format('Topic:orders')} The request needs Get.",
    )
    response = RemotingCommand.response(RemotingCommand.request(11, {}), 16, remark)
    error = error_of(response, "Broker b", "the request", request=asked.request(), account="own")
    assert error.message.endswith("no matched policies. The request needs Get.")
    assert "rocket acl allow alice Topic:orders Get" in error.remedy


@pytest.mark.parametrize(
    ("remark", "passes"),
    [
        ("[PC_SYNCHRONIZED]broker busy, start flow control for a while", True),
        ("create mapped file failed, server is busy or broken.", True),
        ("in-sync replicas not enough", True),
        ("timer message is under flow control, max num limit is 2 or the current value is greater than 1", True),
        ("broker unable to service, until 2026-01-01 00:00:00,000", True),
        ("UNKNOWN_ERROR", False),
        ("the topic[TBW102] is conflict with system reserved words.", False),
    ],
)
def test_retriable_system_errors(remark: str, passes: bool) -> None:
    assert refused(ResponseCode.SYSTEM_ERROR, remark).retriable is passes


def test_a_remedy_from_the_broker_is_not_extended() -> None:
    remark = "[STORE_NOT_WRITABLE] The disk of d has no room: No space left on device. Free some space."
    error = refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
    assert str(error).endswith("Free some space.")
    assert error.retriable
    assert "retry after a moment" in refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping").remedy


def test_links_of_apaches_servers_are_removed() -> None:
    """The remedy has the instructions."""
    error = refused(26, f"subscription group [g] does not exist, {SEE_FAQ}")
    assert str(error).count("\n") == 0
    assert "subscription group [g] does not exist. Create the consumer group" in str(error)
    error = refused(1, "See you\nSee https://elsewhere")
    assert "See you\nSee https://elsewhere." in str(error)
