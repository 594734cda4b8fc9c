"""The members of a consumer group, as brokers list them.

Thread-safety: one rebalance at a time. Corresponds to MQClientInstance.findConsumerIdList.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RocketError
from spark_rocket.protocol.wire.bodies.client import GetConsumerListByGroupResponseBody
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.membership import GetConsumerListByGroupRequestHeader

logger = logging.getLogger(__name__)


class GroupMembers:
    """The members of one group."""

    def __init__(self, group: str, instance: Callable[[], ClientInstance]) -> None:
        self._group = group
        self._instance = instance
        self._last_broker = ""  # that returned the members

    def client_ids(self, topic: str) -> list[str] | None:
        """Return the client ids, sorted, from a broker of the topic; None if none responds."""
        instance = self._instance()
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group)
        brokers = instance.routes.route(topic).brokers.values()
        every = [address for addresses in brokers for address in addresses.values()]
        connected = instance.remoting.is_connected
        # First the broker that responded last, then connected ones: an unavailable broker costs a timeout.
        for address in sorted(every, key=lambda address: (address != self._last_broker, not connected(address))):
            request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.to_ext())
            try:
                response = instance.invoke(address, request, f"the query of the members of {self._group}")
                self._last_broker = address
                return sorted(GetConsumerListByGroupResponseBody.from_json(response.body).consumer_id_list)
            except RocketError as error:
                logger.info("no members of group %s from broker %s: %s", self._group, address, error)
        return None
