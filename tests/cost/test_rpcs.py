"""Every method of the proxy has hostile requests; one beyond a bound is refused by name, and the proxy goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_rocket.proxy.method_types import METHODS as METHOD_TYPES
from spark_rocket.testing import LocalCluster
from tests.cost.generator import Size, prepared
from tests.cost.rpc_line import RpcLine
from tests.cost.rpcs import RpcRequest, paths_of, plausible, rpc_cases
from tests.cost.servers import Line
from tests.cost.values import Variant
from tests.proxy.caller import METHODS


@pytest.fixture(scope="module")
def line() -> Iterator[RpcLine]:
    with LocalCluster(in_process=True) as cluster:
        with Line(cluster.broker_address) as admin:
            prepared(admin)
        with RpcLine(cluster.grpc_endpoint) as opened:
            yield opened


@pytest.mark.live
@pytest.mark.parametrize("method", METHODS)
def test_a_request_beyond_a_bound_is_refused(line: RpcLine, method: str) -> None:
    cases = list(rpc_cases(method, (Variant.KNOWN,)))
    assert len({case.label for case in cases}) == len(cases)
    for path, field in paths_of(METHODS[method].input_type):
        kinds = [case for case in cases if case.label.startswith((f"{path}: ", f"{path}="))]
        assert kinds or (field.message_type is not None and not field.is_repeated), path
        if field.is_repeated:
            assert {case.is_beyond for case in kinds} == {True, False}, path
    wrong = []
    for case in cases:
        if case.is_beyond and case.size is Size.SMALL:
            answer = line.ask(case.make())
            if not answer.is_refusal:
                wrong.append(f"{case.label}: {answer}")
    assert wrong == []
    assert line.ask(RpcRequest("QueryRoute", plausible("QueryRoute").SerializeToString())).code == 0


def test_every_method_has_requests() -> None:
    assert METHODS.keys() == METHOD_TYPES.keys()
