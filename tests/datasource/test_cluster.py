"""The driver's questions: which are asked until there is an answer, and which only once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_rocket.datasource import cluster
from spark_rocket.datasource.cluster import Cluster
from spark_rocket.datasource.options import Scope, parse_read_options
from spark_rocket.datasource.patience import Patience
from spark_rocket.errors import NameServerUnreachableError, RemotingConnectError, RocketError
from spark_rocket.model import MessageQueue
from tests.datasource.fakes import q


class AwayReader:
    """Fails so many times, then answers every question with 7."""

    def __init__(self, *failures: RocketError) -> None:
        self.failures = list(failures)

    def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        if self.failures:
            raise self.failures.pop(0)
        return 7

    def max_offset(self, queue: MessageQueue) -> int:
        if self.failures:
            raise self.failures.pop(0)
        return 7


@pytest.fixture
def cluster_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    pauses: list[float] = []
    monkeypatch.setattr(Patience.__init__, "__kwdefaults__", {"clock": lambda: sum(pauses), "sleep": pauses.append})

    def make(*failures: RocketError) -> Cluster:
        monkeypatch.setattr(cluster, "reader_for", lambda name_server, timeout: AwayReader(*failures))
        return Cluster(parse_read_options({"subscribe": "orders", "nameServer": "x:1"}, Scope.READ_STREAM))

    return make


def test_a_broker_that_is_away_is_asked_again(cluster_of: Callable[..., Cluster]) -> None:
    assert cluster_of(RemotingConnectError("away")).max_offset(q(0)) == 7
    assert cluster_of(RemotingConnectError("away")).committed_offset("g", q(0)) == 7


def test_an_impatient_question_is_asked_once(cluster_of: Callable[..., Cluster]) -> None:
    with pytest.raises(RemotingConnectError):
        cluster_of(RemotingConnectError("away")).committed_offset("g", q(0), patient=False)


def test_a_name_server_that_never_answered_is_likely_the_wrong_one(cluster_of: Callable[..., Cluster]) -> None:
    with pytest.raises(NameServerUnreachableError):
        cluster_of(NameServerUnreachableError("nobody there")).max_offset(q(0))
    met = cluster_of()
    met.max_offset(q(0))
    met._reader.failures = [NameServerUnreachableError("restarting")]  # type: ignore[attr-defined]
    assert met.max_offset(q(0)) == 7
