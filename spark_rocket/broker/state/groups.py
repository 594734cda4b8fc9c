"""Settings of consumer groups, created by an admin or by a group's first request.

Thread-safety: used on the event loop only; values are replaced, never changed in place, so a snapshot is consistent.
After a crash: groups that an admin set are in ``subscriptionGroup.json``; others are created again by their next use.
Corresponds to org.apache.rocketmq.broker.subscription.SubscriptionGroupManager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.model import SYSTEM_GROUP_PREFIX, group_problem
from spark_rocket.protocol.wire.bodies import DataVersion, SubscriptionGroupConfig

_BUILT_IN = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


class SubscriptionGroupManager:
    """The table of groups with its version."""

    def __init__(self, config: BrokerConfig, clock: Callable[[], int]) -> None:
        self._config = config
        self._clock = clock
        self.table: dict[str, SubscriptionGroupConfig] = {
            name: SubscriptionGroupConfig(group_name=name) for name in _BUILT_IN
        }
        self._forbidden: dict[str, Any] = {}
        self.data_version = DataVersion(timestamp=clock())
        self.on_change: Callable[[str], None] = lambda group: None

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group as it is, without creating it."""
        return self.table.get(group)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group, created when that is allowed; None when it is not."""
        found = self.table.get(group)
        if found is not None:
            return found
        if not (self._config.auto_create_subscription_group or group.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        if group_problem(group) is not None:
            return None
        created = SubscriptionGroupConfig(group_name=group)
        if not self._config.is_slave:  # which has its master's groups, and no others
            self.put(created)
        return created

    def put(self, config: SubscriptionGroupConfig) -> None:
        self.table[config.group_name] = config
        self._changed(config.group_name)

    def delete(self, group: str) -> bool:
        if self.table.pop(group, None) is None:
            return False
        self._changed(group)
        return True

    def replace(self, stored: dict[str, Any]) -> bool:
        """On a slave: have the groups of a master; False if nothing changed.

        ProtocolError, TypeError or KeyError, and nothing changed, when it does not fit.
        """
        version = DataVersion.from_value(stored["dataVersion"])
        if version == self.data_version:
            return False
        table = {
            name: SubscriptionGroupConfig.from_value({"groupName": name, **entry})
            for name, entry in stored["subscriptionGroupTable"].items()
        }
        self._forbidden = dict(stored.get("forbiddenTable") or {})
        self.table, self.data_version = table, version
        return True

    def _changed(self, group: str) -> None:
        self.data_version = self.data_version.next(self._clock())
        self.on_change(group)

    def snapshot(self) -> dict[str, Any]:
        """What ``subscriptionGroup.json`` and code 201 say."""
        return {
            "dataVersion": self.data_version.to_value(),
            "forbiddenTable": self._forbidden,
            "subscriptionGroupTable": {name: config.to_value() for name, config in self.table.items()},
        }

    def load(self, stored: dict[str, Any]) -> None:
        """Take over what a file says; ValueError, TypeError or AttributeError when it does not fit."""
        for name, entry in stored.get("subscriptionGroupTable", {}).items():
            self.table[name] = SubscriptionGroupConfig.from_value({"groupName": name, **entry})
        self._forbidden = dict(stored.get("forbiddenTable") or {})
        version = stored.get("dataVersion")
        if version:
            self.data_version = DataVersion.from_value(version)
