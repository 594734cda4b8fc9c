"""The console's address, cluster and users.

On a loopback address, users are optional, and without users there is no login. On other addresses, users are required.
Users are in a file with lines ``name:scrypt$…`` (hashes from ``rocket console --hash-password``). The environment can
define one user: ``ROCKET_CONSOLE_USER`` (default admin) and ``ROCKET_CONSOLE_PASSWORD``.

Immutable. Corresponds to application.yml and users.properties of RocketMQ's dashboard.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_rocket.client.core.client_config import ClientConfig
from spark_rocket.common.files import read_file
from spark_rocket.console.passwords import PREFIX, check_hash, hashed
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.address import is_loopback
from spark_rocket.remoting.tls.settings import TlsMode, TlsSettings

DEFAULT_PORT = 8080
USER_VARIABLE = "ROCKET_CONSOLE_USER"
PASSWORD_VARIABLE = "ROCKET_CONSOLE_PASSWORD"
MIN_PASSWORD_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The settings of a console. ConfigError if it would be open to other machines without a login."""

    name_server: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    tls: TlsSettings = field(default_factory=TlsSettings)
    """Only the server's settings: HTTPS if there is a certificate."""
    read_only: bool = False
    interval: float = 2.0
    """Minimum seconds between two samples of the cluster while pages are open."""
    connecting: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further arguments of the clients: credentials, TLS."""

    def __post_init__(self) -> None:
        ClientConfig.of(self.name_server, **self.connecting)
        if not self.is_loopback and not self.users:
            raise ConfigError(
                f"The console requires users to listen on {self.host}, which other machines can reach.",
                remedy=f"Set {PASSWORD_VARIABLE}, or give --users FILE with hashes from rocket console"
                " --hash-password; or listen on 127.0.0.1.",
            )

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def is_wildcard(self) -> bool:
        """Whether it listens on every address of this machine."""
        return self.host.strip("[]") in ("0.0.0.0", "::")

    @property
    def needs_login(self) -> bool:
        return bool(self.users)

    @property
    def is_tls(self) -> bool:
        return self.tls.server_mode is not TlsMode.DISABLED


def read_users(path: Path | None, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Read names and password hashes from a file and the environment."""
    users: dict[str, str] = {}
    if path is not None:
        try:
            lines = read_file(path).decode("utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not UTF-8 text.", remedy="Save the file as UTF-8.") from None
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            name, colon, secret = text.partition(":")
            if not colon or not name or not secret.startswith(PREFIX) or not check_hash(secret):
                raise ConfigError(
                    f"{path}, line {number}: invalid user or password hash.",
                    remedy="Use name:hash, with the output of rocket console --hash-password.",
                )
            users[name] = secret
        if not users:
            raise ConfigError(f"{path} has no users.", remedy="Add lines of name:hash.")
    password = environment.get(PASSWORD_VARIABLE)
    if password is not None:
        if len(password) < MIN_PASSWORD_CHARACTERS:
            raise ConfigError(
                f"{PASSWORD_VARIABLE} has fewer than {MIN_PASSWORD_CHARACTERS} characters.",
                remedy="Use a longer password.",
            )
        users[environment.get(USER_VARIABLE) or "admin"] = hashed(password)
    return users
