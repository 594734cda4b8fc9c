"""Whether a group pulls or pops a topic, as set by an administrator.

After a crash: acknowledged settings are in ``messageRequestMode.json``. Corresponds to
org.apache.rocketmq.broker.loadbalance.MessageRequestModeManager.
"""

from __future__ import annotations

from typing import Any

from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import REQUEST_MODES
from spark_rocket.protocol.wire.bodies.assignment import SetMessageRequestModeRequestBody
from spark_rocket.protocol.wire.codes import ResponseCode


class MessageRequestModeManager:
    """The table: topic -> group -> mode."""

    def __init__(self) -> None:
        self.table: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}

    def get(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        return self.table.get(topic, {}).get(group)

    def put(self, mode: SetMessageRequestModeRequestBody) -> None:
        most, count = STATE_LIMITS[REQUEST_MODES].total, sum(map(len, self.table.values()))
        if count >= most and self.get(mode.topic, mode.consumer_group) is None:
            raise RefusedError(
                f"{count:,} request modes are set, at most {most:,} are allowed.", ResponseCode.SYSTEM_ERROR
            )
        self.table.setdefault(mode.topic, {})[mode.consumer_group] = mode

    def snapshot(self) -> dict[str, Any]:
        """Content of the file and of the response to code 402."""
        table = {
            topic: {group: mode.to_value() for group, mode in groups.items()} for topic, groups in self.table.items()
        }
        return {"messageRequestModeMap": table}

    def load(self, stored: dict[str, Any]) -> None:
        """Load the content of a file; AttributeError or ProtocolError if it is invalid."""
        self.table = {
            topic: {group: SetMessageRequestModeRequestBody.from_value(mode) for group, mode in groups.items()}
            for topic, groups in (stored.get("messageRequestModeMap") or {}).items()
        }
