"""Signatures of the classic protocol and of gRPC."""

from __future__ import annotations

import hmac
import pickle
from base64 import b64encode
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ConfigError, ProtocolError
from spark_rocket.protocol import auth as acl
from spark_rocket.protocol.auth import (
    Authorization,
    Credentials,
    RequestSigner,
    SecretKey,
    Verifier,
    authorization_of,
    is_signed_by,
    key_problem,
    seconds_of,
    signed_content,
)
from spark_rocket.protocol.wire.command import RemotingCommand, SerializeType

ALICE = Credentials("alice-key", "alice-secret")


def signed(
    ext: dict[str, str] | None = None, body: bytes = b"body", credentials: Credentials = ALICE
) -> RemotingCommand:
    request = RemotingCommand.request(310, ext if ext is not None else {"b": "orders", "a": "group"}, body)
    RequestSigner(credentials).sign(request)
    return request


def travelled(request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.decode(request.encode()[4:])


def test_what_is_signed_is_the_values_in_the_order_of_their_names() -> None:
    """The vector is what ali-ons, a client of Alibaba's, signs."""
    ext = {"consumerGroup": "CG", "OnsChannel": "ALIYUN", "AccessKey": "ak", "Signature": "no part of it"}
    assert signed_content(ext) == b"akALIYUNCG"
    request = RemotingCommand.request(38, ext | {"Signature": "4wv4OYzXjTlUylURkotq2Evq5EY="})
    assert is_signed_by(request, SecretKey("sk"))
    assert signed_content({}) == b""
    assert signed_content({"only": "one"}) == b"one"


def test_names_are_ordered_as_java_orders_them() -> None:
    assert signed_content({"\uff21": "second", "\U0001f680": "first", "b": "0"}) == b"0firstsecond"


def test_numbers_that_a_client_sends_as_numbers_are_signed_by_their_text() -> None:
    header = b'{"code":34,"extFields":{"AccessKey":"ak","n":7,"Signature":"x"}}'
    assert signed_content(RemotingCommand.decode(len(header).to_bytes(4, "big") + header).ext_fields) == b"ak7"


def test_a_field_that_old_clients_add_after_signing_is_not_counted_for_them() -> None:
    request = signed({"topic": "orders"})
    request.ext_fields[acl.UNIQUE_KEY_QUERY] = "true"
    assert not is_signed_by(request, SecretKey(ALICE.secret_key))
    request.version = acl.V4_9_3
    assert is_signed_by(request, SecretKey(ALICE.secret_key))


@pytest.mark.parametrize("serialize_type", list(SerializeType))
def test_a_signature_survives_the_wire(serialize_type: SerializeType) -> None:
    request = signed()
    request.serialize_type = serialize_type
    assert is_signed_by(travelled(request), SecretKey(ALICE.secret_key))


@pytest.mark.parametrize("change", ["body", "field", "more", "less", "signature", "none", "key", "empty"])
def test_what_was_altered_is_not_signed(change: str) -> None:
    request = signed()
    key = SecretKey(ALICE.secret_key)
    match change:
        case "body":
            request.body = b"Body"
        case "field":
            request.ext_fields["b"] = "payments"
        case "more":
            request.ext_fields["x"] = "1"
        case "less":
            del request.ext_fields["a"]
        case "signature":
            request.ext_fields["Signature"] = request.ext_fields["Signature"].swapcase()
        case "none":
            del request.ext_fields["Signature"]
        case "empty":
            request.ext_fields["Signature"] = ""
        case _:
            key = SecretKey("alice-secreT")
    assert not is_signed_by(request, key)


def test_signing_again_is_signing_once_and_leaves_the_fields_of_others_alone() -> None:
    ext = {"b": "orders"}
    request = RemotingCommand.request(310, ext, b"body")
    signer = RequestSigner(replace(ALICE, security_token="token"))
    signer.sign(request)
    first = dict(request.ext_fields)
    signer.sign(request)
    assert request.ext_fields == first
    assert first["SecurityToken"] == "token"
    assert ext == {"b": "orders"}


@given(
    ext=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6),
    body=st.binary(max_size=20),
    secret=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=80).filter(
        lambda text: key_problem(text) is None
    ),
)
def test_whatever_is_signed_is_found_signed(ext: dict[str, str], body: bytes, secret: str) -> None:
    request = signed(ext, body, Credentials("someone", secret))
    assert is_signed_by(request, SecretKey(secret))
    assert not is_signed_by(request, SecretKey(secret + "x"))


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abcdeZ\uffff\U0001f600"), st.text(max_size=3), min_size=1, max_size=4),
            st.sampled_from((acl.V4_9_3, acl.V4_9_3 + 1)),
        ),
        max_size=12,
    )
)
def test_whatever_came_before_all_fields_are_signed(requests: list[tuple[dict[str, str], int]]) -> None:
    """What is remembered of the requests before leaves no field out, and mixes none up."""
    verifier, signer = Verifier(SecretKey(ALICE.secret_key)), RequestSigner(ALICE)
    for ext, version in requests:
        request = RemotingCommand.request(310, ext, b"body")
        request.version = version
        signer.sign(request)
        first = request.ext_fields["Signature"]
        signer.sign(request)  # another attempt
        assert request.ext_fields["Signature"] == first
        fields = ext | {"AccessKey": ALICE.access_key}
        in_order = sorted(fields, key=lambda name: name.encode("utf-16-be"))
        content = "".join(fields[name] for name in in_order).encode() + b"body"
        right = b64encode(hmac.digest(ALICE.secret_key.encode(), content, "sha1")).decode()
        assert request.ext_fields["Signature"] == right
        assert is_signed_by(request, SecretKey(ALICE.secret_key))
        assert verifier.is_signed(request)
        for change in ("f", "AccessKey"):
            changed = replace_field(request, change, "smuggled in")
            assert not is_signed_by(changed, SecretKey(ALICE.secret_key))
            assert not verifier.is_signed(changed)
        renamed = replace_field(request, "f", request.ext_fields[min(ext)])
        del renamed.ext_fields[min(ext)]  # as many fields as before
        assert verifier.is_signed(renamed) == is_signed_by(renamed, SecretKey(ALICE.secret_key))


def replace_field(request: RemotingCommand, name: str, value: str) -> RemotingCommand:
    changed = RemotingCommand.request(request.code, request.ext_fields | {name: value}, request.body)
    changed.version = request.version
    return changed


def test_a_verifier_tells_old_clients_from_new_ones() -> None:
    """A client of 4.9.3 adds a field after it signed; the same fields of a newer one are all signed."""
    verifier = Verifier(SecretKey(ALICE.secret_key))
    new = signed({"topic": "orders", acl.UNIQUE_KEY_QUERY: "true"})
    old = signed({"topic": "orders"})
    old.ext_fields[acl.UNIQUE_KEY_QUERY] = "true"
    for _ in range(2):
        old.version = acl.V4_9_3
        assert verifier.is_signed(new)
        assert verifier.is_signed(old)
        old.version = acl.V4_9_3 + 1
        assert not verifier.is_signed(old)


@pytest.mark.parametrize(
    ("access_key", "secret_key"),
    [("", "h1dden"), ("key", ""), ("key", "h1d\0den"), ("ke\ny", "h1dden"), (" key", "h1dden"), ("key", "h1d\ud800")],
)
def test_what_can_be_no_key_is_refused_without_saying_it(access_key: str, secret_key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Credentials(access_key, secret_key)
    assert "h1d" not in str(refused.value)


def test_nothing_shows_a_secret() -> None:
    credentials = Credentials("alice-key", "s3cr3t-value", "t0k3n-value")
    request = signed(credentials=credentials)
    request.ext_fields["secretKey"] = "s3cr3t-value"
    for shown in (credentials, RequestSigner(credentials), SecretKey("s3cr3t-value"), request):
        for text in (repr(shown), str(shown), f"{shown}"):
            assert "s3cr3t" not in text
            assert "t0k3n" not in text
            assert request.ext_fields["Signature"] not in text
    assert pickle.loads(pickle.dumps(credentials)) == credentials


# --- gRPC -------------------------------------------------------------------------------------------------------------


def test_the_authorization_of_rocketmqs_own_client() -> None:
    rocketmq = pytest.importorskip("rocketmq.v5.util.signature")
    digest = rocketmq.Signature.sign("alice-secret", "20260131T120000Z")
    header = f"MQv2-HMAC-SHA1 Credential=alice-key, SignedHeaders=x-mq-date-time, Signature={digest}"
    found = Authorization.parse(header)
    assert found.access_key == "alice-key"
    assert found.is_signed_by(SecretKey("alice-secret"), "20260131T120000Z")
    assert found == Authorization.parse(authorization_of(ALICE, "20260131T120000Z"))


def test_an_authorization_of_other_clients_has_a_region_and_a_service() -> None:
    header = authorization_of(ALICE, "20260131T120000Z").replace("alice-key", "alice-key/cn/RocketMQ")
    assert Authorization.parse(header).access_key == "alice-key"
    assert not Authorization.parse(header).is_signed_by(SecretKey("alice-secret"), "20260131T120001Z")
    assert not Authorization.parse(header).is_signed_by(SecretKey("alice-Secret"), "20260131T120000Z")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "MQv2-HMAC-SHA1",
        "MQv2-HMAC-SHA1 Credential",
        "MQv2-HMAC-SHA1 Credential=, Signature=00",
        "MQv2-HMAC-SHA1 Signature=00",
        "MQv2-HMAC-SHA1 Credential=a",
        "MQv2-HMAC-SHA1 Credential=a, Signature=SECRETXYZ",
        "MQv2-HMAC-SHA1 Credential=a, Credential=b, Signature=00",
        "Bearer x",
    ],
)
def test_what_is_no_authorization(header: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        Authorization.parse(header)
    assert "SECRETXYZ" not in str(refused.value)


def test_times() -> None:
    assert seconds_of("19700102T000001Z") == 86_401
    for text in ("1970-01-02T00:00:01Z", "1970-01-02T00:00:01.123456789Z", "1970-01-02T05:30:01.5+05:30"):
        assert seconds_of(text) == 86_401  # RocketMQ's Rust client
    assert seconds_of("1970-01-01T20:30:01-03:30") == 86_401
    for text in (
        "", "20261301T000000Z", "20260100T000000Z", "20260101T240000Z", "20260101T000000", "²0260101T000000Z",
        "2026-01-01T00:00:00", "2026-01-01T00:00:00.Z", "2026-01-01T00:00:00+01",
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            seconds_of(text)
