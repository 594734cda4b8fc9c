"""Everything that a source sends names one group: ``consumerGroup``, or ``spark_rocket_reader`` without it.

An account has the permission of that group alone, so a request under another name is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_rocket import read_arrow
from spark_rocket.client import Admin, Producer
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.cluster import Cluster
from spark_rocket.datasource.views.views import VIEWS, ViewReader, checked_view_options
from spark_rocket.errors import BrokerError
from spark_rocket.model import READER_GROUP, Message
from spark_rocket.testing import LocalCluster
from tests.kit.accounts import KEYS

pytestmark = pytest.mark.live

ACCOUNT = {"accessKey": "reader-key", "secretKey": "reader-s3cr3t"}
ROWS = {f"row {number}" for number in range(20)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True, **KEYS) as running:
        running.create_topic("orders", 2)
        running.create_topic("%DLQ%pipeline", 1)
        with Producer("shop", name_server=running.name_server, **KEYS) as producer:
            for row in sorted(ROWS):
                producer.send(Message.of("orders", row, keys=row.replace(" ", "-")))
            producer.send(Message.of("%DLQ%pipeline", "dead"))
        yield running


@pytest.fixture(params=[{"consumerGroup": "pipeline"}, {}], ids=["consumerGroup", "default"])
def given(cluster: LocalCluster, request: pytest.FixtureRequest) -> dict[str, str]:
    """Options of a read by an account with the permission of its group."""
    group = request.param.get("consumerGroup", READER_GROUP)
    with Admin(cluster.name_server, **KEYS) as admin:
        admin.update_account(
            ACCOUNT["accessKey"], secret_key=ACCOUNT["secretKey"], admin=False, default_topic_perm="DENY",
            default_group_perm="DENY", topic_perms=["orders=SUB", "%DLQ%pipeline=SUB"], group_perms=[f"{group}=SUB"],
        )  # fmt: skip
    return {"nameServer": cluster.name_server, "subscribe": "orders", "retryTimeout": "0"} | ACCOUNT | request.param


def read(given: dict[str, str]) -> set[str]:
    options: dict[str, Any] = {name: value for name, value in given.items() if name != "subscribe"}
    return bodies(read_arrow(given["subscribe"], **options))


def bodies(batches: Iterable[pa.RecordBatch]) -> set[str]:
    return {body.decode() for batch in batches for body in batch.column("body").to_pylist()}


def test_reads(given: dict[str, str]) -> None:
    assert read(given) == ROWS
    assert read(given | {"lookupKeys": "row-7"}) == {"row 7"}
    assert read(given | {"startingTimestamp": "2020-01-01T00:00:00Z"}) == ROWS


def test_a_stream_plans_and_commits(given: dict[str, str]) -> None:
    planned = Cluster(parse_read_options(given, Scope.READ_STREAM))
    queues = planned.route("orders").readable
    ends = planned.max_offsets(queues)
    assert sum(ends.values()) == len(ROWS)
    assert planned.commit_offsets("pipeline", ends) == {} or "consumerGroup" not in given


@pytest.mark.parametrize(
    ("view", "more"), [("messages", {"subscribe": "orders", "key": "row-7"}), ("dlq", {"consumerGroup": "pipeline"})]
)
def test_views_of_messages(cluster: LocalCluster, given: dict[str, str], view: str, more: dict[str, str]) -> None:
    if view == "dlq" and "consumerGroup" not in given:
        return  # the account has no permission for this group
    shared = {"view": view, "nameServer": cluster.name_server} | ACCOUNT
    reader = ViewReader(checked_view_options(shared | more), VIEWS[view].schema)
    [partition] = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(partition)) == 1


def test_another_group_is_refused_by_name(given: dict[str, str]) -> None:
    group = "pipeline" if "consumerGroup" not in given else "another"
    with pytest.raises(BrokerError, match=group):
        read(given | {"consumerGroup": group})
