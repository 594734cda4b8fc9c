"""A sample of the slow tests for ``make test``, another one in each run. ``make long`` runs all of them.

``SOME`` lists these tests and how many of them run. ``SAMPLE_SEED`` repeats a sample. All tests run of a file that the
command names (``make test ARGS=tests/broker/test_tls.py``), and of all files without workers (``-n 0``). Tests with a
``sample`` of their own take it there, too.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

ALL = bool(os.environ.get("LONG"))
#: The processes of a run inherit it; pytest's header shows it.
SEED = os.environ.setdefault("SAMPLE_SEED", str(secrets.randbelow(1_000_000)))

#: A test of which some cases run, or a file of which some tests run, and how many. A server's start takes a second of
#: CPU time, so does a page in Chromium; a streaming query on Spark takes two or three.
SOME = {
    # Chromium. The routes behind the pages are in tests/console/test_api*.py.
    "tests/console/test_browser.py": 5,
    "tests/console/test_browser_accounts.py": 2,
    "tests/console/test_browser_brokers.py": 2,
    "tests/console/test_browser_clients.py": 2,
    "tests/console/test_browser_languages.py": 5,
    # Processes, each started with one more argument, setting or damage.
    "tests/benchmarks/test_load.py": 4,
    "tests/broker/test_bad_config.py::test_a_broker_with_a_damaged_file": 20,
    "tests/broker/test_golden_store.py::test_every_message_is_served_in_every_way": 1,
    "tests/broker/test_golden_store.py::test_writes_on_and_is_opened_again": 1,
    "tests/broker/test_tls.py": 6,
    "tests/cli/test_child_process.py": 3,
    "tests/cli/test_doctor.py": 10,
    "tests/cli/test_doctor_faults.py": 10,
    "tests/cli/test_message.py": 19,
    "tests/cli/test_proxy.py": 4,
    "tests/cli/test_rocket.py": 10,
    "tests/cli/test_up_cluster.py": 2,
    "tests/client/test_lost_connections.py": 6,
    "tests/client/test_producer_chaos.py::test_acknowledged_messages_are_kept": 1,
    "tests/common/test_extras.py::test_commands_name_their_extra": 2,
    "tests/common/test_system.py::test_the_client_and_the_connector_name_the_system_and_the_remedy": 2,
    "tests/console/test_api.py": 20,
    "tests/console/test_api_accounts.py": 16,
    "tests/console/test_cli.py": 5,
    "tests/console/test_search.py": 10,
    "tests/cost/test_rpcs.py::test_a_request_beyond_a_bound_is_refused": 5,
    "tests/crash/test_kill_consuming.py::test_no_returned_message_is_lost": 1,
    "tests/datasource/test_exactly_once_live.py": 10,
    "tests/datasource/test_given_place.py": 2,
    "tests/datasource/test_lean_starts.py::test_writing_processes_import_only_what_they_use": 1,
    "tests/datasource/test_ledger_place.py": 5,
    "tests/datasource/test_namespace.py": 14,
    "tests/jobs/test_parts.py::test_every_job_has_help": 2,
    "tests/permissions/test_least_privilege.py::test_a_pipeline_with_exactly_its_permissions": 10,
    "tests/proxy/test_attacks.py": 30,
    "tests/proxy/test_cluster.py": 6,
    "tests/proxy/test_memory.py::test_400_calls_that_read_nothing": 1,
    "tests/proxy/test_receipts.py": 20,
    "tests/remoting/test_tls.py": 15,
    "tests/remoting/test_tls_files.py": 7,
    "tests/repository/test_deploy.py": 5,
    "tests/store/test_bad_files.py::test_a_damaged_file": 20,
    "tests/testing/test_cluster.py": 7,
    "tests/testing/test_guide.py": 2,
    "tests/testing/test_members.py": 6,
    # Streaming queries. What they show of planning, reading and writing is also in tests/datasource, without Spark.
    "tests/spark/test_body_formats.py": 5,
    "tests/spark/test_datasource_docs.py::test_examples_of_a_page_run": 2,
    "tests/spark/test_recipes.py::test_a_recipe": 2,
    "tests/spark/test_read.py": 9,
    "tests/spark/test_reuse.py": 6,
    "tests/spark/test_sql.py": 2,
    "tests/spark/test_store_path.py": 3,
    "tests/spark/test_stream.py": 5,
    "tests/spark/test_traps.py": 7,
    "tests/spark/test_what_and_where.py": 4,
    "tests/spark/test_write.py": 7,
    # Many values of one kind, within the process.
    "tests/cost/test_table.py::test_requests_within_the_bounds_can_be_decoded": 40,
    "tests/datasource/body_formats/test_csv.py::test_any_strings_round_trip": 2,
    "tests/datasource/body_formats/test_decimals.py::test_decimals_have_the_written_value": 40,
    "tests/datasource/body_formats/test_rules_of_json.py::test_a_batch_of_local_times_is_that_of_each_alone": 2,
    "tests/datasource/body_formats/test_rules_of_json.py::test_a_row_does_not_depend_on_its_neighbours": 2,
}

Item = TypeVar("Item")
Test = TypeVar("Test", bound=Callable[..., object])


def sample(items: Iterable[Item], count: int) -> list[Item]:
    """Return so many of the items, in their order; all of them in ``make long``."""
    among = list(items)
    if ALL or count >= len(among):
        return among
    return [among[index] for index in sorted(random.Random(SEED).sample(range(len(among)), count))]


def part(nodeid: str) -> str | None:
    """The entry of ``SOME`` that the test is of."""
    return next((place for place in (nodeid.partition("[")[0], nodeid.partition("::")[0]) if place in SOME), None)


def named_files(config: pytest.Config) -> set[Path]:
    """The files that the command names, alone or with a test."""
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return {path.resolve() for path in paths if path.is_file()}


def chosen(items: list[pytest.Item], named: Collection[Path] = ()) -> list[pytest.Item]:
    """Leave out what ``SOME`` leaves out, except in the ``named`` files."""
    parts: dict[str | None, list[pytest.Item]] = {}
    for item in items:
        parts.setdefault(None if item.path in named else part(item.nodeid), []).append(item)
    taken = {item for place, of_it in parts.items() for item in (sample(of_it, SOME[place]) if place else of_it)}
    return [item for item in items if item in taken]


def sampled(test: Test) -> Test:
    """Mark a test that takes a sample, so that ``make long`` runs it too."""
    return pytest.mark.long(test) if ALL else test
