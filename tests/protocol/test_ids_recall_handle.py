"""Recall handles: Apache's text, and nothing but ProtocolError for everything else."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.ids import RecallMessageHandle

HANDLE = RecallMessageHandle("TopicA", "broker-a", "1795230000001", "7F000001")
# What Java's Base64.getUrlEncoder makes of "v1 TopicA broker-a 1795230000001 7F000001".
TEXT = "djEgVG9waWNBIGJyb2tlci1hIDE3OTUyMzAwMDAwMDEgN0YwMDAwMDE="


def test_the_text_is_apaches() -> None:
    assert HANDLE.encode() == TEXT
    assert RecallMessageHandle.decode(TEXT) == HANDLE
    assert RecallMessageHandle.decode(TEXT.rstrip("=")) == HANDLE


def test_further_words_are_ignored() -> None:
    text = urlsafe_b64encode(b"v1 t b 1 id more words").decode()
    assert RecallMessageHandle.decode(text) == RecallMessageHandle("t", "b", "1", "id")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "====",
        "djE",
        "not base 64!",
        "djEg\n",
        "A",
        urlsafe_b64encode(b"v2 t b 1 id").decode(),
        urlsafe_b64encode(b"v1 t b 1").decode(),
        urlsafe_b64encode(b"v1  b 1 id").decode(),
        urlsafe_b64encode(b"v1 t b 1 \xff").decode(),
    ],
)
def test_what_is_no_handle(text: str) -> None:
    with pytest.raises(ProtocolError):
        RecallMessageHandle.decode(text)


def test_a_message_without_a_handle() -> None:
    with pytest.raises(ProtocolError, match=r"The recall handle is None\. Only a message with a future delivery time"):
        RecallMessageHandle.decode(None)


words = st.text(st.characters(exclude_characters=" ", exclude_categories=("Cs",)), min_size=1)


@given(st.builds(RecallMessageHandle, words, words, words, words))
def test_round_trip(handle: RecallMessageHandle) -> None:
    assert RecallMessageHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize("part", ["", "two words", "\ud800"])
def test_a_part_that_is_not_one_word(part: str) -> None:
    with pytest.raises(ProtocolError):
        RecallMessageHandle("t", "b", "1", part).encode()
