"""What an answer's code means to a caller: a value or the right error.

Pure functions. Corresponds to MQClientAPIImpl's handling of response codes.
"""

from __future__ import annotations

import re

from spark_rocket.errors import BrokerError, ClientError, MessageTooLargeError, QueueNotFoundError, TopicNotFoundError
from spark_rocket.protocol.wire.codes import ResponseCode, without_faq
from spark_rocket.protocol.wire.command import RemotingCommand

# The broker is busy, starting or stopping: the same request may succeed in a moment.
RETRIABLE_CODES = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY}
)
# What Apache's brokers say with code 1 that passes: they are busy, starting, or short of replicas. Nothing was stored.
_PASSES = re.compile(r"broker busy|server is busy|under flow control|unable to service, until|replicas not enough")

_REMEDIES: dict[int, str] = {
    ResponseCode.SYSTEM_BUSY: "Try again in a moment; a broker that stays busy is overloaded, or is a slave that does"
    " not serve reads (slaveReadEnable).",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "This version has no such request, or the address is a server of the"
    " other kind: name servers are usually at 9876, brokers at 10911.",
    ResponseCode.SERVICE_NOT_AVAILABLE: "The broker is starting, stopping, or its disk is full: try again in a moment.",
    ResponseCode.NO_PERMISSION: "Give the topic or broker read/write permission (perm 6), or use another topic.",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "Create the consumer group, or set the broker's"
    " autoCreateSubscriptionGroup=true.",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "The broker refuses readers without a heartbeat"
    " (rejectPullConsumerEnable=false allows them).",
}

_PLAIN_ACL = "Ask whoever runs the broker to add it to the account in plain_acl.yml."
_ACCOUNT = (
    "Give the access key and the secret key of an account of the broker's (access_key=, secret_key=; accessKey,"
    " secretKey; ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY)."
)

# What a remark says, the first that fits, decides before the code does: (code, pattern, remedy).
_REMEDIES_BY_REMARK: tuple[tuple[int, re.Pattern[str], str], ...] = tuple(
    (code, re.compile(pattern, re.IGNORECASE), remedy)
    for code, pattern, remedy in (
        (ResponseCode.MESSAGE_ILLEGAL, "batch", "Send such messages one by one, each with a send of its own."),
        (
            ResponseCode.MESSAGE_ILLEGAL,
            "delay|timer",
            "Give DELAY the number of a delay level, or TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS a whole"
            " number that lies within the broker's timerMaxDelaySec.",
        ),
        (
            ResponseCode.MESSAGE_ILLEGAL,
            "size|length|bytes",
            "Make the message smaller (body, topic of 127 bytes, properties of 32,767 bytes) or raise the broker's"
            " maxMessageSize.",
        ),
        (
            ResponseCode.ILLEGAL_OPERATION,
            "recall failed, timestamp invalid",
            "The message was delivered, or is about to be: it is too late to take it back.",
        ),
        (ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid", "Give SendResult.recall_handle as it is."),
        (ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match", "Give the topic that it was sent to."),
        (
            ResponseCode.NO_PERMISSION,
            "no permission (pub|sub|pub or sub) for the|is for administrators|need admin permission"
            "|no default permission for",
            _PLAIN_ACL,
        ),
        (
            ResponseCode.NO_PERMISSION,
            "no permission to access",
            "Ask whoever runs the broker to give the user a policy for it (mqadmin createAcl).",
        ),
        (ResponseCode.NO_PERMISSION, "accesskey|signature|no acl config|^user:", _ACCOUNT),
        (
            ResponseCode.SYSTEM_ERROR,
            "size exceeded",
            "Send fewer at a time (split_batch, the data source's sendBatchBytes), or raise the broker's"
            " maxMessageSize: up to 4.9.3 it is compared with what all messages of a batch take when they are stored.",
        ),
        (ResponseCode.SYSTEM_ERROR, _PASSES.pattern, "Try again in a moment."),
        # 4.x has no code of its own for these.
        (ResponseCode.SYSTEM_ERROR, "aclexception.*permission", _PLAIN_ACL),
        (ResponseCode.SYSTEM_ERROR, "aclexception", _ACCOUNT),
        (ResponseCode.NO_PERMISSION, "recall failed", "Set the broker's recallMessageEnable=true."),
        # An error of a spark_rocket store in full, [CODE] and its own remedy included.
        (ResponseCode.SERVICE_NOT_AVAILABLE, r"\[STORE_[A-Z_]+\] ", ""),
    )
)


def topic_not_found(topic: str, where: str) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"Topic {topic!r} is not known to {where}.",
        remedy=f"Check its name, or create it (rocket topic create {topic}, Admin.create_topic); a broker that creates"
        " topics by itself needs autoCreateTopicEnable=true and a first message.",
        response_code=ResponseCode.TOPIC_NOT_EXIST,
    )


def error_of(answer: RemotingCommand, address: str, what: str, topic: str | None = None) -> ClientError:
    """The error that an answer other than success says. ``what`` reads like ``"the pull of orders/b0/3"``."""
    code = answer.code
    remark = answer.remark or "no remark"
    if code == ResponseCode.TOPIC_NOT_EXIST and topic is not None:
        return topic_not_found(topic, address)
    if code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER) and _is_about_queue(remark):
        return QueueNotFoundError(
            f"{address} refused {what}: {sentence(remark)}",
            remedy="Ask for the topic's queues again; queue ids begin at 0.",
            response_code=code,
        )
    if (code == ResponseCode.MESSAGE_ILLEGAL and _is_too_large(remark)) or _is_large_batch(code, remark):
        return MessageTooLargeError(
            f"{address} refused {what}: {sentence(remark)}", remedy=_remedy(code, remark), response_code=code
        )
    try:
        name = ResponseCode(code).name
    except ValueError:
        name = "unknown code"
    return BrokerError(
        f"{address} answered {what} with {code} ({name}): {sentence(remark)}",
        remedy=_remedy(code, remark),
        response_code=code,
        retriable=code in RETRIABLE_CODES or (code == ResponseCode.SYSTEM_ERROR and bool(_PASSES.search(remark))),
    )


def sentence(remark: str) -> str:
    """A server's remark with a full stop and without a link, for the remedy comes behind it."""
    remark = without_faq(remark).strip()
    return remark if remark.endswith((".", "!", "?")) else f"{remark}."


def _remedy(code: int, remark: str) -> str:
    for of, pattern, remedy in _REMEDIES_BY_REMARK:
        if of == code and pattern.search(remark):
            return remedy
    return _REMEDIES.get(code, "")


def _is_too_large(remark: str) -> bool:
    text = remark.lower()
    return any(part in text for part in ("size", "bytes, more than", "length limit"))


def _is_large_batch(code: int, remark: str) -> bool:
    """An exception of Apache's encoder of batches; code 1, as of all exceptions."""
    return code == ResponseCode.SYSTEM_ERROR and "size exceeded" in remark


def _is_about_queue(remark: str) -> bool:
    text = remark.lower()
    return "queueid" in text and ("illegal" in text or "invalid" in text or "out of range" in text)
