"""Settings of consumer groups, created by an admin or by a group's first request.

After a crash: settings made by an admin are in ``subscriptionGroup.json`` and ``messageRequestMode.json``; other groups
are created again on next use. Corresponds to org.apache.rocketmq.broker.subscription.SubscriptionGroupManager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.versioned_table import VersionedTable
from spark_rocket.errors import RefusedError
from spark_rocket.model import SYSTEM_GROUP_PREFIX, TRANSACTION_GROUP, group_problem
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import CONSUMER_GROUPS
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.codes import SEE_FAQ, ResponseCode
from spark_rocket.protocol.wire.json import dumps_fastjson

_BUILT_IN = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)


class SubscriptionGroupManager(VersionedTable[SubscriptionGroupConfig]):
    """The table of groups."""

    def __init__(self, config: BrokerConfig, clock: Callable[[], int]) -> None:
        super().__init__(
            clock,
            member="subscriptionGroupTable",
            of_value=SubscriptionGroupConfig.from_value,
            name_field="groupName",
            most=STATE_LIMITS[CONSUMER_GROUPS].total,
        )
        self._config = config
        self.table = {name: SubscriptionGroupConfig(group_name=name) for name in _BUILT_IN}
        self._forbidden: dict[str, Any] = {}

    def find(self, group: str, *, bounded: bool = True) -> SubscriptionGroupConfig | None:
        """Return the group, created if allowed; otherwise None.

        ``bounded``: do not exceed ``maxAutoCreateGroups``; False for a group whose messages the broker must redeliver.
        """
        found = self.table.get(group)
        if found is not None:
            return found
        if not (self._config.auto_create_subscription_group or group.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        if group_problem(group) is not None or (bounded and self.full):
            return None
        created = SubscriptionGroupConfig(group_name=group)
        if not self._config.is_slave:  # a slave has only its master's groups
            self.put(created)
        return created

    def to_consume(self, group: str) -> SubscriptionGroupConfig:
        """The settings of a group that reads; RefusedError if it does not exist or is disabled."""
        settings = self.find(group)
        if settings is None:
            raise RefusedError(
                f"subscription group [{group}] does not exist, {self._why_missing()}{SEE_FAQ}",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        if not settings.consume_enable:
            raise RefusedError(f"subscription group no permission, {group}", ResponseCode.NO_PERMISSION)
        return settings

    def to_retry(self, group: str) -> SubscriptionGroupConfig:
        """The settings of a group that sends messages back; RefusedError if it does not exist."""
        settings = self.find(group)
        if settings is None:
            raise RefusedError(
                f"subscription group not exist, {group} {self._why_missing()}{SEE_FAQ}",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        return settings

    def _why_missing(self) -> str:
        full = self.full if self._config.auto_create_subscription_group else ""
        return f"and is not created: {full}. " if full else ""

    @property
    def full(self) -> str:
        """Why clients cannot create groups, if ``maxAutoCreateGroups`` is the reason; otherwise empty."""
        return self.creation_problem("maxAutoCreateGroups", self._config.max_auto_create_groups)

    def put(self, config: SubscriptionGroupConfig) -> None:
        self._put(config.group_name, config)

    def snapshot(self, start: int = 0, most: int | None = None) -> dict[str, Any]:
        """The response to code 201."""
        return {**super().snapshot(start, most), "forbiddenTable": self._forbidden}

    def text(self) -> bytes:
        """Return the content of ``subscriptionGroup.json``."""
        forbidden = dumps_fastjson({"forbiddenTable": self._forbidden}, pretty=True)
        return super().text()[: -len("\n}")] + b"," + forbidden[len("{") :]

    def load(self, stored: dict[str, Any]) -> None:
        super().load(stored)
        self._forbidden = dict(stored.get("forbiddenTable") or {})

    def replace(self, stored: dict[str, Any]) -> bool:
        changed = super().replace(stored)
        if changed:
            self._forbidden = dict(stored.get("forbiddenTable") or {})
        return changed
