"""The record of a broker's environment, for tests of a part alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_rocket.broker.broker_environment import BackgroundTasks, BrokerEnvironment
from spark_rocket.broker.state.broker_config import BrokerConfig


def broker_environment(config: BrokerConfig, clock: Callable[[], int], host: tuple[str, int]) -> BrokerEnvironment:
    """Settings, clock and address, without an event loop."""
    no_loop: Any = None
    return BrokerEnvironment(config, clock, clock, host, no_loop, BackgroundTasks())
