"""The broker's settings: change (25) and show (26).

Settings take effect when ``broker.conf`` has them. If the file cannot be written, the response is SYSTEM_ERROR.
Corresponds to AdminBrokerProcessor.{updateBrokerConfig, getBrokerConfig}.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.state.broker_config import BrokerConfig, shown_text
from spark_rocket.broker.state.config_files import change_properties
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.errors import ConfigError, RefusedError
from spark_rocket.protocol.java_properties import render_properties
from spark_rocket.protocol.setting import DYNAMIC_SETTINGS, SettingsUpdate
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.server.channel import Channel

_log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class SettingsProcessor(Processor):
    """Reads and changes of settings at run time."""

    config: BrokerConfig
    topics: TopicConfigManager
    responses: Responses
    settings_changed: Callable[[], None]
    """Applies changed settings to everything that has cached them."""
    _changing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    @handles(RequestCode.UPDATE_BROKER_CONFIG)
    def update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Change settings; respond when broker.conf is on disk. If writing it fails, nothing is changed."""
        try:
            update = self.config.parse_update(bytes(request.body).decode("utf-8"))
        except UnicodeDecodeError:
            raise RefusedError("the settings are not valid UTF-8", ResponseCode.SYSTEM_ERROR) from None
        except ConfigError as error:
            raise _refusal(error) from None
        file, values = self.config.source, update.to_file()
        if file is None or not values:
            return self._settings_changed(channel, request, update)

        async def write() -> RemotingCommand:
            try:
                async with self._changing:
                    await asyncio.to_thread(change_properties, file, values)
                    return self._settings_changed(channel, request, update)
            except ConfigError as error:
                raise _refusal(error) from None

        self.responses.after(channel, request, write())
        return None

    def _settings_changed(self, channel: Channel, request: RemotingCommand, update: SettingsUpdate) -> RemotingCommand:
        config = self.config
        permission = config.broker_permission
        warnings = config.apply(update)
        if config.broker_permission != permission:
            self.topics.next_version()
        for warning in warnings:
            _log.warning("%s", warning)
        self.settings_changed()
        _log.info("settings changed by %s: %s", channel.remote_addr, shown_text(bytes(request.body).decode("utf-8")))
        if update.values and config.source is None:
            warnings.append("This broker was started without a broker.conf: the change is lost on restart.")
        return RemotingCommand.response(request, 0, " ".join(warnings) or None)

    @handles(RequestCode.GET_BROKER_CONFIG)
    def get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        version = self.topics.data_version
        config = self.config
        ext = {
            "version": dumps_fastjson(version.to_value()).decode(),
            DYNAMIC_SETTINGS: ",".join(config.dynamic_names()),
        }
        # mqadmin's exportConfigs fails if one of these is missing.
        wanted = {"filterServerNums": "0", "useTLS": "false" if config.client_tls() is None else "true"}
        text = render_properties(list({**wanted, **dict(config.to_properties())}.items()))
        return RemotingCommand.response(request, 0, None, ext, text.encode())


def _refusal(error: ConfigError) -> RefusedError:
    return RefusedError(error.message, ResponseCode.SYSTEM_ERROR, remedy=error.remedy)
