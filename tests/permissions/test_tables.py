"""The names of pipelines in the tables of permissions, and the permissions of the doctor."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_rocket.protocol.requests import pipelines
from spark_rocket.protocol.requests.pipelines import Granted, PipelineRequests
from tools import permission_tables


def test_every_pipeline_has_a_name() -> None:
    assert set(permission_tables.PIPELINES) == {pipeline.name for pipeline in pipelines.PIPELINES}


@pytest.mark.parametrize("permissions", [PipelineRequests.policies, PipelineRequests.plain_permissions])
def test_the_doctor_needs_no_more_than_the_pipelines(
    permissions: Callable[[PipelineRequests], list[Granted]],
) -> None:
    """``-t`` takes the steps of a stream, ``--write`` those of a write."""
    found = {pipeline: _pairs(permissions(pipeline)) for pipeline in (pipelines.STREAM, pipelines.WRITE)}
    assert _pairs(permissions(pipelines.DOCTOR)) <= set().union(*found.values())


def _pairs(granted: list[Granted]) -> set[tuple[str, str]]:
    return {(f"{each.resource.value}:{each.name}", action) for each in granted for action in each.actions}
