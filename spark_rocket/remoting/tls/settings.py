"""TLS settings: Apache's names, where they come from, and what goes with what.

=============================  ==========================  ==========================================================
name                           value                       meaning
=============================  ==========================  ==========================================================
tls.server.mode                disabled, permissive,       no TLS; TLS and plaintext on the same port; TLS only.
                               enforcing                   Without it: permissive if there is a certificate,
                                                           enforcing if clients must show theirs
tls.server.certPath            PEM file                    the server's certificate, and those between it and the CA
tls.server.keyPath             PEM file                    its private key
tls.server.keyPassword         text                        what the key is encrypted with
tls.server.need.client.auth    none, optional, require     whether clients show certificates
tls.server.trustCertPath       PEM file                    the CAs whose clients are believed
tls.enable                     true, false                 whether this side calls others with TLS; without it: in mode
                                                           enforcing
tls.client.trustCertPath       PEM file                    the CAs whose servers are believed; without it the system's
tls.client.certPath, .keyPath  PEM files                   what this side shows to servers that ask
tls.client.keyPassword         text                        as above
tls.client.verify              full, ca, none              what of a server is checked: its CA and that it has the name
                                                           or address that was called; its CA; nothing. Our own setting
tls.client.authServer          true, false                 Apache's: false is ``tls.client.verify=none``
tls.server.authClient          true, false                 Apache's: false does not go with certificates of clients
tls.test.mode.enable           true, false                 for tests: a server without a certificate makes one that
                                                           nobody has signed, and this side checks no server
tls.config.file                file                        where further ones of these stand, as name=value
=============================  ==========================  ==========================================================

In Apache's RocketMQ the test mode is on, and servers are not checked, unless somebody sees to it. Here that is the
other way round: whoever wants less says so.

Each is looked for in what was given (broker.conf, arguments), then in ``tls.config.file``, then in the environment:
``ROCKETMQ_TLS_SERVER_CERT_PATH`` is tls.server.certPath.

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

from spark_rocket.errors import ConfigError
from spark_rocket.protocol.java_properties import expand_variables, parse_properties

CONFIG_FILE = "tls.config.file"
_VARIABLE = "ROCKETMQ_"


class TlsMode(Enum):
    """What a server takes on its port."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Whether a server's clients show certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


class Verify(Enum):
    """What a client checks of a server."""

    FULL = "full"
    CA = "ca"
    NONE = "none"


def _setting(name: str, kind: type = str, default: Any = "", *, secret: bool = False) -> Any:
    return field(default=default, metadata={"name": name, "kind": kind}, repr=not secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """See the module; a client's ``tls=True`` is what the environment says, and else ``TlsSettings(enable=True)``."""

    mode: TlsMode | None = _setting("tls.server.mode", TlsMode, None)  # noqa: RUF009 - it makes a field, here and below
    server_cert_path: str = _setting("tls.server.certPath")
    server_key_path: str = _setting("tls.server.keyPath")
    server_key_password: str = _setting("tls.server.keyPassword", secret=True)
    need_client_auth: ClientAuth = _setting("tls.server.need.client.auth", ClientAuth, ClientAuth.NONE)  # noqa: RUF009
    server_trust_cert_path: str = _setting("tls.server.trustCertPath")
    auth_client: bool | None = _setting("tls.server.authClient", bool, None)
    enable: bool | None = _setting("tls.enable", bool, None)
    client_trust_cert_path: str = _setting("tls.client.trustCertPath")
    client_cert_path: str = _setting("tls.client.certPath")
    client_key_path: str = _setting("tls.client.keyPath")
    client_key_password: str = _setting("tls.client.keyPassword", secret=True)
    verify: Verify | None = _setting("tls.client.verify", Verify, None)  # noqa: RUF009
    auth_server: bool | None = _setting("tls.client.authServer", bool, None)
    test_mode: bool = _setting("tls.test.mode.enable", bool, False)

    def __post_init__(self) -> None:
        """ConfigError when they do not go together."""
        self._pair("tls.server", self.server_cert_path, self.server_key_path)
        self._pair("tls.client", self.client_cert_path, self.client_key_path)
        if self.mode in (TlsMode.PERMISSIVE, TlsMode.ENFORCING) and not self.server_cert_path and not self.test_mode:
            raise ConfigError(
                f"tls.server.mode={self.mode.value} needs a certificate.",
                remedy="Set tls.server.certPath and tls.server.keyPath; for tests tls.test.mode.enable=true makes one.",
            )
        if self.need_client_auth is not ClientAuth.NONE:
            wanted = f"tls.server.need.client.auth={self.need_client_auth.value}"
            if self.auth_client is False:
                raise ConfigError(
                    f"{wanted} does not go with tls.server.authClient=false: certificates that nobody checks say "
                    "nothing.",
                    remedy="Remove tls.server.authClient.",
                )
            if not self.server_trust_cert_path:
                raise ConfigError(
                    f"{wanted} needs the CA of the clients' certificates.",
                    remedy="Set tls.server.trustCertPath to a PEM file with it.",
                )
        elif self.auth_client:
            raise ConfigError(
                "tls.server.authClient=true checks nobody, as no client is asked for a certificate.",
                remedy="Set tls.server.need.client.auth=require (or optional).",
            )
        if self.auth_server is False and self.verify is not None and self.verify is not Verify.NONE:
            raise ConfigError(
                f"tls.client.authServer=false does not go with tls.client.verify={self.verify.value}.",
                remedy="Remove one of them.",
            )

    @staticmethod
    def _pair(side: str, certificate: str, key: str) -> None:
        if bool(certificate) != bool(key):
            there, missing = ("certPath", "keyPath") if certificate else ("keyPath", "certPath")
            raise ConfigError(
                f"{side}.{there} is set, and {side}.{missing} is not.",
                remedy=f"Set {side}.{missing} as well; both may name the same file.",
            )

    # --- what they come to ----------------------------------------------------------------------------------------

    @property
    def server_mode(self) -> TlsMode:
        """``tls.server.mode``, or what it is when nobody said."""
        if self.mode is not None:
            return self.mode
        if self.need_client_auth is ClientAuth.REQUIRE:
            return TlsMode.ENFORCING  # who speaks plaintext shows no certificate
        return TlsMode.PERMISSIVE if self.server_cert_path or self.test_mode else TlsMode.DISABLED

    @property
    def is_client(self) -> bool:
        """Whether this side calls others with TLS."""
        return self.server_mode is TlsMode.ENFORCING if self.enable is None else self.enable

    @property
    def checks(self) -> Verify:
        """What is checked of a server that is called."""
        if self.verify is not None:
            return self.verify
        return Verify.NONE if self.test_mode or self.auth_server is False else Verify.FULL

    def client_environment(self) -> dict[str, str]:
        """For another process, whose clients are to call as this one's do; with the password of a key."""
        return {variable_of(name): text for name, text in self.client_properties().items()}

    def client_properties(self) -> dict[str, str]:
        """How this side calls others, by Apache's names; with the password of a key."""
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
        """What is set, by Apache's names, without passwords: to be shown."""
        shown: dict[str, str] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value != entry.default:
                shown[entry.metadata["name"]] = _text(value) if entry.repr else "******"
        return shown

    # --- where they come from -------------------------------------------------------------------------------------

    @classmethod
    def of(
        cls,
        given: Mapping[str, str] | None = None,
        environment: Mapping[str, str] = os.environ,
        *,
        source: str = "",
    ) -> TlsSettings:
        """From settings by their Apache names, a file that they name, and the environment. ConfigError for others."""
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
    """What a client's argument ``tls`` means, None for no TLS. Left out, ``ROCKETMQ_TLS_ENABLE`` says whether."""
    if tls is False:
        return None
    if isinstance(tls, TlsSettings):
        return None if tls.enable is False else tls
    if not tls and not any(environment.get(variable_of(name)) for name in ("tls.enable", CONFIG_FILE)):
        return None
    settings = TlsSettings.of(environment=environment)
    return settings if tls or settings.enable else None


def variable_of(name: str) -> str:
    """Of the environment."""
    return _VARIABLE + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace(".", "_").upper()


def parse_setting(name: str, text: str, where: str = "") -> object:
    """A value; ConfigError that says where it stands, also for a name that is none."""
    if name not in _SPECS and name != CONFIG_FILE:
        raise ConfigError(
            f"{where + ': ' if where else ''}{name} is no setting of TLS.",
            remedy=f"There are {CONFIG_FILE}, {', '.join(_SPECS)}.",
        )
    kind: Any = str if name == CONFIG_FILE else _SPECS[name].metadata["kind"]
    if kind is str:
        return text
    text = text.strip().lower()
    choices = _FLAGS if kind is bool else {str(member.value): member for member in kind}
    if text not in choices:
        raise ConfigError(
            f"{where + ': ' if where else ''}{name}={text}: {name} needs one of {', '.join(choices)}.",
            remedy="Correct the value.",
        )
    return choices[text]


def _read(file: Path, where: str) -> dict[str, tuple[str, str]]:
    try:
        entries = parse_properties(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{where + ': ' if where else ''}{CONFIG_FILE}={file} cannot be read: {error}.",
            remedy="Give the path of a readable properties file.",
        ) from error
    found: dict[str, tuple[str, str]] = {}
    for name, value, line in entries:
        parse_setting(name, value, f"{file}, line {line}")
        if name == CONFIG_FILE:
            raise ConfigError(f"{file}, line {line}: {name} does not belong into itself.", remedy="Remove the line.")
        found[name] = expand_variables(value, os.environ), f"{file}, line {line}"
    return found


def _text(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


_FLAGS: dict[str, object] = {"true": True, "false": False}
_SPECS = {entry.metadata["name"]: entry for entry in fields(TlsSettings)}
