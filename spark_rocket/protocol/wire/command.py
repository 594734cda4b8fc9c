"""One request or response: code, id, flags, string fields and a body.

The header after a frame's length field has one of two encodings; the byte before it specifies which:

JSON (0): an object with ``code, language, version, opaque, flag, remark, extFields``; values of extFields are strings.
Numbers and booleans are accepted too, because a client in use sends them; they become their JSON text.

ROCKETMQ (1), big endian:

===== =======================================================================
size  field
===== =======================================================================
2     code (signed)
1     language
2     version (signed)
4     opaque
4     flag: bit 0 response, bit 1 one-way
4 + n remark length (0: none) and remark
4 + n length of all ext fields, then per field: 2 + n key, 4 + n value
===== =======================================================================

A code above 32,767 does not fit the second encoding: it is an error.

A peer's header is decoded before its signature is checked, and two bytes can become an object of sixty. So the number
of fields is limited in both encodings.

Thread-safety: a command belongs to one thread at a time. Corresponds to remoting.protocol.{RemotingCommand,
RemotingSerializable, RocketMQSerializable}.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.wire import json as json_codec
from spark_rocket.protocol.wire.codes import CURRENT_VERSION, LanguageCode

FLAG_RESPONSE = 0x1
FLAG_ONEWAY = 0x2
MAX_HEADER_LENGTH = 0xFFFFFF
MAX_FIELDS = 4_096  # ext fields of a ROCKETMQ header; commands have some 20
MAX_MARKS = 65_536  # quotation marks and brackets of a JSON header; message properties (32 KiB) may have some thousands
MAX_COMMAS = 1 << 20  # of a JSON header; the ids of a batch's messages, one text, are separated by commas
_SECRETS = frozenset({"Signature", "SecurityToken", "secretKey"})  # fields that no log shows


class SerializeType(IntEnum):
    """The encoding of a header. A response has that of its request."""

    JSON = 0
    ROCKETMQ = 1


_JSON = SerializeType.JSON
_ROCKETMQ = SerializeType.ROCKETMQ
_LANGUAGE_BY_NAME: dict[str, int] = {language.name: language for language in LanguageCode}
_NAME_BY_LANGUAGE: dict[int | str, str] = {int(language): language.name for language in LanguageCode}
_TYPE_NAME = ("JSON", "ROCKETMQ")

_PREFIX = struct.Struct(">II")  # frame length; serialize type and header length in one word
_WORD = struct.Struct(">I")
_FOUR_INTS = struct.Struct(">iiii")
_pack_numbers, _unpack_numbers = _FOUR_INTS.pack, _FOUR_INTS.unpack  # bound once: every command passes through them
_BINARY_HEAD = struct.Struct(">hBhiiI")  # … up to the remark's length
_KEY_LENGTH = struct.Struct(">h")
_VALUE_LENGTH = struct.Struct(">i")


class RemotingCommand:
    """A request or a response. ``opaque`` pairs them; the sender of the request sets it."""

    __slots__ = (
        "body",
        "code",
        "ext_fields",
        "flag",
        "language",
        "opaque",
        "remark",
        "serialize_type",
        "typed_body",
        "version",
    )

    typed_body: object
    """The decoded body, cached by ``RequestType.body_of``; not set before."""

    def __init__(
        self,
        code: int,
        *,
        language: int | str = LanguageCode.PYTHON,
        version: int = CURRENT_VERSION,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: Buffer = b"",
        serialize_type: SerializeType = _JSON,
    ) -> None:
        self.code = code
        self.language = language
        self.version = version
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.ext_fields: dict[str, str] = {} if ext_fields is None else ext_fields
        self.body: Buffer = body
        self.serialize_type = serialize_type

    @classmethod
    def request(
        cls,
        code: int,
        ext_fields: dict[str, str] | None = None,
        body: Buffer = b"",
        *,
        oneway: bool = False,
        serialize_type: SerializeType = _JSON,
    ) -> RemotingCommand:
        """A request; its ``opaque`` is 0 until a session numbers it."""
        flag = FLAG_ONEWAY if oneway else 0
        return cls(code, flag=flag, ext_fields=ext_fields, body=body, serialize_type=serialize_type)

    @classmethod
    def response(
        cls,
        request: RemotingCommand,
        code: int = 0,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: Buffer = b"",
    ) -> RemotingCommand:
        """Return a response to ``request``: same ``opaque``, same encoding of the header."""
        return cls(
            code,
            opaque=request.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            ext_fields=ext_fields,
            body=body,
            serialize_type=request.serialize_type,
        )

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    def encode(self) -> bytes:
        """The whole frame, length field included."""
        return b"".join((self.encode_head(), self.body)) if self.body else self.encode_head()

    def encode_head(self) -> bytes:
        """The frame up to its body, which the length field already counts: for writing both without joining them."""
        header = _encode_json(self) if self.serialize_type is _JSON else _encode_binary(self)
        size = len(header)
        try:
            if size > MAX_HEADER_LENGTH:
                raise struct.error
            return _PREFIX.pack(4 + size + len(self.body), self.serialize_type << 24 | size) + header
        except struct.error:
            raise ProtocolError(
                f"A command of {size:,} header bytes and {len(self.body):,} body bytes exceeds the frame limit.",
                remedy="Send less in one request.",
            ) from None

    @staticmethod
    def decode(frame: Buffer) -> RemotingCommand:
        """A command from a frame without its length field. ``body`` is a view into ``frame``, not a copy."""
        view = frame if isinstance(frame, memoryview) else memoryview(frame)
        if len(view) < 4:
            raise _bad(f"A frame of {len(view)} bytes is too short for the header's length.")
        (word,) = _WORD.unpack_from(view)
        end = 4 + (word & MAX_HEADER_LENGTH)
        if end > len(view):
            raise _bad(f"A header of {end - 4:,} bytes does not fit a frame of {len(view):,}.")
        kind = word >> 24
        if kind == 0:
            return _decode_json(bytes(view[4:end]), view[end:])  # orjson reads a copy sooner than a view
        if kind == 1:
            return _decode_binary(bytes(view[4:end]), view[end:])
        raise _bad(f"Serialize type {kind} of a frame is neither 0 (JSON) nor 1 (ROCKETMQ).")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemotingCommand):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__ if name != "typed_body")

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "one-way request" if self.is_oneway else "request"
        remark = f" remark={self.remark!r}" if self.remark else ""
        ext_fields = {name: "…" if name in _SECRETS else value for name, value in self.ext_fields.items()}
        return (
            f"<RemotingCommand {kind} code={int(self.code)} opaque={self.opaque}{remark} "
            f"ext_fields={ext_fields!r} body={len(self.body)} bytes>"
        )


# --- JSON ---------------------------------------------------------------------------------------------------------


def _encode_json(command: RemotingCommand) -> bytes:
    language = command.language
    header: dict[str, object] = {
        "code": command.code,
        "language": language if isinstance(language, str) else _NAME_BY_LANGUAGE.get(language, "OTHER"),
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    if command.ext_fields:
        header["extFields"] = command.ext_fields
    header["serializeTypeCurrentRPC"] = "JSON"
    try:
        # Packing checks that all four are ints of 32 bits, as Java peers require; it is faster than four comparisons.
        _pack_numbers(command.code, command.version, command.opaque, command.flag)
        return json_codec.dumps(header)
    except (TypeError, struct.error) as error:
        raise _cannot_encode(command, error) from None


def _decode_json(header: bytes, body: memoryview) -> RemotingCommand:
    if len(header) > MAX_MARKS:  # below that it cannot have more
        marks = sum(header.count(mark) for mark in b'"[{')
        if marks > MAX_MARKS:
            raise _bad(f"A JSON header has {marks:,} quotation marks and brackets; at most {MAX_MARKS:,} are read.")
        commas = header.count(b",")
        if commas > MAX_COMMAS:
            raise _bad(f"A JSON header has {commas:,} commas; at most {MAX_COMMAS:,} are read.")
    try:
        fields = json_codec.loads(header)
    except ValueError as error:
        raise _bad(f"A command's header is not JSON: {error}.") from None
    if type(fields) is not dict:
        raise _bad("A command's JSON header is not an object.")
    get = fields.get
    try:
        numbers = _pack_numbers(fields["code"], get("version", 0), get("opaque", 0), get("flag", 0))
    except (KeyError, struct.error):
        numbers = _lenient_numbers(fields)
    code, version, opaque, flag = _unpack_numbers(numbers)
    language = get("language")
    language = _LANGUAGE_BY_NAME.get(language, language) if type(language) is str else _odd_language(language)
    remark = get("remark")
    ext = get("extFields")
    if type(ext) is dict:
        try:
            "".join(ext.values())  # raises unless every value is a string; faster than a loop
        except TypeError:
            ext = {name: _text(value) for name, value in ext.items() if value is not None}
    elif ext is not None:
        raise _bad("extFields of a command is not an object.")
    return RemotingCommand(
        code,
        language=language,
        version=version,
        opaque=opaque,
        flag=flag,
        remark=remark if remark is None else _text(remark),
        ext_fields=ext,
        body=body,
    )


def _lenient_numbers(fields: dict[str, object]) -> bytes:
    """The four numbers when one is missing, null or a string, as Java's parser accepts them."""
    values: list[int] = []
    for name in ("code", "version", "opaque", "flag"):
        value = fields.get(name)
        if value is None and name != "code":
            value = 0
        elif isinstance(value, str) and len(value) <= 11:
            try:
                value = int(value)
            except ValueError:
                pass
        if not isinstance(value, int) or not -0x80000000 <= value <= 0x7FFFFFFF:
            raise _bad(f"{name} of a command is {_text(value)[:40]}, not a number of 32 bits.")
        values.append(value)
    return _pack_numbers(*values)


def _odd_language(value: object) -> int | str:
    if type(value) is int and 0 <= value <= 255:
        return value
    return LanguageCode.OTHER


def _text(value: object) -> str:
    """A JSON value that should have been a string, as the string that Java would have sent."""
    if isinstance(value, str):
        return value
    try:
        return json_codec.dumps(value).decode()
    except TypeError:
        raise _bad("A value in a command's header is nested too deeply.") from None


# --- ROCKETMQ -----------------------------------------------------------------------------------------------------


def _encode_binary(command: RemotingCommand) -> bytes:
    language = command.language
    if isinstance(language, str):
        language = _LANGUAGE_BY_NAME.get(language, LanguageCode.OTHER)
    try:
        remark = command.remark.encode() if command.remark else b""
        pieces: list[bytes] = []
        for name, value in command.ext_fields.items():
            key, content = name.encode(), value.encode()
            pieces += (_KEY_LENGTH.pack(len(key)), key, _VALUE_LENGTH.pack(len(content)), content)
        ext = b"".join(pieces)
        head = _BINARY_HEAD.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
        return b"".join((head, remark, _VALUE_LENGTH.pack(len(ext)), ext))
    except (struct.error, UnicodeEncodeError, AttributeError, TypeError) as error:
        raise _cannot_encode(command, error) from None


def _decode_binary(header: bytes, body: memoryview) -> RemotingCommand:
    size = len(header)
    try:
        code, language, version, opaque, flag, length = _BINARY_HEAD.unpack_from(header)
        position = _BINARY_HEAD.size + length
        if position > size:
            raise _bad(f"A remark of {length:,} bytes does not fit its header of {size:,}.")
        remark = header[_BINARY_HEAD.size : position].decode() if length else None
        (length,) = _VALUE_LENGTH.unpack_from(header, position)
        position += 4
        end = position + length
        if length < 0 or end > size:
            raise _bad(f"Ext fields of {length:,} bytes do not fit a header of {size:,}.")
        ext = _binary_fields(header, position, end)
    except struct.error:
        raise _bad(f"A binary header of {size:,} bytes ends too early.") from None
    except UnicodeDecodeError as error:
        raise _bad(f"A binary header holds text that is not UTF-8: {error.reason}.") from None
    return RemotingCommand(
        code,
        language=language,
        version=version,
        opaque=opaque,
        flag=flag,
        remark=remark,
        ext_fields=ext,
        body=body,
        serialize_type=_ROCKETMQ,
    )


def _binary_fields(header: bytes, position: int, end: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    for _ in range(MAX_FIELDS + 1):
        if position >= end:
            return ext
        (length,) = _KEY_LENGTH.unpack_from(header, position)
        position += 2
        key = header[position : position + length]
        position += length
        (value_length,) = _VALUE_LENGTH.unpack_from(header, position)
        position += 4
        if length < 0 or value_length < 0 or position + value_length > end:
            raise _bad("An ext field does not fit its header.")
        ext[key.decode()] = header[position : position + value_length].decode()
        position += value_length
    raise _bad(f"A binary header has more than {MAX_FIELDS:,} ext fields.")


def _bad(message: str) -> ProtocolError:
    return ProtocolError(message, remedy="The peer sent no RemotingCommand: check the server at that address.")


def _cannot_encode(command: RemotingCommand, error: Exception) -> ProtocolError:
    return ProtocolError(
        f"Command {command.code} cannot be encoded with a {_TYPE_NAME[command.serialize_type]} header: {error}.",
        remedy="Codes and ids are 32-bit numbers (16-bit codes with ROCKETMQ headers), fields are text.",
    )
