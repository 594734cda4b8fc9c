"""The name server's request handlers: one method per request code, over the route tables and the KV configuration.

The response to code 105 has two formats. Requests of version 401 (4.9.4) and above, or with acceptStandardJsonOnly, get
standard JSON (keys quoted, maps sorted, ASCII); older ones get fastjson's format with unquoted integer keys. All other
bodies have fastjson's format for all clients.

Corresponds to org.apache.rocketmq.namesrv.processor.{ClientRequestProcessor, DefaultRequestProcessor}.
"""

from __future__ import annotations

import asyncio
import logging
import zlib

from spark_rocket.errors import ProtocolError
from spark_rocket.namesrv.kv_config import ORDER_TOPIC_CONFIG, KVConfigManager
from spark_rocket.namesrv.large_registrations import LargeRegistrations
from spark_rocket.namesrv.route_info import FLAG_UNIT, FLAG_UNIT_SUB, RouteInfoManager
from spark_rocket.protocol.requests import body_of
from spark_rocket.protocol.wire.bodies.config import DataVersion
from spark_rocket.protocol.wire.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.wire.bodies.route import (
    BrokerMemberGroup,
    GetBrokerMemberGroupResponseBody,
    KVTable,
    TopicList,
    TopicRouteData,
)
from spark_rocket.protocol.wire.codes import SEE_FAQ, STANDARD_JSON_VERSION, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.namesrv import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    BrokerHeartbeatRequestHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicRequestHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from spark_rocket.protocol.wire.headers.routes import GetKVListByNamespaceRequestHeader, GetRouteInfoRequestHeader
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import Handler, failure_of

logger = logging.getLogger(__name__)

_response = RemotingCommand.response

# Header fields of 5.x brokers and clients that are started with rocketmq.zone and rocketmq.zone.mode.
_ZONE_NAME, _ZONE_MODE = "__ZONE_NAME", "__ZONE_MODE"

_MAX_INLINE_BYTES = 32 * 1024  # bytes of a registration that is decoded on the event loop: some milliseconds


class NamesrvProcessor:
    """The name server's handlers."""

    def __init__(self, routes: RouteInfoManager, kv_config: KVConfigManager) -> None:
        self._routes = routes
        self._kv = kv_config
        self._large = LargeRegistrations()
        self._unsaved: list[tuple[Channel, RemotingCommand]] = []  # changes of the KV configuration
        # The supported settings of Apache's name server, with its defaults.
        self._settings = {"orderMessageEnable": "false", "enableTopicList": "true"}

    def handlers(self) -> dict[int, Handler]:
        code = RequestCode
        return {
            code.PUT_KV_CONFIG: self.put_kv_config,
            code.GET_KV_CONFIG: self.get_kv_config,
            code.DELETE_KV_CONFIG: self.delete_kv_config,
            code.GET_KVLIST_BY_NAMESPACE: self.get_kv_list,
            code.REGISTER_BROKER: self.register_broker,
            code.UNREGISTER_BROKER: self.unregister_broker,
            code.BROKER_HEARTBEAT: self.broker_heartbeat,
            code.QUERY_DATA_VERSION: self.query_data_version,
            code.GET_BROKER_MEMBER_GROUP: self.get_broker_member_group,
            code.GET_ROUTEINFO_BY_TOPIC: self.get_route_info,
            code.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
            code.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            code.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_all_topics,
            code.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            code.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            code.GET_TOPICS_BY_CLUSTER: self.get_topics_by_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics,
            code.GET_UNIT_TOPIC_LIST: self._unit_topics(FLAG_UNIT),
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_topics(FLAG_UNIT_SUB),
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_topics(FLAG_UNIT_SUB, forbidden=FLAG_UNIT),
            code.UPDATE_NAMESRV_CONFIG: self.update_config,
            code.GET_NAMESRV_CONFIG: self.get_config,
        }

    # --- brokers ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Save the KV configuration, and drop pending large registrations."""
        self._save()
        self._large.close()

    def channel_closed(self, channel: Channel) -> None:
        """Remove the brokers that registered over a closed connection."""
        self._large.withdraw(channel)
        self._routes.channel_closed(channel)

    def register_broker(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = RegisterBrokerRequestHeader.from_ext(request.ext_fields)
        if header.body_crc32 and zlib.crc32(request.body) & 0x7FFFFFFF != header.body_crc32:
            return _response(request, ResponseCode.SYSTEM_ERROR, "crc32 not match: the body was changed on its way")
        compressed = bool(header.compressed)
        if not request.body:  # brokers before 3.0.11 send none
            return self._register(channel, request, header, RegisterBrokerBody())
        if RegisterBrokerBody.is_short(request.body, compressed=compressed, most=_MAX_INLINE_BYTES):
            body = RegisterBrokerBody.decode(request.body, compressed=compressed)
            return self._register(channel, request, header, body)

        def done(read: RegisterBrokerBody | Exception) -> None:
            try:
                if isinstance(read, Exception):
                    raise read
                response = self._register(channel, request, header, read)
            except Exception as error:
                response = failure_of(channel, request, error)
            if not request.is_oneway:
                channel.write(response)

        self._large.read(channel, channel.remote_addr.rpartition(":")[0], request, compressed, done)
        return None

    def _register(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: RegisterBrokerRequestHeader,
        body: RegisterBrokerBody,
    ) -> RemotingCommand:
        wrapper = body.topic_config_serialize_wrapper
        registered = self._routes.register_broker(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_address=header.ha_server_addr,
            topics=wrapper.topic_config_table,
            data_version=wrapper.data_version,
            filter_servers=body.filter_server_list,
            timeout_ms=header.heartbeat_timeout_millis,
            enable_acting_master=header.enable_acting_master,
            zone_name=request.ext_fields.get(_ZONE_NAME),
            channel=channel,
        )
        ext = RegisterBrokerResponseHeader(registered.ha_server_addr, registered.master_addr).to_ext()
        order = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return _response(request, ext_fields=ext, body=b"" if order is None else KVTable(order).to_json())

    def unregister_broker(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = UnRegisterBrokerRequestHeader.from_ext(request.ext_fields)
        self._large.withdraw(channel)
        self._routes.unregister_broker(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        return _response(request)

    def broker_heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = BrokerHeartbeatRequestHeader.from_ext(request.ext_fields)
        self._routes.heartbeat(header.cluster_name, header.broker_addr)
        return _response(request)

    def query_data_version(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = QueryDataVersionRequestHeader.from_ext(request.ext_fields)
        known = self._routes.data_version_of(header.cluster_name, header.broker_addr)
        changed = known is None or known != body_of(request, DataVersion)
        if not changed:  # the broker will not register now, so this counts as its heartbeat
            self._routes.heartbeat(header.cluster_name, header.broker_addr)
        ext = QueryDataVersionResponseHeader(changed).to_ext()
        return _response(request, ext_fields=ext, body=b"" if known is None else known.to_json())

    def get_broker_member_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetBrokerMemberGroupRequestHeader.from_ext(request.ext_fields)
        members = self._routes.member_group(header.broker_name)
        group = BrokerMemberGroup(header.cluster_name, header.broker_name, members)
        return _response(request, body=GetBrokerMemberGroupResponseBody(group).to_json())

    def get_cluster_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return _response(request, body=self._routes.cluster_info().to_json())

    def wipe_write_perm(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = WipeWritePermOfBrokerRequestHeader.from_ext(request.ext_fields)
        count = self._routes.set_write_permission(header.broker_name, allowed=False)
        return _response(request, ext_fields=WipeWritePermOfBrokerResponseHeader(count).to_ext())

    def add_write_perm(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = AddWritePermOfBrokerRequestHeader.from_ext(request.ext_fields)
        count = self._routes.set_write_permission(header.broker_name, allowed=True)
        return _response(request, ext_fields=AddWritePermOfBrokerResponseHeader(count).to_ext())

    # --- topics -----------------------------------------------------------------------------------------------

    def get_route_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetRouteInfoRequestHeader.from_ext(request.ext_fields)
        route = self._routes.route(header.topic)
        if route is None:
            return _response(
                request,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}{SEE_FAQ}",
            )
        zone = request.ext_fields.get(_ZONE_NAME, "").strip()
        if zone and request.ext_fields.get(_ZONE_MODE, "").lower() == "true":
            route = _in_zone(route, zone)
        if self._is_on("orderMessageEnable"):
            route.order_topic_conf = self._kv.get(ORDER_TOPIC_CONFIG, header.topic)
        standard = request.version >= STANDARD_JSON_VERSION or bool(header.accept_standard_json_only)
        return _response(request, body=route.to_json(standard=standard))

    def get_all_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        if not self._is_on("enableTopicList"):
            return _response(request, ResponseCode.SYSTEM_ERROR, "disable")
        return _response(request, body=TopicList(self._routes.topics()).to_json())

    def register_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = RegisterTopicRequestHeader.from_ext(request.ext_fields)
        route = body_of(request, TopicRouteData)
        self._routes.register_topic(header.topic, route.queue_datas)
        return _response(request)

    def delete_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = DeleteTopicFromNamesrvRequestHeader.from_ext(request.ext_fields)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return _response(request)

    def get_topics_by_cluster(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetTopicsByClusterRequestHeader.from_ext(request.ext_fields)
        return _response(request, body=TopicList(self._routes.topics_of_cluster(header.cluster)).to_json())

    def get_system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        topics, address = self._routes.system_topics()
        return _response(request, body=TopicList(topics, address).to_json())

    def _unit_topics(self, required: int, forbidden: int = 0) -> Handler:
        return lambda channel, request: _response(
            request, body=TopicList(self._routes.unit_topics(required, forbidden)).to_json()
        )

    # --- configuration ----------------------------------------------------------------------------------------

    def put_kv_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = PutKVConfigRequestHeader.from_ext(request.ext_fields)
        self._kv.put(header.namespace, header.key, header.value)
        return self._when_saved(channel, request)

    def get_kv_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetKVConfigRequestHeader.from_ext(request.ext_fields)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            return _response(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return _response(request, ext_fields=GetKVConfigResponseHeader(value).to_ext())

    def delete_kv_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = DeleteKVConfigRequestHeader.from_ext(request.ext_fields)
        self._kv.delete(header.namespace, header.key)
        return self._when_saved(channel, request)

    def _when_saved(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Respond once the KV configuration is on disk; all changes of one iteration of the loop share one save."""
        if self._kv.is_saved:
            return _response(request)
        if not self._unsaved:
            asyncio.get_running_loop().call_soon(self._save)
        self._unsaved.append((channel, request))
        return None

    def _save(self) -> None:
        unsaved, self._unsaved = self._unsaved, []
        failure: Exception | None = None
        try:
            self._kv.save()
        except Exception as error:
            failure = error
        for channel, request in unsaved:
            response = _response(request) if failure is None else failure_of(channel, request, failure)
            if not request.is_oneway:
                channel.write(response)

    def get_kv_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetKVListByNamespaceRequestHeader.from_ext(request.ext_fields)
        entries = self._kv.namespace(header.namespace)
        if entries is None:
            return _response(request, ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}")
        return _response(request, body=KVTable(entries).to_json())

    def update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Apply properties text in the body; unknown names are ignored, as by Apache's server."""
        try:
            lines = str(request.body, "utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"The settings are not UTF-8 text: {error.reason}.") from None
        for line in lines:
            name, separator, value = line.partition("=")
            if separator and name.strip() in self._settings:
                self._settings[name.strip()] = value.strip().lower()
                logger.info("%s set %s to %s", channel, name.strip(), value.strip())
        return _response(request)

    def get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        text = "".join(f"{name}={value}\n" for name, value in self._settings.items())
        return _response(request, body=text.encode())

    def _is_on(self, setting: str) -> bool:
        return self._settings[setting] == "true"


def _in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """The route for a client of a zone: brokers of its zone, and those without a master for reads from slaves."""
    near = [
        broker
        for broker in route.broker_datas
        if broker.master_addr is None or (broker.zone_name or "").lower() == zone.lower()
    ]
    names = {broker.broker_name for broker in near}
    addresses = {address for broker in near for address in broker.broker_addrs.values()}
    return TopicRouteData(
        queue_datas=[queues for queues in route.queue_datas if queues.broker_name in names],
        broker_datas=near,
        filter_server_table={key: value for key, value in route.filter_server_table.items() if key in addresses},
    )
