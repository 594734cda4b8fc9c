"""What the processors of accounts (ACL 1.0) and of users (ACL 2.0) share: responses after a change of their file."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_rocket.broker.processors.processor import Processor
from spark_rocket.broker.responses import Responses
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel

if TYPE_CHECKING:
    from spark_rocket.broker.acl.access_control import AccessControl  # with access control only

_log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class AccessProcessor(Processor):
    """Reads and changes of one file with the rules of access control."""

    responses: Responses
    access_control: AccessControl | None
    """None without access control."""

    def respond_after(
        self, channel: Channel, request: RemotingCommand, failed: int, path: Path, work: Awaitable[RemotingCommand]
    ) -> None:
        """Respond when ``work`` is done; with the code ``failed`` if the file ``path`` is invalid or not writable."""

        async def respond() -> RemotingCommand:
            try:
                return await work
            except ConfigError as error:
                return RemotingCommand.response(request, failed, error.message)
            except OSError as error:
                return RemotingCommand.response(request, failed, f"{path} cannot be written: {error.strerror}")

        self.responses.after(channel, request, respond())

    def changed(self, channel: Channel, request: RemotingCommand, what: str) -> RemotingCommand:
        """Log a change with its author; return the response."""
        account = request.ext_fields.get("AccessKey") or "an address of the white list"
        _log.info("accounts changed by %s (%r): %r", channel.remote_addr, account, what)
        return RemotingCommand.response(request)
