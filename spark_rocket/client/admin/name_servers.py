"""What an operator asks and changes at name servers: write permissions, key-value configuration, settings.

Changes go to every name server, and one that is away is an error; of questions the first answer counts.

Thread-safety: all methods. Corresponds to DefaultMQAdminExt's methods of the same names.
"""

from __future__ import annotations

from spark_rocket.client.admin.base import FOUND_OR_NOT, AdminBase
from spark_rocket.protocol.wire.bodies import KVTable
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)


class NameServerAdmin(AdminBase):
    """Name servers."""

    def wipe_write_perm(self, broker: str) -> int:
        """Let no more messages go to a broker, by its name, before it is stopped; how many topics that changed."""
        answers = self._tell_name_servers(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            WipeWritePermOfBrokerRequestHeader(broker_name=broker),
            f"the end of writing to {broker}",
        )
        return max(WipeWritePermOfBrokerResponseHeader.from_ext(a.ext_fields).wipe_topic_count for a in answers)

    def add_write_perm(self, broker: str) -> int:
        """The reverse of ``wipe_write_perm``."""
        answers = self._tell_name_servers(
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            AddWritePermOfBrokerRequestHeader(broker_name=broker),
            f"writing to {broker}",
        )
        return max(AddWritePermOfBrokerResponseHeader.from_ext(a.ext_fields).add_topic_count for a in answers)

    def put_kv_config(self, namespace: str, key: str, value: str) -> None:
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        self._tell_name_servers(RequestCode.PUT_KV_CONFIG, header, f"the entry {namespace}/{key}")

    def get_kv_config(self, namespace: str, key: str) -> str | None:
        header = GetKVConfigRequestHeader(namespace=namespace, key=key)
        what = f"the question for {namespace}/{key}"
        answer = self._ask_name_server(RequestCode.GET_KV_CONFIG, header, what, FOUND_OR_NOT)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return GetKVConfigResponseHeader.from_ext(answer.ext_fields).value

    def delete_kv_config(self, namespace: str, key: str) -> None:
        header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        self._tell_name_servers(RequestCode.DELETE_KV_CONFIG, header, f"the deletion of {namespace}/{key}")

    def kv_configs(self, namespace: str) -> dict[str, str]:
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        what = f"the entries of {namespace}"
        answer = self._ask_name_server(RequestCode.GET_KVLIST_BY_NAMESPACE, header, what, FOUND_OR_NOT)
        return {} if answer.code == ResponseCode.QUERY_NOT_FOUND else KVTable.from_json(answer.body).table

    def name_server_configs(self) -> dict[str, dict[str, str]]:
        """Every name server's settings, by its address."""
        what = "the question for settings"
        return {
            address: settings_of(self._ask(address, RequestCode.GET_NAMESRV_CONFIG, None, what).body)
            for address in self._instance().routes.name_servers.addresses
        }

    def update_name_server_config(self, settings: dict[str, str]) -> None:
        """Change settings of every name server."""
        for address in self._instance().routes.name_servers.addresses:
            body = settings_text(settings)
            self._ask(address, RequestCode.UPDATE_NAMESRV_CONFIG, None, "the change of settings", body=body)


def settings_of(body: bytes | bytearray | memoryview) -> dict[str, str]:
    """Settings from a properties text."""
    lines = (line.strip() for line in bytes(body).decode().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def settings_text(settings: dict[str, str]) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
