"""Each pipeline in a namespace: names have it in every request, and the second kind is in two fields of every one."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from urllib.request import urlopen

import pytest
from pyspark.sql.streaming.listener import SourceProgress

from spark_rocket import read_arrow
from spark_rocket.datasource import RocketLagListener
from spark_rocket.datasource.stream_offsets import StreamOffset
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.namespace import Namespace
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.kit.recording import recording, text_of
from tests.kit.waiting import until
from tests.permissions.pipelines import COMMITTED, READERS, RUNS, World, prepare

pytestmark = pytest.mark.live

BOTH = Namespace("MQ_INST_1_a", "SECOND")
NAMES = ("orders", "results", "invalid", "ROCKET_SINK_STAGING", "ROCKET_SINK_LEDGER", COMMITTED, READERS)
BARE = re.compile(rf"(?<!{BOTH.name}%)\b(?:{'|'.join(NAMES)})\b")
"""A name without the namespace. Names of the exactly-once sink stand in a record too, whose entries have full names."""


@pytest.fixture(scope="module")
def requests() -> Iterator[list[RemotingCommand]]:
    found: list[RemotingCommand] = []
    with recording(lambda request, _: found.append(request)):
        yield found


@pytest.fixture(scope="module")
def world(requests: list[RemotingCommand], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with LocalCluster(in_process=True) as cluster:
        yield prepare(cluster, None, tmp_path_factory.mktemp("namespace"), BOTH)


def arrow(world: World) -> None:
    rows = read_arrow(
        "orders",
        name_server=world.cluster.name_server,
        namespace=BOTH.name,
        namespace_v2=BOTH.v2,
        consumer_group=READERS,
    ).read_all()
    assert set(rows.column("topic").to_pylist()) == {"orders"}


def lag_listener(world: World) -> None:
    queue = MessageQueue(BOTH.wrap("orders"), "broker-a", 0)
    end, latest = (json.dumps(StreamOffset({queue: offset}).to_json()) for offset in (0, 1))
    source = SourceProgress("rocket", "null", end, latest, 1, 1.0, 1.0, {})
    progress = SimpleNamespace(id="1", runId=uuid.uuid4(), name="copy", sources=[source])
    listener = RocketLagListener(0, name_server=world.cluster.name_server, **world.connecting())
    with closing(listener):
        listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]

        def metrics() -> str:
            with urlopen(f"http://127.0.0.1:{listener.port}/metrics") as page:
                return str(page.read().decode())

        until(lambda: "rocket_stream_lag_seconds{" in metrics(), "the age of the next message")


OTHERS: dict[str, Callable[[World], None]] = {"read_arrow": arrow, "lag listener": lag_listener}


@pytest.mark.parametrize(
    "run", [*(each.run for each in RUNS), *OTHERS.values()], ids=[*(each.pipeline.name for each in RUNS), *OTHERS]
)
def test_every_request_of_a_pipeline_has_the_namespace(
    run: Callable[[World], None], world: World, requests: list[RemotingCommand]
) -> None:
    requests.clear()
    run(world)
    assert requests
    assert [text_of(each) for each in requests if BARE.search(text_of(each))] == []
    assert {(each.ext_fields.get("nsd"), each.ext_fields.get("ns")) for each in requests} == {("true", BOTH.v2)}
