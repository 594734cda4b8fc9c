"""The broker's settings: Apache's property names and checked values; errors name file and line.

A ``broker.conf`` has the format of Java properties. Three kinds of names occur in it:

* settings of this broker (the fields of :class:`BrokerConfig`): the value is checked, ConfigError names file and line;
* Apache settings without effect in this broker (``KNOWN_UNUSED``): retained, and returned by code 26;
* all others: also retained, with a warning that names the most similar known setting, since it is probably a typo.

``declared_settings.py`` marks settings that Apache does not have with *Own*.
``innerClientAuthenticationCredentials`` is Apache's: JSON like ``{"accessKey": "…", "secretKey": "…"}``.
Settings of the gRPC proxy (``PROXY_SETTINGS``) are retained for ``rocket up``, which passes them to its proxy.

Thread-safety: read by every component, changed on the event loop only (code 25, dynamic settings).
Corresponds to org.apache.rocketmq.common.BrokerConfig, store.config.MessageStoreConfig, NettyServerConfig.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from spark_rocket.broker.state.declared_settings import MASTER_ID, DeclaredSettings
from spark_rocket.broker.state.known_settings import (
    KNOWN_UNUSED,
    PROXY_SETTINGS,
    check_length,
    check_refused,
    check_unknown,
    is_without_effect,
    may_be_secret,
)
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials, inner_credentials
from spark_rocket.protocol.auth_settings import check_access
from spark_rocket.protocol.durability import BrokerRole, Durability, durability
from spark_rocket.protocol.java_properties import expand_variables, has_variable, parse_properties, render_properties
from spark_rocket.protocol.setting import (
    Setting,
    SettingsUpdate,
    fixed_setting_error,
    read_settings,
    settings_of,
    text_of,
)
from spark_rocket.remoting.name_server_list import parse_name_servers
from spark_rocket.remoting.tls.contexts import ServerTls, server_tls
from spark_rocket.remoting.tls.settings import TlsSettings, parse_setting
from spark_rocket.store.config import StoreConfig

_log = logging.getLogger(__name__)

HIDDEN = "******"


@dataclass(slots=True)
class BrokerConfig(DeclaredSettings):
    """All settings that this broker reads; their property names are Apache's, in camel case."""

    store: StoreConfig = field(default_factory=StoreConfig)
    """Settings of the store, in ``broker.conf`` beside those above."""
    #: Where the settings were read from, if that was a file.
    source: Path | None = None
    #: The settings of TLS (``tls.…``), shared by servers and clients (remoting/tls).
    tls: dict[str, str] = field(default_factory=dict, repr=False)  # with passwords
    #: Settings of the file that are not among the above, by name; retained for code 26.
    others: dict[str, str] = field(default_factory=dict, repr=False)  # may contain a misspelt secret

    @classmethod
    def from_file(cls, path: Path | str, **defaults: Any) -> BrokerConfig:
        """Read a ``broker.conf``; ConfigError names the file, the line and the setting.

        ``defaults`` are fields of this class, but not of ``store``, for settings that the file does not have.
        """
        path = Path(path)
        return cls._from_entries(
            parse_properties(read_settings(path, "broker"), str(path)), str(path), {**defaults, "source": path}
        )

    @classmethod
    def from_text(cls, text: str, source: str = "<properties>") -> BrokerConfig:
        """Parse the text of a properties file."""
        return cls._from_entries(parse_properties(text, source), source)

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], source: str = "the settings given") -> BrokerConfig:
        """Create from settings by Apache name; Python values are converted to their properties text."""
        return cls._from_entries([(name, text_of(value), 0) for name, value in properties.items()], source)

    @classmethod
    def _from_entries(
        cls, entries: Iterable[tuple[str, str, int]], source: str, defaults: Mapping[str, Any] | None = None
    ) -> BrokerConfig:
        config = cls(**defaults or {})
        values: dict[Setting, object] = {}
        for name, value, line in entries:
            where = f"{source}, line {line}" if line else source
            text = expand_variables(value, os.environ)
            if name in _SPECS:
                values[_SPECS[name]] = _SPECS[name].parse(text, where)
            else:
                for warning in config._set_other(name, text, where):
                    _log.warning("%s", warning)
        config._assign(values)
        for warning in config._order_warnings():
            _log.warning("%s: %s", source, warning)
        return config

    def _order_warnings(self) -> list[str]:
        """Warnings about the three levels of disk usage if they are not in ascending order."""
        names = ("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio")
        levels = (
            self.store.disk_max_used_space_ratio,
            self.store.disk_space_clean_forcibly_ratio,
            self.store.disk_space_warning_level_ratio,
        )
        return [
            f"{names[at]} {levels[at]} is above {names[at + 1]} {levels[at + 1]}; it should not be."
            for at in range(2)
            if levels[at] > levels[at + 1]
        ]

    def value_of(self, spec: Setting) -> Any:
        return getattr(self.store if spec in _OF_STORE else self, spec.attribute)

    def _assign(self, values: Mapping[Setting, Any]) -> None:
        of_store = {spec.attribute: value for spec, value in values.items() if spec in _OF_STORE}
        self.store = replace(self.store, **of_store)
        for spec, value in values.items():
            if spec not in _OF_STORE:
                setattr(self, spec.attribute, value)

    def _set_other(self, name: str, text: str, where: str) -> list[str]:
        """Retain a setting that this broker does not have; returns warnings."""
        check_refused(name, text, where)
        if name.startswith("tls."):  # unknown ones are an error, not a warning
            parse_setting(name, text, where)
            self.tls[name] = text
            return []
        self.others[name] = text
        if is_without_effect(name) or name in PROXY_SETTINGS:
            return []
        near = nearest_setting(name)
        return [f"{where}: unknown setting '{name}' is ignored." + (f" Did you mean '{near}'?" if near else "")]

    def parse_update(self, properties_text: str) -> SettingsUpdate:
        """Parse an update at run time (code 25); ConfigError if one of its settings is invalid or not dynamic."""
        check_length(properties_text)
        update = SettingsUpdate()
        for name, text, _ in parse_properties(properties_text, "update"):
            spec = _SPECS.get(name)
            if name.startswith("tls."):
                raise fixed_setting_error(name)
            if has_variable(text):
                raise ConfigError(
                    f"{name} has a variable, ${{…}}: variables are expanded only when the broker starts.",
                    remedy="Give the value itself, or edit broker.conf and restart the broker.",
                )
            if spec is None:
                check_refused(name, text, "update")
                update.others[name] = text
                continue
            value = spec.parse(text, "update")
            if spec.dynamic:
                update.values[spec] = value
            elif value != self.value_of(spec):
                raise fixed_setting_error(name)
        update.known_others = {name: text for name, text in update.others.items() if name in KNOWN_UNUSED}
        check_unknown(self.others, update.others)
        return update

    def apply(self, update: SettingsUpdate) -> list[str]:
        """Apply a parsed update; returns warnings."""
        warnings = [
            warning for name, text in update.others.items() for warning in self._set_other(name, text, "update")
        ]
        before = self._order_warnings()
        self._assign(update.values)
        return warnings + [warning for warning in self._order_warnings() if warning not in before]

    def update(self, properties_text: str) -> list[str]:
        """Apply properties text at run time; returns warnings. On a ConfigError nothing is changed."""
        return self.apply(self.parse_update(properties_text))

    @staticmethod
    def dynamic_names() -> list[str]:
        """The names of the settings that code 25 may set."""
        return sorted(spec.name for spec in _SPECS.values() if spec.dynamic)

    def to_properties(self) -> list[tuple[str, str]]:
        """All settings by Apache name, then the file's other settings."""
        own = [_shown(spec.name, text_of(self.value_of(spec))) for spec in _SPECS.values()]
        others = sorted(_shown(name, text) for name, text in self.others.items())
        return own + sorted(self.tls_settings().properties().items()) + others

    def to_text(self) -> str:
        return render_properties(self.to_properties())

    def tls_settings(self) -> TlsSettings:
        """TLS settings of this file, of the file it names and of the environment; ConfigError if they conflict."""
        return TlsSettings.of(self.tls)

    def server_tls(self) -> ServerTls | None:
        """TLS of this broker's ports; None if disabled. ConfigError as from ``tls_settings``."""
        return server_tls(self.tls_settings(), (self.broker_ip1, self.bind_address, "localhost", "127.0.0.1", "::1"))

    def client_tls(self) -> TlsSettings | None:
        """TLS settings for requests to name servers and to the master; None without TLS."""
        settings = self.tls_settings()
        return settings if settings.is_client else None

    def store_config(self) -> StoreConfig:
        """Settings of the store in this broker's role."""
        return replace(self.store, is_replica=self.is_slave)

    @property
    def proxy_settings(self) -> dict[str, str]:
        return {name: text for name, text in self.others.items() if name in PROXY_SETTINGS}

    @property
    def without_effect(self) -> list[str]:
        """Apache settings that are set but have no effect."""
        return sorted(name for name in self.others if is_without_effect(name))

    @property
    def durability(self) -> Durability:
        """What an acknowledgement of this broker guarantees."""
        return durability(self.store.flush_disk_type.value, self.broker_role.value)

    @property
    def is_slave(self) -> bool:
        return self.broker_role is BrokerRole.SLAVE

    def check_role(self) -> None:
        """Raise ConfigError if role and id do not match."""
        if self.is_slave == (self.broker_id == MASTER_ID):
            raise ConfigError(
                f"brokerRole={self.broker_role.value} does not match brokerId={self.broker_id}.",
                remedy="Set brokerId to 0 for a master, above 0 for a slave.",
            )

    def check_access(self) -> None:
        """Raise ConfigError for settings of access control that do not fit together."""
        check_access(self.acl_enable, self.authentication_enabled, self.authorization_enabled)

    @property
    def is_guarded(self) -> bool:
        """Whether requests are checked, by either kind of access control."""
        return self.acl_enable or self.authentication_enabled

    @property
    def timer_precision(self) -> int:
        """``timerPrecisionMs`` rounded down to 1000, 500, 200 or 100, and at least 100, as in Apache's broker."""
        return next((step for step in (1_000, 500, 200) if step <= self.timer_precision_ms), 100)

    @property
    def acl_path(self) -> Path:
        """Apache's ``conf/plain_acl.yml``: ``aclFile``, else beside ``broker.conf``, else in the store's ``config``."""
        beside = self.source.absolute().parent if self.source is not None else self.store.store_path / "config"
        return beside / Path(self.acl_file or "plain_acl.yml").expanduser()

    @property
    def users_path(self) -> Path:
        """The file of users and policies: in ``authConfigPath``, else in ``config/auth`` of the store."""
        given = Path(self.auth_config_path).expanduser() if self.auth_config_path else None
        return (given or self.store.store_path / "config" / "auth") / "users.json"

    @property
    def own_credentials(self) -> Credentials | None:
        """Credentials that sign the broker's own requests to name servers and to its master."""
        return inner_credentials(self.inner_client_authentication_credentials)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses in ``namesrvAddr``."""
        return parse_name_servers(self.namesrv_addr).addresses if self.namesrv_addr else ()


def shown_text(properties_text: str) -> str:
    """Properties text on one line, with possible secrets hidden. ConfigError for invalid text."""
    entries = [_shown(name, text) for name, text, _ in parse_properties(properties_text, "update")]
    return " ".join(f"{name}={text}" for name, text in entries)


def _shown(name: str, text: str) -> tuple[str, str]:
    """A setting for display: secrets and possibly misspelt secrets are hidden."""
    spec = _SPECS.get(name) or _SPECS.get(nearest_setting(name) or "")
    is_secret = (spec is not None and spec.secret) or (name not in _SPECS and may_be_secret(name, text))
    return name, HIDDEN if is_secret and text else text


@lru_cache(maxsize=256)  # a search takes a millisecond, and code 26 searches for all unknown settings each time
def nearest_setting(name: str) -> str | None:
    """The known setting most similar to a misspelt one."""
    lowered = {known.lower(): known for known in (*_SPECS, *KNOWN_UNUSED)}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.7)
    return lowered[close[0]] if close else None


_OF_STORE = frozenset(settings_of(StoreConfig).values())
_SPECS = settings_of(BrokerConfig) | settings_of(StoreConfig)
