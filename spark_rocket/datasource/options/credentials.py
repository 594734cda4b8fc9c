"""The connector's credentials: options, a file, or the environment of the driver.

They are found once, on the driver, and travel to the tasks with the other options, in what Spark pickles for them; no
repr shows them. A table's options lie open in the catalog, so that a secret is refused there.

Pure but for the file and the environment. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_rocket.client.core.config import Connecting, find_credentials, read_credentials
from spark_rocket.datasource.options.conditions import error
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials, key_problem
from spark_rocket.remoting.tls.settings import TlsSettings

SECRETS = ("secretKey", "securityToken")


def key_text(option: str, text: str) -> str:
    """An access key, secret key or token. The error does not repeat it."""
    problem = key_problem(text)
    if problem is not None:
        raise error(
            "BAD_OPTION.VALUE", option=option, value="not a key", wanted=f"the key as it is; this one {problem}"
        )
    return text


def credentials_file(option: str, text: str) -> Credentials:
    try:
        return read_credentials(text)
    except ConfigError as problem:
        wanted = f"a file that the driver can read, with accessKey and secretKey. {problem.message[:300].rstrip('.')}"
        raise error("BAD_OPTION.VALUE", option=option, value=repr(text[:200]), wanted=wanted) from None


def credentials_of(values: Mapping[str, object]) -> Credentials | None:
    """What a reader's or writer's requests are signed with, if anything."""
    given = {name: values[name] for name in ("accessKey", *SECRETS) if name in values}
    found = values.get("credentialsFile")
    if isinstance(found, Credentials):
        if given:
            raise error("BAD_OPTION.TOGETHER", option=next(iter(given)), other="credentialsFile", hint="")
        return found
    for name, other in (("accessKey", "secretKey"), ("secretKey", "accessKey"), ("securityToken", "accessKey")):
        if name in given and other not in given:
            raise error("BAD_OPTION.NO_EFFECT", option=name, needed=other)
    access_key, secret_key, token = (given.get(name) for name in ("accessKey", *SECRETS))
    return find_credentials(
        None if access_key is None else str(access_key),
        None if secret_key is None else str(secret_key),
        None if token is None else str(token),
    )


def refuse_secrets(options: Iterable[str]) -> None:
    """A table's options are shown to whoever looks at the table."""
    given = {key.lower() for key in options}
    for name in SECRETS:
        if name.lower() in given:
            raise error("BAD_OPTION.SECRET_IN_TABLE", option=name)


def connecting(credentials: Credentials | None, tls: TlsSettings | None = None) -> Connecting:
    """As the clients take them; what is not given here was not found in the driver's environment either."""
    if credentials is None:
        return {"tls": tls or False}
    return {
        "tls": tls or False,
        "access_key": credentials.access_key,
        "secret_key": credentials.secret_key,
        "security_token": credentials.security_token or None,
    }
