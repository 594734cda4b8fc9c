"""Accounts of brokers with access control: query and change permissions (ACL 1.0, ``plain_acl.yml``).

Each broker, including slaves, has its own account file. These operations need the keys of an administrator account.
RocketMQ 4.x supports all of them; 5.0 to 5.3 do not list accounts, and later versions have ACL 2.0 instead.

Corresponds to DefaultMQAdminExt.{createAndUpdatePlainAccessConfig, deletePlainAccessConfig,
updateGlobalWhiteAddrConfig, examineBrokerClusterAclVersionInfo, examineBrokerClusterAclConfig}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Unpack

from spark_rocket.client.admin.access import AccessAdmin, ChangeTarget
from spark_rocket.client.admin.base import Query, decoded, parse_settings
from spark_rocket.client.admin.broker_rows import Failures
from spark_rocket.errors import RocketError
from spark_rocket.protocol.wire.bodies.config import ClusterAclConfig, DataVersion, PlainAccessConfig
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)

_SET = re.compile(r"([^{}]*)\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class AclVersion:
    """The version of a broker's account file: its number of changes by request, and the time of the last one."""

    cluster: str
    broker: str
    address: str
    counter: int
    changed_ms: int


class AccessMode(StrEnum):
    """The access control of a broker."""

    OFF = "OFF"
    PLAIN = "PLAIN"
    """ACL 1.0: ``plain_acl.yml``."""
    AUTH = "AUTH"
    """ACL 2.0 of RocketMQ 5.3 and later: users and policies."""


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """A broker, by its display name (``broker-a``, ``broker-a/1``), and its access control."""

    name: str
    address: str
    mode: AccessMode


@dataclass(slots=True)
class BrokerAccounts:
    """Brokers with equal accounts, and these accounts; None if the brokers do not report them."""

    versions: list[AclVersion]
    config: ClusterAclConfig | None

    def account(self, access_key: str) -> PlainAccessConfig | None:
        return None if self.config is None else self.config.account(access_key)


def default_perms(account: PlainAccessConfig) -> tuple[str, str]:
    """Return the permissions on all other topics and groups: of the account, or the implicit ones."""
    every = account.admin and not account.topic_perms and not account.group_perms
    other = "all" if every else "DENY"
    return account.default_topic_perm or other, account.default_group_perm or other


class AccountAdmin(AccessAdmin):
    def acl_versions(
        self,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        brokers: Iterable[BrokerAccess] | None = None,
        failed: Failures | None = None,
    ) -> list[AclVersion]:
        """Return the account file version of every broker, masters and slaves, or of ``brokers``."""

        def value(response: RemotingCommand) -> tuple[str, str, DataVersion]:
            header = GetBrokerAclConfigResponseHeader.from_ext(response.ext_fields)
            return header.cluster_name, header.broker_name, DataVersion.from_json(header.version)

        given = None if brokers is None else {one.name: one.address for one in brokers}
        members = self._members(broker, cluster) if given is None else given
        code, what = RequestCode.GET_BROKER_CLUSTER_ACL_INFO, "the query of its account version"
        found = self._ask_each(members, Query(code, what, value), failed)
        return [
            AclVersion(cluster_name, broker_name, members[name], version.counter, version.timestamp)
            for name, (cluster_name, broker_name, version) in found.items()
        ]

    def acl_config(self, broker: str) -> ClusterAclConfig:
        """Return a broker's accounts, with their secrets if it sends them, and its address allowlist."""
        code, what = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, "the query of its accounts"
        query = Query(code, what, decoded(ClusterAclConfig))
        return self._ask(self._address(broker), query)

    def access_modes(
        self, *, broker: str | None = None, cluster: str | None = None, failed: Failures | None = None
    ) -> list[BrokerAccess]:
        """Return the kind of access control of every broker, masters and slaves, by its settings."""
        members = self._members(broker, cluster)
        query = Query(RequestCode.GET_BROKER_CONFIG, "the query of its access control", _access_mode)
        found = self._ask_each(members, query, failed)
        return [BrokerAccess(name, members[name], mode) for name, mode in found.items()]

    def broker_accounts(
        self,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        brokers: Iterable[BrokerAccess] | None = None,
        failed: Failures,
    ) -> list[BrokerAccounts]:
        """Return the accounts of all brokers, or of ``brokers``, those with equal accounts together."""
        found: list[BrokerAccounts] = []
        for version in self.acl_versions(broker=broker, cluster=cluster, brokers=brokers, failed=failed):
            config: ClusterAclConfig | None = None
            try:
                config = self.acl_config(version.address)
            except RocketError as error:
                if error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    failed[version.address] = error
            same = next((one for one in found if one.config == config), None)
            if same is not None:
                same.versions.append(version)
            else:
                found.append(BrokerAccounts([version], config))
        return found

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
        **target: Unpack[ChangeTarget],
    ) -> list[str]:
        """Create or change an account; return the brokers that applied the change.

        Arguments that are None stay unchanged; ``admin`` is required by the protocol. ``topic_perms`` and
        ``group_perms`` (``"orders=PUB|SUB"``, in the client's namespace) replace the complete lists; Apache's brokers
        reject empty lists. A new account needs a ``secret_key``.
        """
        header = CreateAccessConfigRequestHeader(
            access_key=access_key,
            secret_key=secret_key,
            white_remote_address=white_remote_address,
            admin=admin,
            default_topic_perm=default_topic_perm,
            default_group_perm=default_group_perm,
            topic_perms=None if topic_perms is None else ",".join(map(self.namespace.wrap_permission, topic_perms)),
            group_perms=None if group_perms is None else ",".join(map(self.namespace.wrap_permission, group_perms)),
        )
        code, what = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, f"the change of account {access_key}"
        return self._change(code, what, header, target, secret=secret_key)

    def delete_account(self, access_key: str, **target: Unpack[ChangeTarget]) -> list[str]:
        """Delete an account; return the brokers that applied the change."""
        header = DeleteAccessConfigRequestHeader(access_key=access_key)
        code, what = RequestCode.DELETE_ACL_CONFIG, f"the deletion of account {access_key}"
        return self._change(code, what, header, target)

    def delete_account_of(self, access_key: str, addresses: Iterable[str], *, failed: Failures) -> list[str]:
        """Delete an account from these brokers; return those that no longer have it.

        Brokers that share a file have it deleted by the first request; that is not a failure.
        """
        done: list[str] = []
        for address in addresses:
            refused: Failures = {}
            done += self.delete_account(access_key, broker=address, failed=refused)
            try:
                is_missing = bool(refused) and self.acl_config(address).account(access_key) is None
            except RocketError:  # it does not report its accounts
                is_missing = False
            if is_missing:
                done.append(address)
            else:
                failed |= refused
        return done

    def update_global_white_addrs(
        self,
        addresses: Sequence[str],
        **target: Unpack[ChangeTarget],
    ) -> list[str]:
        """Replace the list of addresses with full access; return the brokers that applied the change.

        A set (``10.0.0.{7,9}``) is sent as its addresses: Apache's brokers split the list at every comma.
        """
        # 5.x requires a file path; an empty one means its plain_acl.yml.
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(
            ",".join(one for address in addresses for one in _without_set(address)), acl_file_full_path=""
        )
        code, what = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, "the change of the global allowlist"
        return self._change(code, what, header, target)


def _without_set(address: str) -> list[str]:
    """``10.0.0.{7,9}`` -> ``10.0.0.7``, ``10.0.0.9``"""
    found = _SET.fullmatch(address)
    return [address] if found is None else [found[1] + one.strip() for one in found[2].split(",")]


def _access_mode(response: RemotingCommand) -> AccessMode:
    settings = parse_settings(response)
    if "true" in (settings.get("authenticationEnabled"), settings.get("authorizationEnabled")):
        return AccessMode.AUTH
    return AccessMode.PLAIN if settings.get("aclEnable") == "true" else AccessMode.OFF
