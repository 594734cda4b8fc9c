"""A web address that says which name servers there are, for those who move them: ``http://host:8080/rocketmq/nsaddr``.

Its answer is text like ``10.0.0.1:9876;10.0.0.2:9876``. Asked when a client instance begins, and every two minutes.

Thread-safety: a function without state. Corresponds to TopAddressing and MQClientInstance's fetchNameServerAddr.
"""

from __future__ import annotations

from spark_rocket.client.core.config import parse_name_servers
from spark_rocket.errors import ConfigError, NameServerUnreachableError

LOOK_UP_SECONDS = 120.0
_MOST_BYTES = 65_536


def look_up(url: str, timeout: float) -> tuple[str, ...]:
    """The name servers that the address server names. NameServerUnreachableError if it says nothing of use."""
    import urllib.request  # only who has an address server pays for loading it
    from http.client import HTTPException
    from urllib.error import HTTPError

    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:  # only http and https come here
            text = answer.read(_MOST_BYTES).decode("utf-8", "replace").strip()
        return parse_name_servers(text)
    except (OSError, HTTPException, ValueError, ConfigError) as error:
        if isinstance(error, HTTPError):  # it is the response, and keeps the socket
            error.close()
        raise NameServerUnreachableError(
            f"The address server {url} named no name servers: {error}.",
            remedy="Check the address, or give the name servers themselves, like 127.0.0.1:9876.",
        ) from error
