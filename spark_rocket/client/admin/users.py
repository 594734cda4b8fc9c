"""Users and their permissions on brokers with ACL 2.0 (RocketMQ 5.3 and later).

Each broker, including slaves, stores its own users and policies. These operations need the keys of a super user.
Brokers with ACL 1.0 have ``accounts`` instead.

Corresponds to DefaultMQAdminExt.{createUser, updateUser, deleteUser, getUser, listUser, updateAcl, deleteAcl, getAcl,
listAcl}.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, Unpack

from spark_rocket.client.admin.access import AccessAdmin, ChangeTarget
from spark_rocket.client.admin.accounts import BrokerAccess
from spark_rocket.client.admin.base import Query
from spark_rocket.client.admin.broker_rows import Failures
from spark_rocket.errors import ProtocolError, RocketError
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.config import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateAclRequestHeader,
    UserRequestHeader,
)
from spark_rocket.protocol.wire.json import loads_tolerant

B = TypeVar("B", bound=Body)

SUPER, NORMAL = "Super", "Normal"
ENABLED, DISABLED = "enable", "disable"
CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"


@dataclass(slots=True)
class BrokerUsers:
    """Brokers with equal users and permissions, and these."""

    brokers: list[BrokerAccess]
    users: list[UserInfo]
    acls: list[AclInfo]

    def user(self, username: str) -> UserInfo | None:
        return next((user for user in self.users if user.username == username), None)

    def policies(self, username: str) -> list[PolicyInfo]:
        """Return the permissions of a user, by type: Custom before Default."""
        found = [policy for acl in self.acls if acl.subject == f"User:{username}" for policy in acl.policies]
        return sorted(found, key=lambda policy: policy.policy_type != CUSTOM)


class UserAdmin(AccessAdmin):
    def users(self, broker: str) -> list[UserInfo]:
        """Return a broker's users, with their passwords if it sends them."""
        query = Query(
            RequestCode.AUTH_LIST_USER,
            "the query of its users",
            lambda response: _list_of(UserInfo, response),
            ListUsersRequestHeader(filter=""),
        )
        return self._ask(self._address(broker), query)

    def user(self, broker: str, username: str) -> UserInfo | None:
        """Return a user of a broker, with the password if it sends it; None if it does not exist."""
        query = Query(
            RequestCode.AUTH_GET_USER,
            f"the query of user {username}",
            lambda response: UserInfo.from_json(response.body) if response.body else None,
            UserRequestHeader(username=username),
        )
        return self._ask(self._address(broker), query)

    def broker_users(self, brokers: Iterable[BrokerAccess], *, failed: Failures) -> list[BrokerUsers]:
        """Return the users and permissions of these brokers, those with equal ones together."""
        found: list[BrokerUsers] = []
        for broker in brokers:
            try:
                users, acls = self.users(broker.address), self.acls(broker.address)
            except RocketError as error:
                failed[broker.name] = error
                continue
            same = next((one for one in found if (one.users, one.acls) == (users, acls)), None)
            if same is not None:
                same.brokers.append(broker)
            else:
                found.append(BrokerUsers([broker], users, acls))
        return found

    def create_user(
        self,
        username: str,
        password: str,
        *,
        user_type: str = NORMAL,
        **target: Unpack[ChangeTarget],
    ) -> list[str]:
        """Create a user of type Super (all permissions) or Normal; return the brokers that applied the change."""
        body = UserInfo(username, password, user_type, ENABLED).to_json(standard=True)
        code, what = RequestCode.AUTH_CREATE_USER, f"the creation of user {username}"
        return self._change(code, what, UserRequestHeader(username=username), target, body=body, secret=password)

    def update_user(
        self,
        username: str,
        *,
        password: str | None = None,
        user_type: str | None = None,
        user_status: str | None = None,
        **target: Unpack[ChangeTarget],
    ) -> list[str]:
        """Change a user; return the brokers that applied the change. Arguments that are None stay unchanged.

        ``user_status``: enable or disable.
        """
        body = UserInfo(username, password, user_type, user_status).to_json(standard=True)
        code, what = RequestCode.AUTH_UPDATE_USER, f"the change of user {username}"
        return self._change(code, what, UserRequestHeader(username=username), target, body=body, secret=password)

    def delete_user(self, username: str, **target: Unpack[ChangeTarget]) -> list[str]:
        """Delete a user with its permissions; return the brokers that applied the change."""
        code, what = RequestCode.AUTH_DELETE_USER, f"the deletion of user {username}"
        return self._change(code, what, UserRequestHeader(username=username), target)

    # --- permissions --------------------------------------------------------------------------------------------

    def acls(self, broker: str) -> list[AclInfo]:
        """Return the permissions of all subjects of a broker."""
        query = Query(
            RequestCode.AUTH_LIST_ACL,
            "the query of its permissions",
            lambda response: _list_of(AclInfo, response),
            ListAclsRequestHeader(subject_filter="", resource_filter=""),
        )
        return self._ask(self._address(broker), query)

    def acl(self, broker: str, username: str) -> AclInfo | None:
        """Return the permissions of a user of a broker; None without any. BrokerError if the user does not exist."""
        query = Query(
            RequestCode.AUTH_GET_ACL,
            f"the query of the permissions of {username}",
            lambda response: AclInfo.from_json(response.body) if response.body else None,
            UpdateAclRequestHeader(subject=f"User:{username}"),
        )
        return self._ask(self._address(broker), query)

    def put_permission(
        self,
        username: str,
        resource: str,
        actions: Sequence[str],
        *,
        decision: str = ALLOW,
        source_ips: Sequence[str] = (),
        policy_type: str = CUSTOM,
        **target: Unpack[ChangeTarget],
    ) -> list[str]:
        """Allow or deny a user actions on a resource, instead of a permission on the same resource.

        ``resource`` is like ``Topic:orders`` or ``Group:bill*``, in the client's namespace; ``actions`` are All, Pub,
        Sub, Create, Update, Delete, Get and List. Returns the brokers that applied the change.
        """
        subject = f"User:{username}"
        resource = self.namespace.wrap_resource(resource)
        entry = PolicyEntryInfo(resource, list(actions), list(source_ips), decision)
        body = AclInfo(subject, [PolicyInfo(policy_type, [entry])]).to_json(standard=True)
        code, what = RequestCode.AUTH_UPDATE_ACL, f"the permission of {username} on {resource}"
        return self._change(code, what, UpdateAclRequestHeader(subject=subject), target, body=body)

    def delete_permission(
        self,
        username: str,
        resource: str | None,
        *,
        policy_type: str = CUSTOM,
        **target: Unpack[ChangeTarget],
    ) -> list[str]:
        """Delete a user's permission on a resource, or all of its permissions; return the brokers that applied it."""
        resource = resource and self.namespace.wrap_resource(resource)
        code, what = (
            RequestCode.AUTH_DELETE_ACL,
            f"the deletion of the permission of {username} on {resource or 'everything'}",
        )
        header = DeleteAclRequestHeader(subject=f"User:{username}", policy_type=policy_type, resource=resource)
        return self._change(code, what, header, target)


def _list_of(kind: type[B], response: RemotingCommand) -> list[B]:
    """Decode a JSON array; brokers send no body if there are no entries."""
    values = loads_tolerant(response.body) if response.body else []
    if not isinstance(values, list):
        raise ProtocolError(f"Invalid list of {kind.__name__}.", remedy="Check the version of the broker.")
    return [kind.from_value(value) for value in values]
