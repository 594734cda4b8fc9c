"""Request signatures with a secret key and their verification: HMAC-SHA1, as in Apache's ACL 1.0.

**Classic protocol.** The fields ``AccessKey`` and optionally ``SecurityToken`` of a request identify the account;
``Signature`` is Base64 of HMAC-SHA1(secret key, content), where

    content = the values of all other fields, in the order of their names, concatenated, then the body

It contains no time, no request number and no code: a signed request can be replayed, and its fields and body can be
used with another request code.

**gRPC.** The metadata ``authorization`` is

    MQv2-HMAC-SHA1 Credential=<access key>[/<region>/<service>], SignedHeaders=x-mq-date-time, Signature=<hex>

and the signed content is only the metadata ``x-mq-date-time`` (20260131T120000Z; clients use local time despite the Z;
the Rust client writes 2026-01-31T12:00:00.123456789+01:00).

Secrets are excluded from reprs and from error messages of this module.

Corresponds to org.apache.rocketmq.acl.common.{AclUtils, AclSigner, AclClientRPCHook, AuthorizationHeader,
SessionCredentials}.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from calendar import timegm
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from hmac import compare_digest
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import ConfigError, ProtocolError
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.wire import json as json_codec
from spark_rocket.protocol.wire.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"

V4_9_3 = 399
#: Clients up to 4.9.3 put this field into a request that they have signed already.
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"

GRPC_ALGORITHM = "MQv2-HMAC-SHA1"

_BLOCK_BYTES = 64  # of SHA-1
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# RFC 3339 with or without its marks: RocketMQ's Rust client writes them, all others do not.
_DATE_TIME = re.compile(
    r"([0-9]{4})-?([0-9]{2})-?([0-9]{2})T([0-9]{2}):?([0-9]{2}):?([0-9]{2})(?:\.[0-9]{1,9})?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)


class SecretKey:
    """A secret prepared for signing: each signature copies two SHA-1 states that have already hashed the padded key.

    Copying an object of the module hmac takes longer than the rest of a signature.
    """

    __slots__ = ("inner", "outer")

    def __init__(self, secret: str) -> None:
        key = secret.encode(errors="replace")  # lone surrogates become ? in Java too
        if len(key) > _BLOCK_BYTES:
            key = sha1(key).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self.inner = sha1(key.translate(_INNER_PAD))
        self.outer = sha1(key.translate(_OUTER_PAD))

    def digest(self, content: Buffer, body: Buffer = b"") -> bytes:
        """Return the HMAC-SHA1 (RFC 2104) of both parts, concatenated."""
        inner, outer = self.inner.copy(), self.outer.copy()
        inner.update(content)
        inner.update(body)
        outer.update(inner.digest())
        return outer.digest()

    def __repr__(self) -> str:
        return "SecretKey(…)"


# --- the classic protocol -------------------------------------------------------------------------------------------


def signed_content(ext_fields: Mapping[str, str], version: int = V4_9_3 + 1) -> bytes:
    """Return the signed part of a request's fields, before the body. ``version`` is that of the sender."""
    return _bytes("".join(_order_of(ext_fields, version)(ext_fields)))


_Values: TypeAlias = Callable[[Mapping[str, str]], Iterable[str]]
_VALUES: dict[tuple[str, ...], _Values] = {}
"""The signed values in their order, by the names of a request: clients send few different combinations of names."""
_VALUES_OF_OLD: dict[tuple[str, ...], _Values] = {}
_MAX_CACHED_NAMES = 256
_MAX_CACHED_CHARACTERS = 512


def _order_of(ext_fields: Mapping[str, str], version: int) -> _Values:
    names = tuple(ext_fields)
    return (_VALUES if version > V4_9_3 else _VALUES_OF_OLD).get(names) or _values_in_order(names, version)


def _values_in_order(names: tuple[str, ...], version: int) -> _Values:
    ignored = {SIGNATURE} if version > V4_9_3 else {SIGNATURE, UNIQUE_KEY_QUERY}
    signed = [name for name in names if name not in ignored]
    text = "".join(signed)
    order = sorted(signed, key=None if text.isascii() else _java_order)
    # itemgetter returns a tuple for two names or more, and for one name its value, which is joined to the same text.
    values: _Values = itemgetter(*order) if order else lambda fields: ()
    if len(text) <= _MAX_CACHED_CHARACTERS:  # names are of the peer's choice
        cache = _VALUES if version > V4_9_3 else _VALUES_OF_OLD
        if len(cache) >= _MAX_CACHED_NAMES:
            cache.clear()
        cache[names] = values
    return values


def _java_order(name: str) -> bytes:
    """Sort like Java, by UTF-16 units, where characters beyond U+FFFF are below U+E000."""
    return name.encode("utf-16-be", "surrogatepass")


def _bytes(text: str) -> bytes:
    return text.encode() if text.isascii() else text.encode(errors="replace")  # errors= is slower


class _Signatures:
    """Makes the signatures of one key. It remembers the order of the last request's fields, never a signature."""

    __slots__ = ("_count", "_inner", "_outer", "_values")

    def __init__(self, key: SecretKey) -> None:
        self._inner, self._outer = key.inner, key.outer
        self._count = 0
        self._values: _Values

    def of(self, fields: Mapping[str, str], body: Buffer, version: int = V4_9_3 + 1) -> bytes:
        """Return the signature. Either no call may have a signature among its fields, or each call must."""
        try:
            # As many fields, and each of the signed names: the names are the same.
            if len(fields) != self._count or version <= V4_9_3:
                raise KeyError
            content = "".join(self._values(fields)).encode()
        except (KeyError, UnicodeEncodeError):
            content = _bytes("".join(self._remembered(fields, version)(fields)))
        # As SecretKey.digest, whose call costs a tenth of a signature.
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        inner.update(body)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)

    def _remembered(self, fields: Mapping[str, str], version: int) -> _Values:
        values = _order_of(fields, version)
        if version > V4_9_3:
            self._count, self._values = len(fields), values
        return values


class Verifier(_Signatures):
    """Verifies signatures of one key."""

    __slots__ = ()

    def is_signed(self, request: RemotingCommand) -> bool:
        """Whether the signature of a request is that of the key. Takes constant time."""
        fields = request.ext_fields
        given = fields.get(SIGNATURE)
        return bool(given) and compare_digest(self.of(fields, request.body, request.version), _bytes(given or ""))


def is_signed_by(request: RemotingCommand, key: SecretKey) -> bool:
    """Whether the signature of a request is that of this key. Takes constant time."""
    return Verifier(key).is_signed(request)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Credentials(FrozenValue):
    """The access key of a client, and its secret. ConfigError for invalid keys."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name, text in (("access key", self.access_key), ("secret key", self.secret_key)):
            problem = key_problem(text)
            if problem is not None:
                raise ConfigError(f"The {name} {problem}.", remedy=f"Use the same {name} as on the broker.")


def inner_credentials(text: str) -> Credentials | None:
    """Parse ``{"accessKey": "…", "secretKey": "…"}``; None without text. ConfigError, without the text, if invalid."""
    if not text.strip():
        return None
    try:
        value = json_codec.loads(text.encode())
        return Credentials(value["accessKey"], value["secretKey"], value.get("securityToken") or "")
    except (ValueError, LookupError, TypeError, AttributeError, ConfigError):
        raise ConfigError(
            "Invalid innerClientAuthenticationCredentials.",
            remedy='Use JSON: {"accessKey": "…", "secretKey": "…"}.',
        ) from None


def inner_credentials_text(credentials: Credentials) -> str:
    """Encode credentials for :func:`inner_credentials`."""
    found = {"accessKey": credentials.access_key, "secretKey": credentials.secret_key}
    return json_codec.dumps(found | {"securityToken": credentials.security_token}).decode()


def key_problem(text: str) -> str | None:
    """Return why a string is not a valid access key or secret key."""
    if not text:
        return "is empty"
    if _CONTROL.search(text):  # HMAC pads keys with NUL: "key" and "key\\0" would have the same signatures
        return "has a control character"
    if text != text.strip():
        return "has blanks around it"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not Unicode text"
    return None


class RequestSigner:
    """``sign`` signs a request with these credentials, replacing an earlier signature."""

    __slots__ = ("_access_key", "_signatures", "_token")

    def __init__(self, credentials: Credentials) -> None:
        self._access_key = credentials.access_key
        self._token = credentials.security_token
        self._signatures = _Signatures(SecretKey(credentials.secret_key))

    def sign(self, request: RemotingCommand) -> None:
        """The fields are new ones: others may hold the old."""
        fields = request.ext_fields.copy()
        fields[ACCESS_KEY] = self._access_key
        if self._token:
            fields[SECURITY_TOKEN] = self._token
        fields.pop(SIGNATURE, None)
        fields[SIGNATURE] = self._signatures.of(fields, request.body).decode()
        request.ext_fields = fields

    def __repr__(self) -> str:
        return f"RequestSigner({self._access_key})"


# --- gRPC -------------------------------------------------------------------------------------------------------------


class Authorization(NamedTuple):
    """The parsed metadata ``authorization``."""

    access_key: str
    digest: bytes

    @classmethod
    def parse(cls, header: str) -> Authorization:
        """Parse the metadata. ProtocolError if invalid; its text does not contain the signature."""
        values: dict[str, str] = {}
        for part in header.partition(" ")[2].split(","):
            name, equals, value = part.strip().partition("=")
            if not equals:
                raise _no_authorization("has a part without '='")
            if name in values:
                raise _no_authorization(f"has {name[:20]!r} twice")
            values[name] = value
        access_key = values.get("Credential", "").partition("/")[0]
        if not access_key:
            raise _no_authorization("names no access key: Credential is missing or empty")
        try:
            return cls(access_key, bytes.fromhex(values["Signature"]))
        except (KeyError, ValueError):
            raise _no_authorization("has no Signature in hexadecimal digits") from None

    def is_signed_by(self, key: SecretKey, date_time: str) -> bool:
        return compare_digest(key.digest(date_time.encode(errors="replace")), self.digest)


def access_key_of(metadata: Mapping[str, str]) -> str:
    """Return the access key of a call's metadata, empty without one."""
    try:
        return Authorization.parse(metadata.get("authorization", "")).access_key
    except ProtocolError:
        return ""


def authorization_of(credentials: Credentials, date_time: str) -> str:
    """Return the metadata ``authorization`` as RocketMQ 5's clients send it."""
    digest = SecretKey(credentials.secret_key).digest(date_time.encode())
    return (
        f"{GRPC_ALGORITHM} Credential={credentials.access_key}, SignedHeaders=x-mq-date-time, "
        f"Signature={digest.hex().upper()}"
    )


def seconds_of(date_time: str) -> int:
    """Parse ``x-mq-date-time`` to seconds since 1970, as UTC. ProtocolError for an invalid time."""
    found = _DATE_TIME.fullmatch(date_time)
    if found is not None:
        year, month, day, hour, minute, second = map(int, found.groups()[:6])
        if year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61:
            seconds = timegm((year, month, day, hour, minute, second))
            sign, hours, minutes = found.groups()[6:]
            return seconds if sign is None else seconds - int(f"{sign}1") * (int(hours) * 3600 + int(minutes) * 60)
    raise ProtocolError(f"Invalid x-mq-date-time {date_time[:40]!r}.", remedy="Use the format 20260131T120000Z.")


def _no_authorization(what: str) -> ProtocolError:
    return ProtocolError(
        f"The metadata authorization {what}.",
        remedy=f"Use the format '{GRPC_ALGORITHM} Credential=…, SignedHeaders=x-mq-date-time, Signature=…'.",
    )
