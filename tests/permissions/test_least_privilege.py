"""Each pipeline runs with exactly the declared permissions, and fails by name without each one of them.

On brokers with accounts of ACL 1.0, and with users of ACL 2.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.requests.needs import Resource
from spark_rocket.protocol.requests.pipelines import Granted
from spark_rocket.testing import LocalCluster
from tests.permissions.pipelines import RUNS, Run, World, prepare

pytestmark = pytest.mark.live

ROOT = Credentials("root-key", "r00t-s3cr3t")
SECRET = "pipeline-s3cr3t"


@pytest.fixture(scope="module", params=["1.0", "2.0"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster with access control, and an administrator's account."""
    directory = tmp_path_factory.mktemp("guarded")
    with LocalCluster(
        in_process=True, access_key=ROOT.access_key, secret_key=ROOT.secret_key, acl=request.param
    ) as cluster:
        prepare(cluster, ROOT, directory)
        yield World(cluster, directory, ROOT, acl=request.param)


def resource(granted: Granted, run: Run) -> str:
    return f"{granted.resource.value}:{run.named(granted.name)}"


def permissions(run: Run, acl: str) -> list[tuple[str, str]]:
    """The declared permissions, as pairs of a resource and an action."""
    declared = run.pipeline.policies() if acl == "2.0" else run.pipeline.plain_permissions()
    return [(resource(granted, run), action) for granted in declared for action in granted.actions]


def with_permissions(world: World, account: str, permissions: list[tuple[str, str]]) -> World:
    """The world with a new account. Clients are shared by those that have the same one."""
    actions: dict[str, list[str]] = {}
    for resource, action in permissions:
        actions.setdefault(resource, []).append(action.capitalize())
    return replace(world, account=world.cluster.set_account(account, SECRET, actions))


@pytest.mark.parametrize("run", RUNS, ids=[each.pipeline.name for each in RUNS])
def test_a_pipeline_with_exactly_its_permissions(run: Run, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    needed = permissions(run, world.acl)
    run.run(with_permissions(world, f"{run.pipeline.name}-account", needed))
    for number, (resource, action) in enumerate(needed):
        account = f"{run.pipeline.name}-without-{number}"
        fewer = with_permissions(world, account, [each for each in needed if each != (resource, action)])
        capsys.readouterr()
        with pytest.raises(Exception) as failure:
            run.run(fewer)
        error = f"{failure.value} {''.join(capsys.readouterr())}"
        named = {account, action, resource.partition(":")[2].strip("*")}
        assert not {word for word in named if word not in error}, (resource, action, error)
        assert SECRET not in error


def test_permissions_of_both_kinds_are_declared() -> None:
    kinds = {granted.resource for run in RUNS for granted in run.pipeline.policies()}
    assert kinds == set(Resource)
