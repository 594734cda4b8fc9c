"""Every typed header, and the header of each request code, from the headers' own docstrings."""

from __future__ import annotations

import re

from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import every
from spark_rocket.protocol.wire.headers.base import Header
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader

EVERY: list[type[Header]] = [
    value
    for value in vars(every).values()
    if isinstance(value, type) and issubclass(value, Header) and value is not Header
]
ONE_LETTER = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
REQUEST_HEADERS: dict[int, type[Header]] = {
    RequestCode[name]: header
    for header in EVERY
    if header.__name__.endswith("RequestHeader")
    for name in re.findall(r"[A-Z_]+", header.__doc__ or "")
    if name in RequestCode.__members__
}


def decode_request_header(command: RemotingCommand) -> Header | None:
    """The typed header of a request, or None when its code has none."""
    if command.code in ONE_LETTER:
        return SendMessageRequestHeader.from_ext_v2(command.ext_fields)
    header = REQUEST_HEADERS.get(command.code)
    return None if header is None else header.from_ext(command.ext_fields)
