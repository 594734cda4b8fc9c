"""Access control of a broker by users and policies (ACL 2.0).

A code without a row is for Super users.

Corresponds to AuthenticationPipeline, AuthorizationPipeline and their strategies.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_rocket.acl.user_control import UserControl, UsersOnDisk
from spark_rocket.acl.user_table import User, UserTable, first_user
from spark_rocket.broker.acl.access_control import ACCOUNT, AccessControl, note_account
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import ConfigError, RefusedError
from spark_rocket.protocol.auth import ACCESS_KEY, is_signed_by
from spark_rocket.protocol.auth_settings import STATEFUL_AUTHENTICATION
from spark_rocket.protocol.requests.needs import Action, Pair, Permission, Resource
from spark_rocket.protocol.requests.request_type import RequestType
from spark_rocket.protocol.wire.bodies.config import UserInfo
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel


class UserAccessControl(UserControl, AccessControl):
    """Checks the requests to one broker by the users of its file."""

    def __init__(self, config: BrokerConfig, *, topic_at: Callable[[int], str | None]) -> None:
        """Load the users, and create the first ones; ConfigError if the file or a setting is invalid."""
        self.file = UsersOnDisk(config.users_path)
        try:
            self.file.initialize(lambda table: _initial(table, config))
        except OSError as error:
            raise ConfigError(
                f"The file of users {config.users_path} cannot be written: {error.strerror or error}.",
                remedy="Set authConfigPath to a directory that the broker may write.",
            ) from error
        super().__init__(
            cluster_name=config.broker_cluster_name,
            authorizes=config.authorization_enabled,
            unsigned=config.authentication_whitelist,
            unauthorized=config.authorization_whitelist,
        )
        self.verifies_once = config.authentication_strategy.strip() == STATEFUL_AUTHENTICATION
        self.rules: UserTable = self.file.table
        self.topic_at = topic_at

    async def change(self, edit: Callable[[UserTable], UserTable]) -> None:
        """Change the users; on return the change is durable and in effect. After an error there is no change."""
        self.rules = await self.file.change(edit)

    def check(self, channel: Channel, request: RemotingCommand, code: int, row: RequestType | None) -> User | None:
        name = str(code)
        if self.needs_no_signature(name):
            self.allowed_by_white_list += 1
            return None
        username = request.ext_fields.get(ACCESS_KEY, "")
        user = self.enabled_user(username, self.rules.users.get(username))
        if not is_signed_by(request, user.key):
            raise self.not_signed()
        note_account(channel, request, code)
        if user.is_super or self.needs_no_policy(name):
            return user
        if row is None:
            raise self.refusal(
                f"User:{user.username} has no permission for request code {code}: it needs a Super user."
            )
        self.check_policies(user, row.pairs(request, self.topic_at), host_of(channel))
        return user

    def is_super_login(self, request: RemotingCommand) -> bool:
        """Whether a Super user signed the request."""
        user = self.rules.users.get(request.ext_fields.get(ACCESS_KEY, ""))
        return user is not None and user.is_super and user.is_enabled and is_signed_by(request, user.key)

    def may_ask(self, channel: Channel, topic: str) -> bool:
        user = self.rules.users.get(channel.attributes.get(ACCOUNT, ""))
        if user is None or not user.is_enabled:
            return False
        if user.is_super or not self.authorizes:
            return True
        pair = Pair(Resource.TOPIC, topic, (Action.PUB,), Permission.PUB)
        return user.policies.refusal(pair, topic, host_of(channel)) is None


def host_of(channel: Channel) -> str:
    """The address of a connection, without its port."""
    return channel.remote_addr.rpartition(":")[0].strip("[]")


def _initial(table: UserTable, config: BrokerConfig) -> UserTable:
    """Add the users of the settings, and those of ``plain_acl.yml``, that do not exist."""
    first = first_user(config.init_authentication_user)
    own = config.own_credentials
    infos = [] if first is None else [first]
    if own is not None:
        infos.append(UserInfo(own.access_key, own.secret_key, "Super"))
    try:
        for info in infos:
            if info.username not in table.users:
                table = table.with_created(info)
        if config.migrate_auth_from_v1_enabled:
            from spark_rocket.acl.migration import migrated

            table = migrated(table, config.acl_path)
    except RefusedError as error:
        raise ConfigError(error.message, remedy="Correct initAuthenticationUser or plain_acl.yml.") from None
    if not table.users:
        raise ConfigError(
            "authenticationEnabled=true, but there are no users.",
            remedy='Set initAuthenticationUser={"username": "…", "password": "…"}.',
        )
    return table
