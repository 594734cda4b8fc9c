"""Remedies of ``rocket doctor`` for a request that a server refused: what is missing, and the commands that create it.

What a request needs is the row of its code (``protocol.requests``), so that a remedy names the same resource and action
as the server checks. The words of the refusal distinguish ACL 2.0 from ``plain_acl.yml``.

Pure functions. RocketMQ has no counterpart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_rocket.errors import RocketError, TopicNotFoundError
from spark_rocket.protocol.requests import BROKER_REQUESTS
from spark_rocket.protocol.requests.needs import Pair, Resource
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand

_NO_POLICY = "no permission to access"
_NO_PLAIN_PERMISSION = re.compile(r"no (default )?permission|need admin permission", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """The cluster that a pipeline uses, and its account there, for the commands of a remedy."""

    name_server: str
    cluster: str
    account: str


@dataclass(frozen=True)
class Step:
    """A request of a pipeline."""

    code: RequestCode
    topic: str
    group: str = ""

    def pairs(self) -> tuple[Pair, ...]:
        """The permissions that the request needs."""
        names = {"topic": self.topic, "b": self.topic, "consumerGroup": self.group}
        request = RemotingCommand.request(self.code, {name: value for name, value in names.items() if value})
        return tuple(BROKER_REQUESTS[self.code].pairs(request, lambda _: None))


def remedy_of(error: RocketError, step: Step, target: Target) -> str:
    """Return how to end the error of a step: the commands that create what is missing, where that is known."""
    if isinstance(error, TopicNotFoundError):
        return (
            f"Create topic {step.topic}: rocket topic create {step.topic}, "
            f"mqadmin updateTopic -n {target.name_server} -c {target.cluster} -t {step.topic}, "
            "or in the console of the managed instance."
        )
    if error.response_code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        return (
            f"Create group {step.group}: rocket group create {step.group}, "
            f"mqadmin updateSubGroup -n {target.name_server} -c {target.cluster} -g {step.group}, "
            "or in the console of the managed instance."
        )
    if error.response_code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR):
        if _NO_POLICY in error.message:
            return _policies(error.message, step, target)
        if _NO_PLAIN_PERMISSION.search(error.message):
            return _plain_permissions(step, target)
    return error.remedy


def _policies(refusal: str, step: Step, target: Target) -> str:
    named = [pair for pair in step.pairs() if f"{pair.resource.value}:{pair.name} " in f"{refusal} "]
    entries = [(f"{pair.resource.value}:{pair.name}", pair.actions[0].value) for pair in named or step.pairs()]
    commands = [f"rocket acl allow {target.account} {resource} {action}" for resource, action in entries]
    others = [
        f"mqadmin createAcl -n {target.name_server} -c {target.cluster} -s User:{target.account} "
        f"-r {resource} -a {action} -d Allow"
        for resource, action in entries
    ]
    return f"Grant it to user {target.account}: {'; '.join(commands)} (or {'; '.join(others)})."


def _plain_permissions(step: Step, target: Target) -> str:
    options = [
        f"--{'topic' if pair.resource is Resource.TOPIC else 'group'} {pair.name}={pair.permission.value}"
        for pair in step.pairs()
        if pair.permission is not None
    ]
    return (
        f"Grant it to account {target.account}: rocket acl update {target.account} {' '.join(options)}, "
        "or topicPerms and groupPerms in plain_acl.yml."
    )
