"""Changes of access control, of both kinds: each broker, including slaves, stores its own accounts, so a change goes to
every broker of the cluster in turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

from spark_rocket.client.admin.base import AdminBase, Query, names_in, record_failure
from spark_rocket.client.admin.broker_rows import Failures
from spark_rocket.client.core.responses import sentence
from spark_rocket.errors import BrokerError, RocketError
from spark_rocket.protocol.wire.codes import (
    DELETE_ACL_CONFIG_FAILED,
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
    RequestCode,
)
from spark_rocket.protocol.wire.headers.base import Header

_SUCCESS_OR_FAILED = frozenset(
    (0, UPDATE_AND_CREATE_ACL_CONFIG_FAILED, DELETE_ACL_CONFIG_FAILED, UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED)
)


class ChangeTarget(TypedDict, total=False):
    """The brokers of a change: one (the name of a master or an address), the brokers of a cluster, or by default all.

    ``failed``: records their errors; see ``base``.
    """

    broker: str | None
    cluster: str | None
    failed: Failures | None


class AccessAdmin(AdminBase):
    def _change(
        self,
        code: RequestCode,
        what: str,
        header: Header,
        target: ChangeTarget,
        *,
        body: bytes = b"",
        secret: str | None = None,
    ) -> list[str]:
        """Send the request to one broker after the other; return those that applied it.

        ``secret``: hidden in errors, because Apache's brokers repeat a rejected secret key.
        """
        query = Query(code, what, lambda response: response, header, body, allowed=_SUCCESS_OR_FAILED)
        changed = []
        for name, address in self._members(target.get("broker"), target.get("cluster")).items():
            with record_failure(target.get("failed"), name), _hidden_in_errors(secret):
                response = self._ask(address, query)
                if response.code:
                    raise BrokerError(
                        f"Broker {address} refused {query.what}: {sentence(response.remark or 'no remark')}",
                        response_code=response.code,
                    )
                changed.append(name)
        return changed

    def _members(self, broker: str | None, cluster: str | None) -> dict[str, str]:
        """Return the addresses of all brokers, masters and slaves, by display name: ``broker-a``, ``broker-a/1``."""
        if broker is not None:
            return {broker: self._address(broker)}
        info = self._known_brokers()
        table = info.broker_addr_table
        found = {
            f"{name}/{broker_id}" if broker_id else name: address
            for name in sorted(table if cluster is None else names_in(info, cluster))
            if name in table
            for broker_id, address in sorted(table[name].broker_addrs.items())
        }
        return found or self._masters(None, cluster)  # raises an error if there are none


@contextmanager
def _hidden_in_errors(secret: str | None) -> Iterator[None]:
    try:
        yield
    except RocketError as error:
        if secret:
            error.message = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "******", error.message)
            error.args = (error.message,)
        raise
