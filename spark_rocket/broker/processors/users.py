"""Users and policies of ACL 2.0 (codes 3001 to 3010).

The response to a change is sent when the file is on disk and the change is in effect. Super users can be created,
changed and deleted by Super users only; responses contain passwords for Super users only. Requests contain passwords in
plain text: use TLS.

Each broker has its own users, slaves too, as with Apache: clients change all brokers.
Corresponds to AdminBrokerProcessor.{createUser, updateUser, deleteUser, getUser, listUser, createAcl, updateAcl,
deleteAcl, getAcl, listAcl} of RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_rocket.broker.processors.access_processor import AccessProcessor
from spark_rocket.broker.processors.processor import handles
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests import BROKER_REQUESTS
from spark_rocket.protocol.wire.bodies.config import AclInfo, UserInfo
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateAclRequestHeader,
    UserRequestHeader,
)
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.server.channel import Channel

if TYPE_CHECKING:
    from spark_rocket.acl.user_table import UserTable  # with authenticationEnabled only
    from spark_rocket.broker.acl.user_access_control import UserAccessControl


@dataclass(eq=False, kw_only=True)
class UserProcessor(AccessProcessor):
    """Reads and changes of users and policies by administrators."""

    config: BrokerConfig

    # --- users ------------------------------------------------------------------------------------------------

    @handles(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER)
    def put_user(self, channel: Channel, request: RemotingCommand) -> None:
        info = BROKER_REQUESTS[request.code].body_of(request)
        assert isinstance(info, UserInfo)
        info.username = UserRequestHeader.from_ext(request.ext_fields).username
        is_new = request.code == RequestCode.AUTH_CREATE_USER
        wants_super = (info.user_type or "").lower() == "super"

        def edit(table: UserTable) -> UserTable:
            name = info.username or ""
            if wants_super or (not is_new and name in table.users and table.users[name].is_super):
                self._check_super(request, "create" if is_new else "update")
            return table.with_created(info) if is_new else table.with_updated(info)

        self._change(channel, request, f"{'created' if is_new else 'changed'} user {info.username}", edit)

    @handles(RequestCode.AUTH_DELETE_USER)
    def delete_user(self, channel: Channel, request: RemotingCommand) -> None:
        username = UserRequestHeader.from_ext(request.ext_fields).username

        def edit(table: UserTable) -> UserTable:
            if username in table.users and table.users[username].is_super:
                self._check_super(request, "delete")
            return table.without_user(username)

        self._change(channel, request, f"deleted user {username}", edit)

    @handles(RequestCode.AUTH_GET_USER)
    def get_user(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        username = UserRequestHeader.from_ext(request.ext_fields).username
        control = self._control()
        user = control.rules.users.get(username)
        if user is None:
            return RemotingCommand.response(request)
        info = user.to_info(with_password=control.is_super_login(request))
        return RemotingCommand.response(request, body=info.to_json())

    @handles(RequestCode.AUTH_LIST_USER)
    def list_users(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        part = ListUsersRequestHeader.from_ext(request.ext_fields).filter or ""
        control = self._control()
        with_password = control.is_super_login(request)
        found = [
            user.to_info(with_password=with_password).to_value()
            for name, user in control.rules.users.items()
            if part in name
        ]
        return RemotingCommand.response(request, body=dumps_fastjson(found) if found else b"")

    # --- policies ---------------------------------------------------------------------------------------------

    @handles(RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL)
    def put_acl(self, channel: Channel, request: RemotingCommand) -> None:
        subject = UpdateAclRequestHeader.from_ext(request.ext_fields).subject
        info = BROKER_REQUESTS[request.code].body_of(request)
        assert isinstance(info, AclInfo)
        self._change(channel, request, f"changed policies of {subject}", lambda table: table.with_acl(subject, info))

    @handles(RequestCode.AUTH_DELETE_ACL)
    def delete_acl(self, channel: Channel, request: RemotingCommand) -> None:
        header = DeleteAclRequestHeader.from_ext(request.ext_fields)
        what = f"deleted policies of {header.subject} for {header.resource or 'all resources'}"
        self._change(
            channel,
            request,
            what,
            lambda table: table.without_acl(header.subject, header.policy_type, header.resource),
        )

    @handles(RequestCode.AUTH_GET_ACL)
    def get_acl(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        subject = UpdateAclRequestHeader.from_ext(request.ext_fields).subject
        found = self._control().rules.acl(subject)
        return RemotingCommand.response(request, body=b"" if found is None else found.to_json())

    @handles(RequestCode.AUTH_LIST_ACL)
    def list_acls(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ListAclsRequestHeader.from_ext(request.ext_fields)
        resource, subject = header.resource_filter or "", header.subject_filter or ""
        infos = (
            user.policies.to_info(name, resource)
            for name, user in self._control().rules.users.items()
            if subject in f"User:{name}" and len(user.policies)
        )
        found = [info.to_value() for info in infos if info.policies]
        return RemotingCommand.response(request, body=dumps_fastjson(found) if found else b"")

    # --- both -------------------------------------------------------------------------------------------------

    def _control(self) -> UserAccessControl:
        control = self.access_control
        if control is None or not self.config.authentication_enabled:
            raise RefusedError(
                "this broker has no users: ACL 2.0 is disabled",
                ResponseCode.SYSTEM_ERROR,
                remedy="Set authenticationEnabled=true in its broker.conf and restart it.",
            )
        from spark_rocket.broker.acl.user_access_control import UserAccessControl

        assert isinstance(control, UserAccessControl)
        return control

    def _check_super(self, request: RemotingCommand, verb: str) -> None:
        if not self._control().is_super_login(request):
            raise RefusedError(f"The super user can only be {verb} by super user", ResponseCode.SYSTEM_ERROR)

    def _change(
        self, channel: Channel, request: RemotingCommand, what: str, edit: Callable[[UserTable], UserTable]
    ) -> None:
        control = self._control()

        async def change() -> RemotingCommand:
            await control.change(edit)
            return self.changed(channel, request, what)

        self.respond_after(channel, request, ResponseCode.SYSTEM_ERROR, self.config.users_path, change())
