"""Remedies of ``rocket doctor`` for a request that a server refused: what is missing, and the commands that create it.

What a request needs is the row of its code (``protocol.requests``), so that a remedy names the same resource and action
as the server checks. The words of the refusal distinguish ACL 2.0 from ``plain_acl.yml``.

Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.errors import RocketError, TopicNotFoundError
from spark_rocket.protocol.requests.pipelines import SentRequest
from spark_rocket.protocol.requests.refused import AccessKind, missing_of
from spark_rocket.protocol.wire.codes import ResponseCode


@dataclass(frozen=True)
class Target:
    """The cluster that a pipeline uses, and its account there, for the commands of a remedy."""

    name_server: str
    cluster: str
    account: str


def is_missing_permission(error: RocketError, step: SentRequest) -> bool:
    """Whether a server refused a request because the account lacks a permission."""
    return missing_of(step.request(), "", error.response_code or 0, error.message) is not None


def remedy_of(error: RocketError, step: SentRequest, target: Target) -> str:
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
    missing = missing_of(step.request(), target.account, error.response_code or 0, error.message)
    if missing is None:
        return error.remedy
    commands = "; ".join(missing.commands())
    if missing.kind is AccessKind.PLAIN:
        others = "topicPerms and groupPerms in plain_acl.yml"
    else:
        others = "; ".join(
            f"mqadmin createAcl -n {target.name_server} -c {target.cluster} -s User:{target.account} "
            f"-r {one.resource.value}:{one.name} -a {one.actions[0]} -d Allow"
            for one in missing.grants
        )
    return f"{missing.text()} Grant it: {commands} (or {others})."
