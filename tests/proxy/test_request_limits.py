"""The bounds of the proxy's methods: each method and each repeated field has one; requests beyond it are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from spark_rocket.proxy import definitions
from spark_rocket.proxy.method_types import METHODS as METHOD_TYPES
from spark_rocket.proxy.method_types import MethodType
from spark_rocket.proxy.transport.limits import has_more_fields
from spark_rocket.testing import LocalCluster
from tests.proxy.caller import METHODS, Caller

# Of each message, limited by message_in.py; and of commands, which a proxy ignores when a client sends them.
_OTHERS = ("messages.user_properties", "messages.system_properties.keys", "verify_message_command", "recover_orphaned")
_FEW_FIELDS = 1_024
_ALL = [pytest.param(name, limit, id=name) for name, limit in METHOD_TYPES.items()]


def _repeated(descriptor: Any, path: str = "") -> Iterator[str]:
    for field in descriptor.fields:
        here = f"{path}.{field.name}" if path else field.name
        if field.is_repeated:
            yield here
        if field.message_type is not None and not field.message_type.full_name.startswith("google."):
            yield from _repeated(field.message_type, here)


def test_every_method_has_bounds() -> None:
    assert METHODS.keys() == METHOD_TYPES.keys()


@pytest.mark.parametrize(("name", "limit"), _ALL)
def test_every_collection_has_a_bound(name: str, limit: MethodType) -> None:
    """Its entries, those of the collection that it is in, or the few fields that the request may have."""
    if limit.max_fields > _FEW_FIELDS:
        for path in _repeated(METHODS[name].input_type):
            parts = path.split(".")
            outer = {".".join(parts[:at]) for at in range(1, len(parts) + 1)}
            assert outer & limit.max_entries.keys() or path.startswith(_OTHERS), path


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    with LocalCluster(in_process=True) as cluster, Caller(cluster.grpc_endpoint, "limits") as made:
        yield made


def _filled(name: str, path: str, count: int) -> Any:
    """A request with this many empty entries."""
    request = getattr(definitions, METHODS[name].input_type.name)()
    value = request
    *parents, last = path.split(".")
    for each in parents:
        value = getattr(value, each)
    entries = getattr(value, last)
    plain: dict[str, object] = {"lite_topic_set": "", "accept_message_types": 0}
    entries.extend([plain[last]] * count if last in plain else [type(entries.add())()] * (count - 1))
    return request


@pytest.mark.live
@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for name, limit in METHOD_TYPES.items() for path in limit.max_entries]
)
def test_more_entries_are_refused(caller: Caller, name: str, path: str) -> None:
    entries = METHOD_TYPES[name].max_entries[path]
    raw = _filled(name, path, entries.most + 1).SerializeToString()
    answer_class = getattr(definitions, METHODS[name].output_type.name)
    if name == "SyncLiteSubscription":
        pytest.skip("not supported")
    if METHODS[name].client_streaming:
        with pytest.raises(grpc.RpcError, match=f"at most {entries.most} are allowed"):
            caller.raw(name, raw)
        return
    answer = answer_class.FromString(caller.raw(name, raw)[0])
    assert f"at most {entries.most} are allowed" in answer.status.message
    assert answer.status.code == entries.code


@pytest.mark.live
@pytest.mark.parametrize(("name", "limit"), _ALL)
def test_more_fields_are_refused_without_parsing(caller: Caller, name: str, limit: MethodType) -> None:
    raw = b"\xf8\x07\x01" * (limit.max_fields + 1)  # an unknown field, number 127
    assert has_more_fields(raw, getattr(definitions, METHODS[name].input_type.name), limit.max_fields)
    with pytest.raises(grpc.RpcError) as refused:
        caller.raw(name, raw)
    assert refused.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED)
