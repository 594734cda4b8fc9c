"""Endpoints of a broker: its statistics, its settings, and changes of settings.

The values of secrets are neither shown nor changed. A spark_rocket broker reports which settings it changes at run
time. Apache's brokers do not: the page offers all of them, and the broker decides.
Corresponds to ClusterController of RocketMQ's dashboard, and to mqadmin's updateBrokerConfig.
"""

from __future__ import annotations

from typing import Any

from spark_rocket.console.api.context import ApiContext, ApiRequest
from spark_rocket.console.responses import Refused
from spark_rocket.console.secrets import is_secret, shown

_UNSAFE = frozenset(("rocketmqHome", "filterServerNums", "brokerConfigPath", "configBlackList"))
"""With these, Apache's brokers before 4.9.6 and 5.1.1 run programs and write files (CVE-2023-33246)."""


class BrokerApi:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def show(self, request: ApiRequest) -> dict[str, Any]:
        """Return a broker's statistics and settings, with Apache's names.

        ``changeable``: the settings that can be changed; ``decides``: the broker may refuse some of them.
        """
        address = self._context.broker_address(request.text("address"))
        runtime = self._context.admin.runtime_info(address)
        settings = self._context.admin.broker_settings(address)
        values = settings.values
        names = values.keys() if settings.dynamic is None else values.keys() & settings.dynamic
        return {
            "runtime": runtime,
            "config": {name: shown(name, value) for name, value in values.items()},
            "changeable": sorted(name for name in names - _UNSAFE if not is_secret(name, values[name])),
            "decides": settings.dynamic is None,
        }

    def put(self, request: ApiRequest) -> dict[str, Any]:
        """Change one setting, if it still has the value ``from`` that the user has confirmed."""
        address, name = self._context.broker_address(request.text("address")), request.text("name")
        before, value = request.text("from"), request.text("value").strip()
        now = self._value(address, name)
        if name in _UNSAFE:
            raise Refused(
                f"{name} cannot be changed in the console.",
                remedy="Set it in the broker's broker.conf and restart the broker.",
                code="UNSAFE_SETTING",
            )
        if is_secret(name, now) or is_secret(name, value):
            raise Refused(
                f"{name} is a secret.",
                remedy="Set it in the broker's broker.conf and restart the broker.",
                code="SECRET_SETTING",
            )
        if now != before:
            raise Refused(
                f"{name} has changed to {now} in the meantime.",
                remedy="Check the new value, and change it again if needed.",
                code="SETTING_CHANGED",
            )
        if not value.isprintable():
            raise Refused(f"Invalid value of {name}.", remedy="Use one line of printable characters.")
        remark = self._context.changing.update_broker_config(address, {name: value})
        if value != before and self._value(address, name) == before:
            raise Refused(
                f"Broker {address} accepted the change, but {name} still has the value {before}.",
                remedy="Set it in the broker's broker.conf and restart the broker.",
                code="NOT_APPLIED",
            )
        return {
            "done": f"Changed {name} of {address} from {before or 'empty'} to {value or 'empty'}.",
            "remark": remark,
        }

    def _value(self, address: str, name: str) -> str:
        settings = self._context.changing.broker_config(address)
        if name not in settings:
            raise Refused(
                f"Broker {address} has no setting {name[:80]!r}.",
                remedy="Select a setting of its page.",
                code="NO_SUCH_SETTING",
            )
        return settings[name]
