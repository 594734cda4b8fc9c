"""Errors for response codes, with remedies.

Pure functions. Corresponds to MQClientAPIImpl's handling of response codes.
"""

from __future__ import annotations

import re

from spark_rocket.errors import (
    BrokerError,
    ClientError,
    MessageTooLargeError,
    ProxyUnsupportedError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from spark_rocket.protocol.wire.codes import ResponseCode, without_faq
from spark_rocket.protocol.wire.command import RemotingCommand

# The broker is busy, starting or stopping: the same request may succeed in a moment.
RETRIABLE_CODES = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY}
)
_MAX_REMARK = 4_096  # characters: brokers relay the remarks of clients
# Remarks of temporary errors with code 1 of Apache's brokers: busy, starting, too few replicas. Nothing was stored.
_TEMPORARY = re.compile(r"broker busy|server is busy|under flow control|unable to service, until|replicas not enough")

_REMEDIES: dict[int, str] = {
    ResponseCode.SYSTEM_BUSY: "Retry after a moment. A broker that stays busy is overloaded, or is a slave that does"
    " not serve reads (slaveReadEnable).",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "Check the version, or the address: name servers usually listen on port"
    " 9876, brokers on 10911. A proxy (8080) forwards the requests of reads, writes and groups only.",
    ResponseCode.SERVICE_NOT_AVAILABLE: "The broker is starting, stopping, or its disk is full: retry after a moment.",
    ResponseCode.NO_PERMISSION: "Set the read/write permission of the topic or broker (perm 6), or use another topic.",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "Create the consumer group, or set the broker's"
    " autoCreateSubscriptionGroup=true.",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "The broker rejects consumers without heartbeats"
    " (rejectPullConsumerEnable=false allows them).",
}

_PLAIN_ACL = "Ask the administrator of the broker to add the permission to the account in plain_acl.yml."
_ACCOUNT = (
    "Set the access key and the secret key of an account of the broker (access_key=, secret_key=; accessKey,"
    " secretKey; ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY)."
)

# The first matching remark takes precedence over the remedy of the code: (code, pattern, remedy).
_REMEDIES_BY_REMARK: tuple[tuple[int, re.Pattern[str], str], ...] = tuple(
    (code, re.compile(pattern, re.IGNORECASE), remedy)
    for code, pattern, remedy in (
        (ResponseCode.MESSAGE_ILLEGAL, "batch", "Send such messages one by one."),
        (
            ResponseCode.MESSAGE_ILLEGAL,
            "delay|timer",
            "Set DELAY to a delay level, or TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS to an integer within"
            " the broker's timerMaxDelaySec.",
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
            "The message was delivered, or is about to be: it can no longer be recalled.",
        ),
        (ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid", "Pass SendResult.recall_handle unchanged."),
        (ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match", "Pass the topic of the message."),
        (
            ResponseCode.NO_PERMISSION,
            "no permission (pub|sub|pub or sub) for the|is for administrators|need admin permission"
            "|no default permission for",
            _PLAIN_ACL,
        ),
        (
            ResponseCode.NO_PERMISSION,
            "no permission to access",
            "Ask the administrator of the broker to add a policy for the user (mqadmin createAcl).",
        ),
        (ResponseCode.NO_PERMISSION, "accesskey|signature|no acl config|^user:|username cannot be null", _ACCOUNT),
        (
            ResponseCode.NO_PERMISSION,
            r"^the (?:user|subject|acl|policy|action|resource|source)\b",
            "Correct the user, the resource (Topic:NAME, Group:NAME, Cluster:NAME) or the action, or create the user"
            " first (rocket acl update USER).",
        ),
        (
            ResponseCode.SYSTEM_ERROR,
            "size exceeded",
            "Send smaller batches (split_batch, the data source's sendBatchBytes), or raise the broker's"
            " maxMessageSize. Up to 4.9.3 it limits the stored size of all messages of a batch together.",
        ),
        (ResponseCode.SYSTEM_ERROR, _TEMPORARY.pattern, "Retry after a moment."),
        (ResponseCode.SYSTEM_ERROR, "timerwheelenable is false", "Set it to true at the broker, or use delay_level."),
        # 4.x has no separate code for these.
        (ResponseCode.SYSTEM_ERROR, r"\A(?s:(?>.*?aclexception).*permission)", _PLAIN_ACL),
        (ResponseCode.SYSTEM_ERROR, "aclexception", _ACCOUNT),
        (ResponseCode.NO_PERMISSION, "recall failed", "Set the broker's recallMessageEnable=true."),
        # The complete error of a spark_rocket store, including [CODE] and its remedy.
        (ResponseCode.SERVICE_NOT_AVAILABLE, r"\[STORE_[A-Z_]+\] ", ""),
    )
)


def topic_not_found(topic: str, where: str) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"Topic {topic!r} does not exist on {where}.",
        remedy=f"Check its name, or create it (rocket topic create {topic}, Admin.create_topic). Automatic creation"
        " needs autoCreateTopicEnable=true at a broker and a first message.",
        response_code=ResponseCode.TOPIC_NOT_EXIST,
    )


def proxy_error(response: RemotingCommand, address: str, what: str) -> ProxyUnsupportedError:
    """Return the error for a request that a proxy does not forward."""
    return ProxyUnsupportedError(
        f"{address} is a proxy, which does not forward {what}: {sentence(response.remark or 'no remark')}",
        remedy="A proxy forwards the requests of reads, writes and groups only. Use the address of a name server"
        " (usually port 9876) instead of that of the proxy, or do this where a name server can be reached.",
        response_code=response.code,
    )


def error_of(
    response: RemotingCommand,
    address: str,
    what: str,
    topic: str | None = None,
    *,
    request: RemotingCommand | None = None,
    account: str = "",
) -> ClientError:
    """Return the error for a response other than success. ``what`` reads like ``"the pull of orders/b0/3"``.

    ``request`` and its ``account``: to name the permission that is missing, which remarks of Apache's brokers do not.
    """
    code = response.code
    remark = response.remark or "no remark"
    if len(remark) > _MAX_REMARK:
        remark = f"{remark[:_MAX_REMARK]}…"
    if code == ResponseCode.TOPIC_NOT_EXIST and topic is not None:
        return topic_not_found(topic, address)
    if code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER) and _is_about_queue(remark):
        return QueueNotFoundError(
            f"{address} rejected {what}: {sentence(remark)}",
            remedy="Fetch the queues of the topic again; queue ids start at 0.",
            response_code=code,
        )
    if (code == ResponseCode.MESSAGE_ILLEGAL and _is_too_large(remark)) or _is_large_batch(code, remark):
        return MessageTooLargeError(
            f"{address} rejected {what}: {sentence(remark)}", remedy=_remedy(code, remark), response_code=code
        )
    try:
        name = ResponseCode(code).name
    except ValueError:
        name = "unknown code"
    missing, remedy = _missing(request, account, code, remark) if request is not None else ("", "")
    return BrokerError(
        f"{address} rejected {what} with {code} ({name}): {sentence(remark)}{missing}",
        remedy=remedy or _remedy(code, remark),
        response_code=code,
        retriable=code in RETRIABLE_CODES or (code == ResponseCode.SYSTEM_ERROR and bool(_TEMPORARY.search(remark))),
    )


def sentence(remark: str) -> str:
    """Return a server's remark with a full stop and without a link, because a remedy follows it."""
    remark = without_faq(remark).strip()
    return remark if remark.endswith((".", "!", "?")) else f"{remark}."


def _missing(request: RemotingCommand, account: str, code: int, remark: str) -> tuple[str, str]:
    """Return the missing permission as a sentence, and its remedy; empty for other errors."""
    if "permission" not in remark.lower() and "administrator" not in remark:
        return "", ""
    from spark_rocket.protocol.requests.refused import missing_of  # not for clients that are not refused

    missing = missing_of(request, account, code, remark)
    if missing is None:
        return "", ""
    commands = "; ".join(missing.commands())
    text = "" if missing.is_named_by(remark) else f" {missing.text()}"
    return text, f"Ask an administrator of the brokers to grant it: {commands} ({missing.kind.value})."


def _remedy(code: int, remark: str) -> str:
    for of, pattern, remedy in _REMEDIES_BY_REMARK:
        if of == code and pattern.search(remark):
            return remedy
    return _REMEDIES.get(code, "")


def _is_too_large(remark: str) -> bool:
    text = remark.lower()
    return any(part in text for part in ("size", "bytes, more than", "length limit"))


def _is_large_batch(code: int, remark: str) -> bool:
    """Whether it is an exception of Apache's batch encoder; code 1, like all exceptions."""
    return code == ResponseCode.SYSTEM_ERROR and "size exceeded" in remark


def _is_about_queue(remark: str) -> bool:
    text = remark.lower()
    return "queueid" in text and ("illegal" in text or "invalid" in text or "out of range" in text)
