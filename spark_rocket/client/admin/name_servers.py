"""Name servers: what each knows, settings, write permissions of brokers, key-value configuration.

A change goes to all name servers, and an unavailable one is an error. For queries the first response counts.

Corresponds to DefaultMQAdminExt's methods of these names.
"""

from __future__ import annotations

from spark_rocket.client.admin.base import (
    SUCCESS_OR_NO_TOPIC,
    SUCCESS_OR_NOT_FOUND,
    AdminBase,
    Query,
    decoded,
    done,
    if_found,
    parse_settings,
    settings_body,
)
from spark_rocket.client.admin.broker_rows import Failures
from spark_rocket.protocol.wire.bodies.route import ClusterInfo, KVTable, TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.namesrv import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from spark_rocket.protocol.wire.headers.routes import GetKVListByNamespaceRequestHeader, GetRouteInfoRequestHeader


class NameServerAdmin(AdminBase):
    def wipe_write_perm(self, broker: str) -> int:
        """Stop sends to a broker, given by name, before it is stopped; return the number of changed topics."""

        def count(response: RemotingCommand) -> int:
            return WipeWritePermOfBrokerResponseHeader.from_ext(response.ext_fields).wipe_topic_count

        header = WipeWritePermOfBrokerRequestHeader(broker_name=broker)
        code, what = RequestCode.WIPE_WRITE_PERM_OF_BROKER, f"the removal of the write permission of {broker}"
        return max(self._ask_name_servers(Query(code, what, count, header)))

    def add_write_perm(self, broker: str) -> int:
        """Undo ``wipe_write_perm``; return the number of changed topics."""

        def count(response: RemotingCommand) -> int:
            return AddWritePermOfBrokerResponseHeader.from_ext(response.ext_fields).add_topic_count

        header = AddWritePermOfBrokerRequestHeader(broker_name=broker)
        code, what = RequestCode.ADD_WRITE_PERM_OF_BROKER, f"the write permission of {broker}"
        return max(self._ask_name_servers(Query(code, what, count, header)))

    def put_kv_config(self, namespace: str, key: str, value: str, *, name_server: str | None = None) -> None:
        """Set an entry on every name server, or on one of them, given by address."""
        query = put_kv_query(namespace, key, value)
        if name_server is None:
            self._ask_name_servers(query)
        else:
            self._ask(name_server, query)

    def get_kv_config(self, namespace: str, key: str) -> str | None:
        return self._ask_name_server(get_kv_query(namespace, key))

    def kv_config_of_each(self, namespace: str, key: str, *, failed: Failures | None = None) -> dict[str, str]:
        """Return the entry of each name server that has it, by address."""
        found = self._ask_each(self._each_name_server(), get_kv_query(namespace, key), failed)
        return {address: value for address, value in found.items() if value is not None}

    def delete_kv_config(self, namespace: str, key: str) -> None:
        self._ask_name_servers(delete_kv_query(namespace, key))

    def kv_configs(self, namespace: str) -> dict[str, str]:
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        code, what = RequestCode.GET_KVLIST_BY_NAMESPACE, f"the entries of {namespace}"
        return self._ask_name_server(Query(code, what, if_found(_table), header, allowed=SUCCESS_OR_NOT_FOUND)) or {}

    def cluster_info_of_each(self, *, failed: Failures | None = None) -> dict[str, ClusterInfo]:
        """Return the brokers that each name server knows, by address of the name server."""
        code, what = RequestCode.GET_BROKER_CLUSTER_INFO, "the list of brokers"
        query = Query(code, what, decoded(ClusterInfo))
        return self._ask_each(self._each_name_server(), query, failed)

    def topic_route_of_each(self, topic: str, *, failed: Failures | None = None) -> dict[str, TopicRouteData]:
        """Return the route of each name server that has the topic, by address."""
        value = if_found(decoded(TopicRouteData))
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        code, what = RequestCode.GET_ROUTEINFO_BY_TOPIC, f"the query of the route of topic {topic}"
        found = self._ask_each(
            self._each_name_server(), Query(code, what, value, header, allowed=SUCCESS_OR_NO_TOPIC), failed
        )
        return {address: route for address, route in found.items() if route is not None}

    def name_server_configs(self) -> dict[str, dict[str, str]]:
        """Return the settings of every name server, by address."""
        query = Query(RequestCode.GET_NAMESRV_CONFIG, "the query of settings", parse_settings)
        return {address: self._ask(address, query) for address in self._each_name_server()}

    def update_name_server_config(self, settings: dict[str, str]) -> None:
        code, what = RequestCode.UPDATE_NAMESRV_CONFIG, "the change of settings"
        for address in self._each_name_server():
            self._ask(address, Query(code, what, done, body=settings_body(settings)))


def put_kv_query(namespace: str, key: str, value: str) -> Query[None]:
    header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
    return Query(RequestCode.PUT_KV_CONFIG, f"the entry {namespace}/{key}", done, header)


def get_kv_query(namespace: str, key: str) -> Query[str | None]:
    value = if_found(lambda response: GetKVConfigResponseHeader.from_ext(response.ext_fields).value)
    header = GetKVConfigRequestHeader(namespace=namespace, key=key)
    code, what = RequestCode.GET_KV_CONFIG, f"the query of {namespace}/{key}"
    return Query(code, what, value, header, allowed=SUCCESS_OR_NOT_FOUND)


def delete_kv_query(namespace: str, key: str) -> Query[None]:
    header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
    return Query(RequestCode.DELETE_KV_CONFIG, f"the deletion of {namespace}/{key}", done, header)


def _table(response: RemotingCommand) -> dict[str, str]:
    return KVTable.from_json(response.body).table
