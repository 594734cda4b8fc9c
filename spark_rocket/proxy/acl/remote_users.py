"""The brokers' users and policies, as the proxy sees them: requested by name, and cached.

A user is refreshed in the background after ``userCacheRefreshSeconds`` (20 s), like Apache's proxy does: a permission
that was taken away, or a deleted user, is refused then. What was added is effective at once: a call that would be
refused loads its user again first, at most twice a second.

All brokers have the same users, so the first available master is asked. It shows passwords to Super users only, so the
proxy's own account must be one.

Corresponds to org.apache.rocketmq.proxy.auth.{ProxyAuthenticationMetadataProvider, ProxyAuthorizationMetadataProvider}
and service.metadata.ClusterMetadataService.
"""

from __future__ import annotations

import logging

from spark_rocket.acl.policies import USER_PREFIX
from spark_rocket.acl.user_table import MAX_KEY_CHARACTERS, User, UserTable
from spark_rocket.client.core.cache import Cache
from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import BrokerError, ProtocolError, RefusedError, RemotingError
from spark_rocket.protocol.wire.bodies.config import AclInfo, UserInfo
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy.cluster.proxy_cluster import ASK_SECONDS, NoBrokerError, ProxyCluster

_often = RateLimited(logging.getLogger(__name__), 60.0)


class RemoteUsers:
    """Users by name."""

    def __init__(self, cluster: ProxyCluster, *, fresh_seconds: float) -> None:
        self._cluster = cluster
        self._users: Cache[User] = Cache(self._load, fresh=fresh_seconds, monotonic=cluster.monotonic)

    async def get(self, username: str) -> User | None:
        """Return a user with its policies; None if it does not exist. RocketError if no broker says."""
        return None if len(username) > MAX_KEY_CHARACTERS else await self._users.get(username)

    async def reload(self, username: str) -> bool:
        """Load a cached user again unless that was done just now; returns whether it was."""
        known = self._users.last(username)
        if known is None:
            return False
        self._users.suspect(username)
        return await self._users.get(username) is not known

    def close(self) -> None:
        self._users.close()

    async def _load(self, username: str) -> User | None:
        masters = await self._cluster.masters()
        failure: RemotingError | None = None
        for broker in sorted(masters, key=lambda name: (name in self._cluster.unavailable, name)):
            try:
                return await self._load_from(broker, username)
            except RemotingError as error:
                failure = error
        raise failure or NoBrokerError("No broker is registered that could check users.")

    async def _load_from(self, broker: str, username: str) -> User | None:
        response = await self._ask(broker, RequestCode.AUTH_GET_USER, {"username": username})
        if not response.body:
            return None
        try:
            info = UserInfo.from_json(response.body)
            if not info.password:
                raise self._unusable(broker, "sends no passwords", response)
            response = await self._ask(broker, RequestCode.AUTH_GET_ACL, {"subject": USER_PREFIX + username})
            acls = [AclInfo.from_json(response.body)] if response.body else []
            return UserTable.of([info], acls).users[username]
        except (ProtocolError, RefusedError, KeyError) as error:
            reason = "" if isinstance(error, KeyError) else f": {error.message}"
            raise self._unusable(broker, f"sent an invalid user {username}{reason}", response) from None

    async def _ask(self, broker: str, code: RequestCode, ext: dict[str, str]) -> RemotingCommand:
        response = await self._cluster.ask(broker, code, ext, seconds=ASK_SECONDS)
        if response.code != ResponseCode.SUCCESS:
            raise self._unusable(broker, f"refuses the proxy's query of a user: {response.remark}", response)
        return response

    def _unusable(self, broker: str, what: str, response: RemotingCommand) -> BrokerError:
        error = BrokerError(
            f"Users cannot be checked: broker {broker} {what}",
            response_code=response.code or ResponseCode.SYSTEM_ERROR,
            remedy="Set innerClientAuthenticationCredentials of the proxy to a Super user of brokers with "
            "authenticationEnabled=true.",
        )
        _often.warning(broker, "%s %s", error.message, error.remedy)
        return error
