"""TLS settings: Apache's names, their sources, and valid combinations.

``make tables`` writes them into ``docs/reference/settings.md``, to which links are relative.

In Apache's RocketMQ the test mode is on and servers are not verified by default. Here verification is the default and
must be disabled explicitly.

The sources, in order of precedence: explicit settings (broker.conf, arguments), ``tls.config.file``, the environment
(``ROCKETMQ_TLS_SERVER_CERT_PATH`` is tls.server.certPath).

Immutable; passwords are not in ``repr``. Corresponds to org.apache.rocketmq.remoting.netty.TlsSystemConfig and TlsMode.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from spark_rocket.common.arguments import checked_class
from spark_rocket.common.files import read_file
from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.java_properties import expand_variables, parse_properties

CONFIG_FILE = "tls.config.file"
CONFIG_FILE_MEANING = "a properties file with more of these settings"
_VARIABLE = "ROCKETMQ_"


class TlsMode(Enum):
    """The connections that a server accepts."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Whether clients must present certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


class Verify(Enum):
    """What a client verifies of a server."""

    FULL = "full"
    CA = "ca"
    NONE = "none"


def _setting(name: str, meaning: str, kind: type = str, default: Any = "", *, secret: bool = False) -> Any:
    return field(default=default, metadata={"name": name, "kind": kind, "meaning": meaning}, repr=not secret)


@checked_class
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TlsSettings(FrozenValue):
    """TLS settings; ``tls=True`` of a client means those of the environment, or ``TlsSettings(enable=True)``."""

    mode: TlsMode | None = _setting(  # noqa: RUF009 - returns a field, here and below
        "tls.server.mode",
        "`disabled`: no TLS. `permissive`: TLS and plaintext on the same port. `enforcing`: TLS only. "
        "Default: `enforcing` with `tls.server.need.client.auth=require`, else `permissive` with a "
        "certificate, else `disabled`",
        TlsMode,
        None,
    )
    server_cert_path: str = _setting("tls.server.certPath", "the server's certificate with the intermediate ones, PEM")
    server_key_path: str = _setting("tls.server.keyPath", "the key of the server's certificate, PEM")
    server_key_password: str = _setting("tls.server.keyPassword", "the password of this key", secret=True)
    need_client_auth: ClientAuth = _setting(  # noqa: RUF009
        "tls.server.need.client.auth", "whether clients must present certificates", ClientAuth, ClientAuth.NONE
    )
    server_trust_cert_path: str = _setting("tls.server.trustCertPath", "the CAs of the clients' certificates, PEM")
    auth_client: bool | None = _setting(
        "tls.server.authClient", "Apache's; `false` conflicts with client certificates", bool, None
    )
    enable: bool | None = _setting(
        "tls.enable",
        "whether clients, and servers that connect to others (broker to name server, slave to master), use "
        "TLS. Default: `true` in mode `enforcing`, else `false`",
        bool,
        None,
    )
    client_trust_cert_path: str = _setting(
        "tls.client.trustCertPath", "the CAs of the servers' certificates, PEM. Default: the system's CAs"
    )
    client_cert_path: str = _setting(
        "tls.client.certPath", "the client's certificate, PEM, for servers that request one"
    )
    client_key_path: str = _setting("tls.client.keyPath", "the key of the client's certificate, PEM")
    client_key_password: str = _setting("tls.client.keyPassword", "the password of this key", secret=True)
    verify: Verify | None = _setting(  # noqa: RUF009
        "tls.client.verify",
        "verify the server's CA and name or address; the CA only; nothing. Default: `full`; `none` with "
        "`tls.test.mode.enable=true` or `tls.client.authServer=false`. *Own*",
        Verify,
        None,
    )
    auth_server: bool | None = _setting(
        "tls.client.authServer", "Apache's; `false` is `tls.client.verify=none`", bool, None
    )
    test_mode: bool = _setting(
        "tls.test.mode.enable",
        "for tests: servers without a certificate generate one, and clients verify nothing",
        bool,
        False,
    )

    def __post_init__(self) -> None:
        """ConfigError for incompatible settings."""
        self._pair("tls.server", self.server_cert_path, self.server_key_path)
        self._pair("tls.client", self.client_cert_path, self.client_key_path)
        if self.mode in (TlsMode.PERMISSIVE, TlsMode.ENFORCING) and not self.server_cert_path and not self.test_mode:
            raise ConfigError(
                f"tls.server.mode={self.mode.value} needs a certificate.",
                remedy="Set tls.server.certPath and tls.server.keyPath; or, for tests, tls.test.mode.enable=true.",
            )
        if self.need_client_auth is not ClientAuth.NONE:
            wanted = f"tls.server.need.client.auth={self.need_client_auth.value}"
            if self.auth_client is False:
                raise ConfigError(
                    f"{wanted} is incompatible with tls.server.authClient=false, which disables verification.",
                    remedy="Remove tls.server.authClient.",
                )
            if not self.server_trust_cert_path:
                raise ConfigError(
                    f"{wanted} needs the CA of the clients' certificates.",
                    remedy="Set tls.server.trustCertPath to a PEM file with it.",
                )
        elif self.auth_client:
            raise ConfigError(
                "tls.server.authClient=true has no effect: clients are not requested to present certificates.",
                remedy="Set tls.server.need.client.auth=require (or optional).",
            )
        if self.auth_server is False and self.verify is not None and self.verify is not Verify.NONE:
            raise ConfigError(
                f"tls.client.authServer=false is incompatible with tls.client.verify={self.verify.value}.",
                remedy="Remove one of them.",
            )

    @staticmethod
    def _pair(side: str, certificate: str, key: str) -> None:
        if bool(certificate) != bool(key):
            there, missing = ("certPath", "keyPath") if certificate else ("keyPath", "certPath")
            raise ConfigError(
                f"{side}.{there} is set without {side}.{missing}.",
                remedy=f"Set {side}.{missing} as well; both may name the same file.",
            )

    # --- effective settings ---------------------------------------------------------------------------------------

    @property
    def server_mode(self) -> TlsMode:
        """``tls.server.mode``, or its default."""
        if self.mode is not None:
            return self.mode
        if self.need_client_auth is ClientAuth.REQUIRE:
            return TlsMode.ENFORCING  # plaintext clients present no certificate
        return TlsMode.PERMISSIVE if self.server_cert_path or self.test_mode else TlsMode.DISABLED

    @property
    def is_client(self) -> bool:
        """Whether outgoing connections use TLS."""
        return self.server_mode is TlsMode.ENFORCING if self.enable is None else self.enable

    @property
    def checks(self) -> Verify:
        """The verification of servers."""
        if self.verify is not None:
            return self.verify
        return Verify.NONE if self.test_mode or self.auth_server is False else Verify.FULL

    def client_environment(self) -> dict[str, str]:
        """Return the client settings as environment of another process, including the password of the key."""
        return {variable_of(name): text for name, text in self.client_properties().items()}

    def client_properties(self) -> dict[str, str]:
        """Return the client settings by Apache's names, including the password of the key."""
        found = {
            "tls.enable": "true" if self.is_client else "false",
            "tls.client.verify": self.checks.value,
            "tls.client.trustCertPath": self.client_trust_cert_path,
            "tls.client.certPath": self.client_cert_path,
            "tls.client.keyPath": self.client_key_path,
            "tls.client.keyPassword": self.client_key_password,
        }
        return {name: text for name, text in found.items() if text}

    def properties(self) -> dict[str, str]:
        """Return the settings that are set, by Apache's names, with masked passwords, for display."""
        shown: dict[str, str] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value != entry.default:
                shown[entry.metadata["name"]] = _text(value) if entry.repr else "******"
        return shown

    # --- sources --------------------------------------------------------------------------------------------------

    @classmethod
    def of(
        cls,
        given: Mapping[str, str] | None = None,
        environment: Mapping[str, str] = os.environ,
        *,
        source: str = "",
    ) -> TlsSettings:
        """Read settings by Apache's names, their ``tls.config.file``, and the environment. ConfigError for others."""
        found: dict[str, tuple[str, str]] = {}
        for name in (CONFIG_FILE, *_SPECS):
            variable = variable_of(name)
            if environment.get(variable):
                found[name] = environment[variable], variable
        found |= {name: (text, source) for name, text in (given or {}).items() if name == CONFIG_FILE}
        file, where = found.pop(CONFIG_FILE, ("", ""))
        if file:
            found |= _read(Path(expand_variables(file, environment)).expanduser(), where)
        found |= {name: (text, source) for name, text in (given or {}).items() if name != CONFIG_FILE}
        parsed = {name: parse_setting(name, text, where) for name, (text, where) in found.items()}
        values: dict[str, Any] = {_SPECS[name].name: value for name, value in parsed.items()}
        try:
            return cls(**values)
        except ConfigError as error:
            if not source:
                raise
            raise ConfigError(f"{source}: {error.message}", remedy=error.remedy) from None


def as_settings(tls: bool | TlsSettings | None, environment: Mapping[str, str] = os.environ) -> TlsSettings | None:
    """Resolve a client's argument ``tls``; None means no TLS. By default ``ROCKETMQ_TLS_ENABLE`` decides."""
    if tls is False:
        return None
    if isinstance(tls, TlsSettings):
        return None if tls.enable is False else tls
    if not tls and not any(environment.get(variable_of(name)) for name in ("tls.enable", CONFIG_FILE)):
        return None
    settings = TlsSettings.of(environment=environment)
    return settings if tls or settings.enable else None


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return _VARIABLE + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace(".", "_").upper()


def parse_setting(name: str, text: str, where: str = "") -> object:
    """Parse a value; ConfigError with its source for an invalid value or an unknown name."""
    if name not in _SPECS and name != CONFIG_FILE:
        raise ConfigError(
            f"{where + ': ' if where else ''}unknown TLS setting {name!r}.",
            remedy=f"Valid names: {CONFIG_FILE}, {', '.join(_SPECS)}.",
        )
    kind: Any = str if name == CONFIG_FILE else _SPECS[name].metadata["kind"]
    if kind is str:
        return text
    text = text.strip().lower()
    choices = _FLAGS if kind is bool else {str(member.value): member for member in kind}
    if text not in choices:
        raise ConfigError(
            f"{where + ': ' if where else ''}invalid value of {name}: {text!r}.",
            remedy=f"Use one of {', '.join(choices)}.",
        )
    return choices[text]


def _read(file: Path, where: str) -> dict[str, tuple[str, str]]:
    try:
        entries = parse_properties(read_file(file).decode(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{where + ': ' if where else ''}cannot read {CONFIG_FILE}={file}: {error}.",
            remedy="Use a readable properties file.",
        ) from error
    found: dict[str, tuple[str, str]] = {}
    for name, value, line in entries:
        parse_setting(name, value, f"{file}, line {line}")
        if name == CONFIG_FILE:
            raise ConfigError(f"{file}, line {line}: {name} is not allowed here.", remedy="Remove the line.")
        found[name] = expand_variables(value, os.environ), f"{file}, line {line}"
    return found


def _text(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


_FLAGS: dict[str, object] = {"true": True, "false": False}
_SPECS = {entry.metadata["name"]: entry for entry in fields(TlsSettings)}
