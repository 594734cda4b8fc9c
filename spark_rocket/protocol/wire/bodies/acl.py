"""Accounts, as brokers and tools tell each other of them.

Corresponds to org.apache.rocketmq.common.PlainAccessConfig and remoting.protocol.body's
GetBrokerClusterAclConfigResponseBody.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.protocol.wire.bodies.base import Body


@dataclass(slots=True)
class PlainAccessConfig(Body):
    """An account of ``plain_acl.yml``; None for what it does not say. The secret is in no repr."""

    access_key: str = ""
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


@dataclass(slots=True)
class ClusterAclConfig(Body):
    """Answer to GET_BROKER_CLUSTER_ACL_CONFIG."""

    global_white_addrs: list[str] = field(default_factory=list)
    plain_access_configs: list[PlainAccessConfig] = field(default_factory=list)
