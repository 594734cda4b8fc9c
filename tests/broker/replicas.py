"""Masters and slaves on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from spark_rocket.broker.broker import Broker
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.store import PutStatus
from spark_rocket.store.tools.check import check_store
from tests.kit.waiting import until_async as until
from tests.store.test_replica import assert_alike

FILE = 64 << 10
T = TypeVar("T")


def settings(path: Path, **more: object) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "storePathRootDir": path,
            "listenPort": 0,
            "mappedFileSizeCommitLog": FILE,
            "mappedFileSizeConsumeQueue": 4000,
            "maxHashSlotNum": 100,
            "maxIndexNum": 400,
            **more,
        }
    )


async def within(work: Awaitable[T]) -> T:
    return await asyncio.wait_for(work, 30)


def ha_address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.parts.replication.port}"


async def started(config: BrokerConfig) -> Broker:
    broker = Broker(config)
    await broker.start()
    return broker


class Replicas:
    """Masters and slaves with stores below a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: list[Broker] = []

    async def master(self, store: str = "m", **more: object) -> Broker:
        broker = await started(settings(self.directory / store, **more))
        self.running.append(broker)
        return broker

    async def slave(self, master: Broker | str, store: str = "s", **more: object) -> Broker:
        address = master if isinstance(master, str) else ha_address(master)
        own = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": address, **more}
        return await self.master(store, **own)

    async def pair(self, count: int) -> tuple[Broker, Broker]:
        """A master with a number of messages, and its slave with the same ones."""
        master = await self.master()
        slave = await self.slave(master)
        await following(slave)
        fill(master, count)
        await caught_up(master, slave)
        return master, slave

    async def close(self, *brokers: Broker) -> None:
        """Close these brokers; without an argument all, in the order of their start."""
        for broker in brokers or tuple(self.running):
            self.running.remove(broker)
            await broker.close()

    async def close_alike(self, master: Broker, *slaves: Broker) -> None:
        """Stop all, master first; the logs are equal byte for byte, and the stores are valid."""
        await caught_up(master, *slaves)
        await self.close(master, *slaves)
        for broker in (master, *slaves):
            assert check_store(broker.config.store.store_path, broker.config.store_config()) == []
        for slave in slaves:
            assert_alike(master.config.store.store_path, slave.config.store.store_path)


def problem(slave: Broker) -> str:
    """Why the slave does not follow its master."""
    assert slave.parts.slave is not None
    return slave.parts.slave.problem


async def following(*slaves: Broker) -> None:
    for slave in slaves:
        await until(lambda: slave.parts.slave and slave.parts.slave.is_following)  # noqa: B023


def fill(broker: Broker, count: int, size: int = 300, topic: str = "T") -> None:
    store = broker.parts.store
    for number in range(count):
        body = b"%d" % number * (size // len(b"%d" % number))
        result = store.put_message(
            topic, number % 4, body, b"KEYS\1k%d" % number, born_timestamp=1, born_host=("127.0.0.1", 5)
        )
        assert result.status is PutStatus.PUT_OK


async def caught_up(master: Broker, *slaves: Broker) -> None:
    for slave in slaves:
        assert slave.parts.slave is not None
        await within(slave.parts.slave.reached(master.parts.store.max_physical_offset))


async def talk(broker: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = ha_address(broker).split(":")
    return await asyncio.open_connection(host, int(port))
