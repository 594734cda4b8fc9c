"""Accounts of brokers with access control: query and change permissions (ACL 1.0, ``plain_acl.yml``).

Each broker, including slaves, has its own account file, so a change goes to every broker of the cluster in turn. These
operations need the keys of an administrator account. RocketMQ 4.x supports all of them; 5.0 to 5.3 do not list
accounts, and later versions have ACL 2.0 instead.

Thread-safety: all methods. Corresponds to DefaultMQAdminExt.{createAndUpdatePlainAccessConfig,
deletePlainAccessConfig, updateGlobalWhiteAddrConfig, examineBrokerClusterAclVersionInfo,
examineBrokerClusterAclConfig}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_rocket.client.admin.base import Query, names_in, put_aside
from spark_rocket.client.admin.brokers import BrokerAdmin
from spark_rocket.client.admin.results import Failures
from spark_rocket.client.core.responses import sentence
from spark_rocket.errors import BrokerError
from spark_rocket.protocol.wire.bodies import DataVersion
from spark_rocket.protocol.wire.bodies.config import ClusterAclConfig
from spark_rocket.protocol.wire.codes import (
    DELETE_ACL_CONFIG_FAILED,
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
    RequestCode,
)
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from spark_rocket.protocol.wire.headers.base import Header

_DONE_OR_NOT = frozenset(
    (0, UPDATE_AND_CREATE_ACL_CONFIG_FAILED, DELETE_ACL_CONFIG_FAILED, UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED)
)


@dataclass(frozen=True, slots=True)
class AclVersion:
    """The version of a broker's account file: its number of changes by request, and the time of the last one."""

    cluster: str
    broker: str
    address: str
    counter: int
    changed_ms: int


class AccountAdmin(BrokerAdmin):
    """Accounts. ``broker`` is the name of a master or an address; by default all brokers are used."""

    def acl_versions(
        self, *, broker: str | None = None, cluster: str | None = None, failed: Failures | None = None
    ) -> list[AclVersion]:
        """Return the account file version of every broker, masters and slaves."""

        def value(answer: RemotingCommand) -> tuple[str, str, DataVersion]:
            header = GetBrokerAclConfigResponseHeader.from_ext(answer.ext_fields)
            return header.cluster_name, header.broker_name, DataVersion.from_json(header.version)

        members = self._members(broker, cluster)
        code, what = RequestCode.GET_BROKER_CLUSTER_ACL_INFO, "the query of its account version"
        found = self._ask_each(members, Query(code, what, value), failed)
        return [
            AclVersion(cluster_name, broker_name, members[name], version.counter, version.timestamp)
            for name, (cluster_name, broker_name, version) in found.items()
        ]

    def acl_config(self, broker: str) -> ClusterAclConfig:
        """Return a broker's accounts, with their secrets if it sends them, and its address allowlist."""
        code, what = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, "the query of its accounts"
        query = Query(code, what, lambda answer: ClusterAclConfig.from_json(answer.body))
        return self._ask(self._address(broker), query)

    def update_account(
        self,
        access_key: str,
        *,
        admin: bool,
        secret_key: str | None = None,
        white_remote_address: str | None = None,
        default_topic_perm: str | None = None,
        default_group_perm: str | None = None,
        topic_perms: Sequence[str] | None = None,
        group_perms: Sequence[str] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
        failed: Failures | None = None,
    ) -> list[str]:
        """Create or change an account; return the brokers that applied the change.

        Arguments that are None stay unchanged; ``admin`` is required by the protocol. ``topic_perms`` and
        ``group_perms`` (``"orders=PUB|SUB"``) replace the complete lists; Apache's brokers reject empty lists. A new
        account needs a ``secret_key``.
        """
        header = CreateAccessConfigRequestHeader(
            access_key=access_key,
            secret_key=secret_key,
            white_remote_address=white_remote_address,
            admin=admin,
            default_topic_perm=default_topic_perm,
            default_group_perm=default_group_perm,
            topic_perms=None if topic_perms is None else ",".join(topic_perms),
            group_perms=None if group_perms is None else ",".join(group_perms),
        )
        code, what = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, f"the change of account {access_key}"
        return self._tell_members(code, header, what, broker, cluster, failed)

    def delete_account(
        self, access_key: str, *, broker: str | None = None, cluster: str | None = None, failed: Failures | None = None
    ) -> list[str]:
        """Delete an account; return the brokers that applied the change."""
        header = DeleteAccessConfigRequestHeader(access_key=access_key)
        code, what = RequestCode.DELETE_ACL_CONFIG, f"the deletion of account {access_key}"
        return self._tell_members(code, header, what, broker, cluster, failed)

    def update_global_white_addrs(
        self,
        addresses: Sequence[str],
        *,
        broker: str | None = None,
        cluster: str | None = None,
        failed: Failures | None = None,
    ) -> list[str]:
        """Replace the list of addresses with full access; return the brokers that applied the change."""
        # 5.x requires a file path; an empty one means its plain_acl.yml.
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(",".join(addresses), acl_file_full_path="")
        code, what = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, "the change of the global allowlist"
        return self._tell_members(code, header, what, broker, cluster, failed)

    def _tell_members(
        self,
        code: RequestCode,
        header: Header,
        what: str,
        broker: str | None,
        cluster: str | None,
        failed: Failures | None,
    ) -> list[str]:
        """Send the request to one broker after the other; return those that applied it."""
        query = Query(code, what, lambda answer: answer, header, allowed=_DONE_OR_NOT)
        changed = []
        for name, address in self._members(broker, cluster).items():
            with put_aside(failed, name):
                answer = self._ask(address, query)
                if answer.code:
                    raise BrokerError(
                        f"Broker {address} refused {what}: {sentence(answer.remark or 'no remark')}",
                        response_code=answer.code,
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
