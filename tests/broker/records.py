"""The records that parts of a broker take, for tests of a part alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from spark_rocket.broker.background_tasks import BackgroundTasks
from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_tables import BrokerTables


def broker_records(
    config: BrokerConfig, clock: Callable[[], int], host: tuple[str, int], **tables: Any
) -> tuple[BrokerEnvironment, BrokerTables]:
    """Settings, clock and address, with these tables and empty ones; without an event loop."""
    no_loop: Any = None
    environment = BrokerEnvironment(config, clock, clock, host, no_loop, BackgroundTasks())
    return environment, replace(BrokerTables.empty(config, clock, clock), **tables)
