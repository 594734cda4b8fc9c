"""Responses to requests that failed, the same from servers and clients.

Corresponds to NettyRemotingAbstract.processRequestCommand.
"""

from __future__ import annotations

from spark_rocket.errors import RocketError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand

MAX_REMARK_CHARACTERS = 4_096
"""Characters of an error in a response."""


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """Return the response to a request without a handler; the text is Apache's."""
    remark = f" request type {request.code} not supported"
    return RemotingCommand.response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


def failed(request: RemotingCommand, error: BaseException) -> RemotingCommand:
    """Return the response to a request whose handler raised an error. It can be encoded, whatever the message is."""
    code: int = ResponseCode.SYSTEM_ERROR
    if isinstance(error, RocketError):  # an expected error: invalid header, unknown topic, full disk
        code, text = error.response_code or code, error.text
    else:
        text = f"{type(error).__name__}: {error}"
    if len(text) > MAX_REMARK_CHARACTERS:  # it repeats what the request had; a client may not read so large a header
        text = f"{text[:MAX_REMARK_CHARACTERS]} … ({len(text):,} characters)"
    # The text may contain lone surrogates, which cannot be encoded in a header.
    return RemotingCommand.response(request, code, text.encode(errors="replace").decode())
