"""Where a client's credentials come from: arguments, a file, or the environment.

``ROCKETMQ_ACCESS_KEY`` and ``ROCKETMQ_SECRET_KEY`` (and ``ROCKETMQ_SECURITY_TOKEN``, where there is one) count when
nothing is given. A file has the form of mqadmin's ``tools.yml``::

    accessKey: rocketmq2
    secretKey: "12345678"

No error has a secret in its text. Thread-safety: functions of their arguments.
Corresponds to org.apache.rocketmq.acl.common.SessionCredentials and mqadmin's ServerUtil hook.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials

ACCESS_KEY_VARIABLE = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE = "ROCKETMQ_SECRET_KEY"
SECURITY_TOKEN_VARIABLE = "ROCKETMQ_SECURITY_TOKEN"
MAX_FILE = 4096

_NAMES = ("accessKey", "secretKey", "securityToken")


def find_credentials(
    access_key: str | None = None,
    secret_key: str | None = None,
    security_token: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Credentials | None:
    """From what is given, else from the environment; None if that has none either."""
    if access_key or secret_key or security_token:
        return _whole(access_key, secret_key, security_token, "access_key", "secret_key")
    found = [environment.get(name) for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE)]
    return _whole(found[0], found[1], found[2], ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE)


def read_credentials(path: Path | str) -> Credentials:
    """From a file. ConfigError names it and what is wrong."""
    import yaml  # not on Spark's workers, where no files are read

    remedy = "Write two lines: accessKey: … and secretKey: …"
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise ConfigError(f"{path} is no file of credentials: it is too large.", remedy=remedy)
        # All values are text: a key of digits stays as it is written.
        values = yaml.load(content, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except OSError as error:
        raise ConfigError(
            f"The credentials file {path} cannot be read: {error.strerror or error}.",
            remedy="Give the path of a file with accessKey and secretKey that this process may read.",
        ) from error
    except (yaml.YAMLError, UnicodeError, RecursionError):
        raise ConfigError(f"The credentials file {path} is not YAML.", remedy=remedy) from None
    if not isinstance(values, dict) or not all(isinstance(values.get(name, ""), str) for name in _NAMES):
        raise ConfigError(f"The credentials file {path} has no accessKey and secretKey.", remedy=remedy)
    access_key, secret_key, token = (values.get(name) or None for name in _NAMES)
    try:
        found = _whole(access_key, secret_key, token, "accessKey", "secretKey")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", remedy=error.remedy) from None
    if found is None:
        raise ConfigError(f"The credentials file {path} has no accessKey and secretKey.", remedy=remedy)
    return found


def _whole(
    access_key: str | None, secret_key: str | None, token: str | None, access_name: str, secret_name: str
) -> Credentials | None:
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        there, missing = (access_name, secret_name) if access_key else (secret_name, access_name)
        raise ConfigError(f"There is {there} without {missing}.", remedy="Give both, or neither.")
    return Credentials(access_key, secret_key, token or "")
