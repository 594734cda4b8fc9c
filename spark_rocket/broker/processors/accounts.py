"""Accounts: put, delete, the white list (50, 51, 53), the version and contents of the file (52, 54).

The response to 54 has the secret keys of all accounts, as Apache's has, but only if an administrator signed the
request. Addresses on a white list need no signature, and get no secrets. Accounts that are not administrators are
refused even if their own white list has the address.

The response to a change is sent when the file is on disk and the change is in effect. Requests contain secrets in plain
text: use TLS.
Corresponds to AdminBrokerProcessor.{updateAndCreateAccessConfig, deleteAccessConfig, updateGlobalWhiteAddrsConfig,
getBrokerAclConfigVersion, getBrokerClusterAclConfig} of RocketMQ 4.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_rocket.broker.processors.access_processor import AccessProcessor
from spark_rocket.broker.processors.processor import handles
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.bodies.config import ClusterAclConfig
from spark_rocket.protocol.wire.codes import (
    DELETE_ACL_CONFIG_FAILED,
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
    RequestCode,
    ResponseCode,
)
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.server.channel import Channel

if TYPE_CHECKING:
    from spark_rocket.acl.accounts_file import AccountsFile  # loads YAML: with aclEnable only
    from spark_rocket.broker.acl.plain_access_control import PlainAccessControl


@dataclass(eq=False, kw_only=True)
class AccountProcessor(AccessProcessor):
    """Reads and changes of accounts and permissions by administrators."""

    config: BrokerConfig
    address: str

    # --- changes ----------------------------------------------------------------------------------------------

    @handles(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG)
    def put(self, channel: Channel, request: RemotingCommand) -> None:
        header = CreateAccessConfigRequestHeader.from_ext(request.ext_fields)
        what = f"put account {header.access_key}"
        failed = UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        self._change(channel, request, failed, what, lambda file: file.put(header))

    @handles(RequestCode.DELETE_ACL_CONFIG)
    def delete(self, channel: Channel, request: RemotingCommand) -> None:
        access_key = DeleteAccessConfigRequestHeader.from_ext(request.ext_fields).access_key
        failed = DELETE_ACL_CONFIG_FAILED

        def edit(file: AccountsFile) -> None:
            if not file.delete(access_key):
                raise RefusedError(f"there is no account with the accessKey {access_key}", failed)

        self._change(channel, request, failed, f"deleted account {access_key}", edit)

    @handles(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
    def set_white(self, channel: Channel, request: RemotingCommand) -> None:
        header = UpdateGlobalWhiteAddrsConfigRequestHeader.from_ext(request.ext_fields)
        failed = UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        own = self.config.acl_path
        if header.acl_file_full_path and Path(header.acl_file_full_path) != own:
            raise RefusedError(f"this broker has one file of accounts, {own}", failed)
        what = f"set white list [{header.global_white_addrs}]"
        self._change(channel, request, failed, what, lambda file: file.set_white(header.global_white_addrs))

    def _change(
        self,
        channel: Channel,
        request: RemotingCommand,
        failed: int,
        what: str,
        edit: Callable[[AccountsFile], None],
    ) -> None:
        control = self._control(channel, request, failed)

        async def change() -> RemotingCommand:
            await control.change(edit)
            return self.changed(channel, request, what)

        self.respond_after(channel, request, failed, self.config.acl_path, change())

    # --- reads ------------------------------------------------------------------------------------------------

    @handles(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    def version(self, channel: Channel, request: RemotingCommand) -> None:
        control = self._control(channel, request, ResponseCode.SYSTEM_ERROR)

        async def respond() -> RemotingCommand:
            version = (await self._file(control)).version.to_value()
            header = GetBrokerAclConfigResponseHeader(
                version=dumps_fastjson(version).decode(),
                broker_name=self.config.broker_name,
                broker_addr=self.address,
                cluster_name=self.config.broker_cluster_name,
                all_acl_file_version=dumps_fastjson({str(control.path): version}).decode(),
            )
            return RemotingCommand.response(request, 0, None, header.to_ext())

        self.respond_after(channel, request, ResponseCode.SYSTEM_ERROR, self.config.acl_path, respond())

    @handles(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    def all_accounts(self, channel: Channel, request: RemotingCommand) -> None:
        control = self._control(channel, request, ResponseCode.SYSTEM_ERROR)
        is_signed = control.is_signed_by_admin(request)

        async def respond() -> RemotingCommand:
            file = await self._file(control)
            if not is_signed:
                for account in file.accounts:
                    account.secret_key = None
            return RemotingCommand.response(request, body=ClusterAclConfig(file.white, file.accounts).to_json())

        self.respond_after(channel, request, ResponseCode.SYSTEM_ERROR, self.config.acl_path, respond())

    async def _file(self, control: PlainAccessControl) -> AccountsFile:
        from spark_rocket.acl.accounts_file import AccountsFile

        return await asyncio.to_thread(AccountsFile.read, control.path)

    # --- both -------------------------------------------------------------------------------------------------

    def _control(self, channel: Channel, request: RemotingCommand, failed: int) -> PlainAccessControl:
        control = self.access_control
        if control is None or not self.config.acl_enable:
            raise RefusedError(
                "access control is disabled on this broker"
                if control is None
                else "this broker has users and policies (ACL 2.0) instead of accounts in plain_acl.yml",
                failed,
                remedy="Set aclEnable=true in its broker.conf and restart it.",
            )
        from spark_rocket.broker.acl.plain_access_control import PlainAccessControl

        assert isinstance(control, PlainAccessControl)
        control.check_admin(channel, request)
        return control
