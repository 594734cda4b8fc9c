"""Messages in send requests of clients: refusals, and unchanged fields."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.message_in import MAX_UNPACKED_GZIP_BYTES, SYSTEM_PROPERTIES, read_message
from spark_rocket.proxy.messages.statuses import StatusError
from spark_rocket.proxy.methods.sending import consistent_hash, queue_of_group
from tests.proxy.outgoing import message

Code, Encoding = definitions.Code, definitions.Encoding
BORN = 1_795_000_000_000


def test_the_queue_of_a_group_is_guavas_consistent_hash() -> None:
    golden = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [consistent_hash(number, 100) for number in range(20)] == golden
    others = [
        (10863919174838991, 11, 6),
        (2016238256797177309, 11, 3),
        (1673758223894951030, 11, 5),
        (2, 100001, 80343),
    ]
    assert all(consistent_hash(number, buckets) == bucket for number, buckets, bucket in others)
    assert queue_of_group("g", 8) == consistent_hash(103, 8)
    assert queue_of_group("a long name of a group", 8) in range(8)  # its hash code is negative


@pytest.mark.parametrize(("size", "most"), [((4 << 20) + 1, 4 << 20), (MAX_UNPACKED_GZIP_BYTES + 1, 64 << 20)])
def test_a_small_body_that_claims_to_be_huge(size: int, most: int) -> None:
    bomb = gzip.compress(bytes(size), 1)
    with pytest.raises(StatusError) as caught:
        read_message(message("T", bomb, body_encoding=Encoding.GZIP), "T", BORN, most)
    assert caught.value.code == Code.MESSAGE_BODY_TOO_LARGE


# --- arbitrary strings ------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=12)
ILLEGAL = {
    Code.ILLEGAL_MESSAGE_TAG,
    Code.ILLEGAL_MESSAGE_KEY,
    Code.ILLEGAL_MESSAGE_GROUP,
    Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    Code.ILLEGAL_MESSAGE_ID,
    Code.BAD_REQUEST,
}


@settings(max_examples=300)
@given(
    user=st.dictionaries(TEXTS | st.sampled_from(sorted(SYSTEM_PROPERTIES)), TEXTS, max_size=4),
    tag=TEXTS,
    keys=st.lists(TEXTS, max_size=3),
    group=TEXTS,
    message_id=TEXTS,
    host=TEXTS,
    trace=TEXTS,
)
def test_accepted_settings_are_retained(
    user: dict[str, str], tag: str, keys: list[str], group: str, message_id: str, host: str, trace: str
) -> None:
    """Every message is refused with a code for illegal strings, or its properties can be read back."""
    given = message(
        "T",
        user=user,
        tag=tag,
        keys=keys,
        message_group=group,
        message_id=message_id,
        born_host=host,
        trace_context=trace,
    )
    everything = [*user, *user.values(), tag, *keys, group, message_id, host, trace]
    control = any(ord(char) < 32 or 127 <= ord(char) < 160 for text in everything for char in text)
    try:
        read = read_message(given, "T", BORN, 100)
    except StatusError as error:
        assert error.code in ILLEGAL  # noqa: PT017 (most examples are refused, not all)
        return
    assert not control
    assert SYSTEM_PROPERTIES.isdisjoint(user)
    pairs = [piece.split("\x01") for piece in read.properties.split("\x02")]
    expected = {**user, "TAGS": tag, "KEYS": " ".join(keys), "UNIQ_KEY": message_id}
    expected |= {"__SHARDINGKEY": group, "__BORNHOST": host, "TRACE_CONTEXT": trace}
    assert all(len(pair) == 2 for pair in pairs)
    assert dict(pairs) == {name: value for name, value in expected.items() if value or name in user}
