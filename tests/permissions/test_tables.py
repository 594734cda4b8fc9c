"""The tables of permissions in the guides are those of the declaration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_rocket.protocol.requests import pipelines
from spark_rocket.protocol.requests.pipelines import Granted, PipelineRequests
from tools import permission_tables

PAGES = permission_tables.pages()


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_tables_are_current(page: Path) -> None:
    """After a change of a pipeline's requests: python -m tools.permission_tables."""
    text = page.read_text("utf-8")
    current = permission_tables.written(text, permission_tables.language_of(page))
    assert current == text
    for kind in ("ACL-1.0", "ACL-2.0"):
        assert permission_tables.table(kind, permission_tables.language_of(page)) in current


def test_tables_are_in_both_languages() -> None:
    assert {permission_tables.language_of(page) for page in PAGES} == {0, 1}


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
