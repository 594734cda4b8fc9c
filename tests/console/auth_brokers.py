"""Two brokers with ACL 2.0, like Apache's: users and permissions in memory, with the same requests."""

from __future__ import annotations

import json
from typing import Any

from spark_rocket.protocol.wire.bodies.config import AclInfo, PolicyInfo, UserInfo
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.kit.scripted import Fake, FakeCluster, says

CONFIG = b"brokerName=b\naclEnable=false\nauthenticationEnabled=true\nauthorizationEnabled=true\n"


class AuthBroker:
    """The state of one broker."""

    def __init__(self, fake: Fake) -> None:
        self.users = {"root": UserInfo("root", "r00t-s3cr3t", "Super", "enable")}
        self.acls: dict[str, AclInfo] = {}
        fake.responses |= {
            RequestCode.GET_BROKER_CONFIG: says(0, body=CONFIG),
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_LIST_USER: lambda request: _list(request, list(self.users.values())),
            RequestCode.AUTH_UPDATE_ACL: self.update_acl,
            RequestCode.AUTH_DELETE_ACL: self.delete_acl,
            RequestCode.AUTH_LIST_ACL: lambda request: _list(request, list(self.acls.values())),
        }

    def create_user(self, request: RemotingCommand) -> RemotingCommand:
        user = UserInfo.from_json(request.body)
        if user.username in self.users:
            return RemotingCommand.response(request, ResponseCode.NO_PERMISSION, "The user is existed")
        self.users[request.ext_fields["username"]] = user
        return RemotingCommand.response(request)

    def update_user(self, request: RemotingCommand) -> RemotingCommand:
        user, given = self.users[request.ext_fields["username"]], UserInfo.from_json(request.body)
        user.password = given.password or user.password
        user.user_type = given.user_type or user.user_type
        user.user_status = given.user_status or user.user_status
        return RemotingCommand.response(request)

    def delete_user(self, request: RemotingCommand) -> RemotingCommand:
        del self.users[request.ext_fields["username"]]
        self.acls.pop(f"User:{request.ext_fields['username']}", None)
        return RemotingCommand.response(request)

    def update_acl(self, request: RemotingCommand) -> RemotingCommand:
        given = AclInfo.from_json(request.body)
        acl = self.acls.setdefault(given.subject, AclInfo(given.subject))
        for policy in given.policies:
            known = next((one for one in acl.policies if one.policy_type == policy.policy_type), None)
            if known is None:
                known = PolicyInfo(policy.policy_type)
                acl.policies.append(known)
            resources = {entry.resource for entry in policy.entries}
            known.entries = [one for one in known.entries if one.resource not in resources] + policy.entries
        return RemotingCommand.response(request)

    def delete_acl(self, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields
        for policy in self.acls[fields["subject"]].policies:
            if policy.policy_type == fields["policyType"]:
                policy.entries = [one for one in policy.entries if one.resource != fields["resource"]]
        return RemotingCommand.response(request)


def _list(request: RemotingCommand, values: list[Any]) -> RemotingCommand:
    body = json.dumps([value.to_value() for value in values]).encode() if values else b""
    return RemotingCommand.response(request, body=body)


class AuthCluster:
    """A name server and two brokers, ``b0`` and ``b1``."""

    def __init__(self) -> None:
        self.fakes = FakeCluster()
        self.fakes.add("t")
        self.brokers = [AuthBroker(fake) for fake in self.fakes.brokers]
        self.addresses = [fake.address for fake in self.fakes.brokers]
        self.name_server = self.fakes.name_server.address

    def close(self) -> None:
        self.fakes.close()
