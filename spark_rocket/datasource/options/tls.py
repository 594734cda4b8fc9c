"""The connector's TLS: options, or the environment of the driver.

What they come to is found once, on the driver, and travels to the tasks with the other options; files lie at the same
paths on the machines of both. A password of a key comes from the driver's environment and is in no repr.

Pure but for the environment. Corresponds to ``tls.enable`` and ``tls.client.…`` of RocketMQ's clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from spark_rocket.datasource.options.checks import as_kind
from spark_rocket.datasource.options.conditions import error
from spark_rocket.datasource.options.parsers import bad_value
from spark_rocket.remoting.tls.settings import TlsSettings, Verify, as_settings

OPTIONS = ("tls", "tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsVerify")


def pem_file(option: str, text: str) -> str:
    """An absolute path: relative ones are the driver's."""
    if not text.strip() or "\0" in text:
        raise bad_value(option, text, "the path of a PEM file")
    return str(Path(text.strip()).expanduser().absolute())


def tls_of(values: Mapping[str, object]) -> TlsSettings | None:
    """With what a reader's or writer's servers are called; None: without TLS."""
    wanted = values.get("tls")
    for name in OPTIONS[1:]:
        if name in values and wanted is not True:
            raise error("BAD_OPTION.NO_EFFECT", option=name, needed="tls=true")
    for name, other in (("tlsCertFile", "tlsKeyFile"), ("tlsKeyFile", "tlsCertFile")):
        if name in values and other not in values:
            raise error("BAD_OPTION.NO_EFFECT", option=name, needed=other)
    settings = as_settings(None if wanted is None else wanted is True)
    if settings is None:
        return None
    verify = as_kind(Verify, values.get("tlsVerify"))
    if verify is not None:
        settings = replace(settings, verify=verify, auth_server=None)
    certificate = as_kind(str, values.get("tlsCertFile"))
    if certificate is not None:
        key = as_kind(str, values.get("tlsKeyFile")) or ""
        settings = replace(settings, client_cert_path=certificate, client_key_path=key)
    trust = as_kind(str, values.get("tlsCaFile")) or settings.client_trust_cert_path
    return replace(settings, enable=True, client_trust_cert_path=trust)
