"""What a broker says of itself: to name servers its topics, to clients its address.

Pure, but for the look at this machine's addresses. Corresponds to BrokerController.registerBrokerAll and
BrokerConfig.brokerIP1.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.broker.state.topics import PERM_READ_WRITE, TopicConfigManager
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.wire.bodies import QueueData, dumps_fastjson
from spark_rocket.remoting.address import format_address, parse_address
from spark_rocket.remoting.server.sockets import own_ip

_WILDCARDS = ("0.0.0.0", "::", "")


def registration_body(topics: TopicConfigManager, config: BrokerConfig) -> bytes:
    """The body of REGISTER_BROKER (103), not compressed."""
    wrapper = topics.snapshot(config.broker_permission | ~PERM_READ_WRITE)
    wrapper.update(
        topicQueueMappingInfoMap={},
        topicQueueMappingDetailMap={},
        mappingDataVersion=wrapper["dataVersion"],
    )
    return dumps_fastjson({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})


def queue_data(topics: TopicConfigManager, config: BrokerConfig, topic: str) -> QueueData | None:
    """One topic as a name server has it; None when there is no such topic."""
    entry = topics.get(topic)
    if entry is None:
        return None
    return QueueData(
        broker_name=config.broker_name,
        read_queue_nums=entry.read_queue_nums,
        write_queue_nums=entry.write_queue_nums,
        perm=entry.perm & (config.broker_permission | ~PERM_READ_WRITE),
        topic_sys_flag=entry.topic_sys_flag,
    )


def advertised_ip(config: BrokerConfig) -> str:
    """The address that clients are given: ``brokerIP1``, else the one listened on, else this machine's own."""
    host = config.broker_ip1 or config.bind_address
    if host in _WILDCARDS:
        return own_ip()
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        # The first part of an AF_INET address is text; the checker knows all families at once.
        return socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0]  # type: ignore[return-value]  # text, of IPv4
    except OSError as error:
        name = "brokerIP1" if config.broker_ip1 else "bindAddress"
        raise ConfigError(
            f"{name}={host} is no address and cannot be resolved: {error.strerror or error}.",
            remedy="Give an IP address of this machine that clients can reach.",
        ) from error


def called_address(address: str, config: BrokerConfig) -> str:
    """A server of this process, listening on ``bindAddress`` too, as processes on other machines call it.

    ``address``: ``host:port`` as processes on this machine call it. It is the answer unless every interface is listened
    on: then the host is the one that the broker advertises.
    """
    if config.bind_address not in _WILDCARDS:
        return address
    return format_address(advertised_ip(config), parse_address(address)[1])
