"""Messages of one gRPC client as another receives them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.message_in import SYSTEM_PROPERTIES
from tests.kit.clock import Clock
from tests.proxy.caller import resource
from tests.proxy.direct import DirectCaller, endpoint
from tests.proxy.outgoing import Type, message, sent

pytestmark = pytest.mark.live

Code = definitions.Code
GROUP = "GID_round"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectCaller]:
    clock = Clock()
    with endpoint(tmp_path_factory.mktemp("round"), clock) as (here, _):
        here.create_topic("T")
        yield here.client()


def receive(client: DirectCaller) -> list[Any]:
    messages = client.receive(GROUP, "T", seconds=5)
    for one in messages:
        assert client.ack(GROUP, "T", one).status.code == Code.OK
    return messages


def texts(*, blanks: bool = True, **sizes: int) -> st.SearchStrategy[str]:
    chars = st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="|" if blanks else "| \u3000")
    found = st.text(chars, **sizes)
    return found if blanks else found.filter(lambda text: not any(map(str.isspace, text)))


def words(max_size: int = 12) -> st.SearchStrategy[str]:
    return texts(min_size=1, max_size=max_size).filter(lambda text: not text.isspace())


@settings(max_examples=60)
@given(
    bodies=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=3),
    user=st.dictionaries(words().filter(lambda name: name not in SYSTEM_PROPERTIES), texts(max_size=30), max_size=4),
    tag=st.just("") | words(),
    keys=st.lists(texts(blanks=False, min_size=1, max_size=10), max_size=3),
    group=st.just("") | words(15),
    host=st.just("") | words(),
    trace=st.just("") | words(40),
    born=st.integers(1, 253_402_300_799_999),
)
def test_messages_are_received_as_sent(
    client: DirectCaller,
    bodies: list[bytes],
    user: dict[str, str],
    tag: str,
    keys: list[str],
    group: str,
    host: str,
    trace: str,
    born: int,
) -> None:
    kind = Type.FIFO if group else Type.NORMAL
    messages = [
        message(
            "T",
            body,
            user,
            message_id=f"id-{next(_numbers)}",
            message_type=kind,
            tag=tag,
            keys=keys,
            message_group=group,
            born_host=host,
            trace_context=trace,
            born_ms=born + at,
        )
        for at, body in enumerate(bodies)
    ]
    sent(client, *messages)
    received = receive(client)
    assert len(received) == len(messages)
    for ours, theirs in zip(messages, received, strict=True):
        assert (theirs.topic, theirs.body, dict(theirs.user_properties)) == (resource("T"), ours.body, user)
        system, expected = theirs.system_properties, ours.system_properties
        for name in ("message_id", "tag", "keys", "message_group", "trace_context", "message_type"):
            assert getattr(system, name) == getattr(expected, name), name
        assert system.born_host == (host or "127.0.0.1")
        if born + len(bodies) < 253_402_300_800_000:
            assert system.born_timestamp == expected.born_timestamp
        assert (system.delivery_attempt, system.queue_id) == (1, 0)
