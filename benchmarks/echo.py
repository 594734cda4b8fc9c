"""`python -m benchmarks.echo N`: respond to every frame with one of N bytes. The ceiling for any server.

Uses uvloop if available, like the broker. Prints its port; ends when the reader of its standard output is gone, or on
SIGTERM.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import cast

_LENGTH = struct.Struct(">I")


class Echo(asyncio.Protocol):
    def __init__(self, response: bytes) -> None:
        self._response = response
        self._missing = 0  # remaining bytes of the current frame
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class has the same interface

    def data_received(self, data: bytes) -> None:
        position, end = 0, len(data)
        while position < end:
            if not self._missing:
                head = self._head + data[position : position + 4 - len(self._head)]
                position += len(head) - len(self._head)
                if len(head) < 4:
                    self._head = head
                    return
                self._head = b""
                (self._missing,) = _LENGTH.unpack(head)
            step = min(self._missing, end - position)
            position += step
            self._missing -= step
            if not self._missing:
                self._transport.write(self._response)


async def serve(response: bytes) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Echo(response), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    size = int(sys.argv[1])
    response = _LENGTH.pack(size - 4) + b'{"code":0}'.ljust(size - 4)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(response))
    else:
        uvloop.run(serve(response))


if __name__ == "__main__":
    main()
