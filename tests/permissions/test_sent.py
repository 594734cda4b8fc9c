"""The declaration of requests is what pipelines send, no less and no more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest

from spark_rocket.broker.acl.access_control import topic_at
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.requests import REQUESTS
from spark_rocket.protocol.requests.needs import TopicAt
from spark_rocket.protocol.requests.pipelines import PIPELINES, SentRequest
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.kit.brokers import parts_of
from tests.kit.recording import recording
from tests.permissions.pipelines import RUNS, Run, World, prepare

pytestmark = pytest.mark.live

Request = tuple[str, tuple[str, ...]]
"""The name of the code, and the resources that it names."""


def resources(request: RemotingCommand, find_topic: TopicAt) -> tuple[str, ...]:
    pairs = REQUESTS[request.code].pairs(request, find_topic)
    return tuple(sorted({f"{pair.resource.value}:{pair.name}" for pair in pairs if pair.name}))


@pytest.fixture(scope="module")
def requests() -> Iterator[list[Request]]:
    found: list[Request] = []

    def note(request: RemotingCommand, server: Any) -> None:
        named = resources(request, lambda offset: topic_at(server.store, offset))
        found.append((RequestCode(request.code).name, named))

    with recording(note):
        yield found


@pytest.fixture(scope="module")
def world(requests: list[Request], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An open cluster."""
    directory = tmp_path_factory.mktemp("sent")
    with LocalCluster(in_process=True) as cluster:
        assert parts_of(cluster).access_control is None
        yield prepare(cluster, None, directory)


def test_every_pipeline_is_run() -> None:
    assert [each.pipeline for each in RUNS] == list(PIPELINES)


def _matches(request: Request, sent: SentRequest, run: Run) -> bool:
    """Whether a request is the declared one. Names of the declaration may be patterns."""
    code, named = request
    expected = sorted(
        {f"{pair.resource.value}:{run.named(pair.name)}" for pair in sent.pairs_at_any_server() if pair.name}
    )
    return code == sent.code.name and len(named) == len(expected) and all(map(fnmatchcase, named, expected))


@pytest.mark.parametrize("run", RUNS, ids=[each.pipeline.name for each in RUNS])
def test_a_pipeline_sends_what_is_declared(run: Run, world: World, requests: list[Request], caplog: Any) -> None:
    requests.clear()
    run.run(replace(world, account=Credentials(run.pipeline.name, "secret")))  # other accounts share no routes
    found, declared = list(dict.fromkeys(requests)), run.pipeline.sent
    undeclared = [each for each in found if not any(_matches(each, sent, run) for sent in declared)]
    needed = [sent for sent in declared if not sent.is_optional]
    not_sent = [sent for sent in needed if not any(_matches(each, sent, run) for each in found)]
    assert (undeclared, not_sent) == ([], [])
    assert "is not remembered" not in caplog.text
