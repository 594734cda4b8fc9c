"""Access control of the gRPC endpoint by the brokers' users and policies (ACL 2.0).

Corresponds to AuthenticationPipeline, AuthorizationPipeline and their strategies in the proxy.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_rocket.acl.user_control import UserControl
from spark_rocket.acl.user_table import User
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.auth import SecretKey, access_key_of
from spark_rocket.protocol.requests.needs import Pair
from spark_rocket.proxy.acl.access_control import GrpcAccessControl
from spark_rocket.proxy.acl.remote_users import RemoteUsers
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.proxy.transport.proxy_context import ProxyContext


class GrpcUserAccessControl(UserControl, GrpcAccessControl[User]):
    """Checks gRPC calls by the users of the brokers."""

    def __init__(self, config: ProxyConfig, cluster: ProxyCluster) -> None:
        super().__init__(
            cluster_name=config.proxy_cluster_name,
            authorizes=config.authorization_enabled,
            unsigned=config.authentication_whitelist,
            unauthorized=config.authorization_whitelist,
        )
        self.clock = cluster.clock
        self.clock_skew_ms = config.acl_max_clock_skew
        self.users = RemoteUsers(cluster, fresh_seconds=config.user_refresh_seconds)

    async def subject(self, context: ProxyContext, rpc: str) -> User | None:
        """Return the user of the metadata; None if the call needs no signature."""
        if self.needs_no_signature(rpc):
            self.allowed_by_white_list += 1
            return None
        given = self.authorization(context)
        username = "" if given is None else given.access_key
        return self.enabled_user(username, await self.users.get(username) if username else None)

    def key_of(self, subject: User) -> SecretKey:
        return subject.key

    def check(self, subject: User, rpc: str, pairs: Iterable[Pair], source: str) -> None:
        if not subject.is_super and not self.needs_no_policy(rpc):
            self.check_policies(subject, pairs, source)

    async def is_outdated(self, context: ProxyContext) -> bool:
        return await self.users.reload(access_key_of(context.metadata))

    async def close(self) -> None:
        self.users.close()

    def wrong_signature(self, context: ProxyContext) -> RefusedError:
        return self.not_signed()
