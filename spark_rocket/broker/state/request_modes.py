"""Whether a group pulls or pops a topic, as an administrator has set it: ``messageRequestMode.json``.

Thread-safety: used on the event loop only; values are replaced, never changed in place, so a snapshot is consistent.
After a crash: what was acknowledged is in the file. Corresponds to
org.apache.rocketmq.broker.loadbalance.MessageRequestModeManager.
"""

from __future__ import annotations

from typing import Any

from spark_rocket.protocol.wire.bodies import SetMessageRequestModeRequestBody


class MessageRequestModeManager:
    """Topic -> group -> mode."""

    def __init__(self) -> None:
        self.table: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}

    def get(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        return self.table.get(topic, {}).get(group)

    def put(self, mode: SetMessageRequestModeRequestBody) -> None:
        self.table.setdefault(mode.topic, {})[mode.consumer_group] = mode

    def snapshot(self) -> dict[str, Any]:
        """What the file and code 402 say."""
        table = {
            topic: {group: mode.to_value() for group, mode in groups.items()} for topic, groups in self.table.items()
        }
        return {"messageRequestModeMap": table}

    def load(self, stored: dict[str, Any]) -> None:
        """Take over what a file says; AttributeError or ProtocolError when it does not fit."""
        self.table = {
            topic: {group: SetMessageRequestModeRequestBody.from_value(mode) for group, mode in groups.items()}
            for topic, groups in (stored.get("messageRequestModeMap") or {}).items()
        }
