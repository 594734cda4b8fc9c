"""`python -m benchmarks.ha_node SETTINGS`: a broker with the settings of a JSON object, for the replication benchmarks.

Prints its port and its HA port. Then, for each line `N` of its standard input, it appends about N bytes in batches at
full speed, and prints the seconds until a slave had all of them. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from benchmarks.store import BORN, TOPIC, batch_body
from spark_rocket.broker.broker import Broker
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.event_loop import new_event_loop
from spark_rocket.store import PutStatus

_SIZE = 1024
_AHEAD = 8 << 20  # bytes appended before yielding to other tasks


async def _append(broker: Broker, count: int) -> float:
    store, replication = broker.parts.store, broker.parts.replication
    loop = asyncio.get_running_loop()
    body = batch_body(_SIZE)
    begun, end = time.perf_counter(), store.max_physical_offset + count
    while store.max_physical_offset < end:
        stop = min(store.max_physical_offset + _AHEAD // 8, end)
        while store.max_physical_offset < stop:
            result = store.put_batch(TOPIC, 0, body, born_timestamp=0, born_host=BORN)
            assert result.status is PutStatus.PUT_OK, result
        await asyncio.sleep(0)
    if replication.slaves:
        done: asyncio.Future[ResponseCode] = loop.create_future()
        replication.when_replicated(store.max_physical_offset, done.set_result)
        assert await done is ResponseCode.SUCCESS
    return time.perf_counter() - begun


async def _main() -> None:
    broker = Broker(BrokerConfig.from_properties(json.loads(sys.argv[1])))
    await broker.start()
    loop = asyncio.get_running_loop()
    try:
        print(broker.port, broker.parts.replication.port, flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            if line.strip() == "slaves":
                while not broker.parts.replication.slaves:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                print(flush=True)
            else:
                print(await _append(broker, int(line)), flush=True)
    finally:
        await broker.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_main())
