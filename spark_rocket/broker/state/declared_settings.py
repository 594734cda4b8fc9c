"""The settings of a broker: name, default, range and meaning of each. ``broker_config.py`` reads and checks them.

``make tables`` writes them into ``docs/reference/settings.md``, by section; links are relative to that page.

Corresponds to org.apache.rocketmq.common.BrokerConfig, NettyServerConfig.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial

from spark_rocket.errors import ConfigError
from spark_rocket.model import TRACE_TOPIC
from spark_rocket.protocol.auth import inner_credentials
from spark_rocket.protocol.auth_settings import (
    AUTHENTICATION_PROVIDER,
    AUTHENTICATION_STRATEGIES,
    AUTHORIZATION_PROVIDER,
    AUTHORIZATION_STRATEGIES,
    LOCAL_AUTHENTICATION,
    LOCAL_AUTHORIZATION,
    codes,
    one_class,
)
from spark_rocket.protocol.durability import BrokerRole
from spark_rocket.protocol.setting import setting
from spark_rocket.remoting.http.monitor import MetricsExporterType
from spark_rocket.remoting.name_server_list import check_address, check_addresses

MASTER_ID = 0
_MAX_NAME_BYTES = 100


class MessageRequestMode(Enum):
    """How consumers receive messages; code 401 overrides it for a group."""

    PULL = "PULL"
    POP = "POP"


def _property_value(text: str) -> None:
    if len(text) > 255 or not text.isprintable():
        raise ConfigError(
            f"Invalid regionId {text[:255]!r}: it is stored with every message.",
            remedy="Use at most 255 characters, without control characters.",
        )


def _check_name(setting: str, text: str) -> None:
    """Topics and their directories have the name behind a prefix (rmq_sys_SYNC_BROKER_MEMBER_), 127 bytes in all."""
    if not text or len(text.encode()) > _MAX_NAME_BYTES or not text.isprintable() or "/" in text or text in (".", ".."):
        raise ConfigError(
            f"Invalid {setting} {text[:40]!r}{'…' if len(text) > 40 else ''}: topics and files are named after it.",
            remedy=f"Use at most {_MAX_NAME_BYTES} bytes, without / and control characters.",
        )


# By section of the reference.
_cluster = partial(setting, section="Cluster and network")
_replication = partial(setting, section="Replication")
_access = partial(setting, section="Access control and metrics")
_topics = partial(setting, section="Topics, groups and sends")
_delays = partial(setting, section="Delays, recalls and transactions")
_pulls = partial(setting, section="Pull, POP and queries")
_overload = partial(setting, section="Overload")
_retention = partial(setting, section="Retention")


@dataclass(slots=True)
class DeclaredSettings:
    """The settings of ``broker.conf`` but those of the store. Property names are the fields in camel case."""

    broker_cluster_name: str = _cluster(
        "DefaultCluster", "the cluster that the broker belongs to", check=partial(_check_name, "brokerClusterName")
    )
    broker_name: str = _cluster(
        "broker-a",
        "the name that a master and its slaves share. Apache's default: the host's name",
        check=partial(_check_name, "brokerName"),
    )
    broker_id: int = _cluster(MASTER_ID, "0 for a master, above 0 for a slave", low=0, high=2**31 - 1)
    broker_role: BrokerRole = _cluster(  # noqa: RUF009 - makes a field
        BrokerRole.ASYNC_MASTER,
        "what the broker is, and when it acknowledges sends: [operations](../guides/operations.md#start-a-cluster)",
    )

    bind_address: str = _cluster(
        "127.0.0.1", "the address to listen on; `0.0.0.0` for all addresses. Apache's default: `0.0.0.0`"
    )
    listen_port: int = _cluster(10911, "the port for clients; 0 for a free port", low=0, high=65535)
    vip_channel_enable: bool = _cluster(
        True,
        "also listen on the VIP port, `listenPort` - 2, for Apache's slaves and Java clients with "
        "`vipChannelEnabled=true`. Not with `listenPort=0`. Off in `LocalCluster`. *Own*",
    )
    broker_ip1: str = _cluster(
        "",
        "the address that clients and slaves connect to. Default: `bindAddress`, or with `0.0.0.0` the machine's "
        "own address",
        name="brokerIP1",
    )
    namesrv_addr: str = _cluster(
        "", "the name servers, `host:port` separated by `;`. `rocket up` adds its own", check=check_addresses
    )
    register_name_server_period: int = _cluster(
        30_000, "milliseconds between two registrations", low=1_000, high=60_000
    )
    register_broker_timeout_mills: int = _cluster(
        3_000,
        "timeout of a registration in milliseconds, plus a second for each MiB. Apache's default: 24,000; in 4.9 6,000",
        low=1,
    )
    enable_split_registration: bool = _cluster(
        False,
        "divide registrations into requests of `splitRegistrationSize` topics. Registrations of more than 12 MiB "
        "are always divided",
        dynamic=True,
    )
    split_registration_size: int = _cluster(800, "topics of one request", low=2, dynamic=True)
    ha_listen_port: int = _replication(0, "the port for slaves; 0: `listenPort` + 1", low=0, high=65535)
    ha_master_address: str = _replication(
        "", "the master's `host:haListenPort`, for a slave without name servers", check=check_address
    )
    ha_send_heartbeat_interval: int = _replication(
        5_000,
        "milliseconds between two reports of a slave, or heartbeats of a master, without other data",
        low=1,
        dynamic=True,
    )
    ha_housekeeping_interval: int = _replication(
        20_000, "milliseconds without data until the connection between master and slave is closed", low=1, dynamic=True
    )
    ha_max_gap_not_in_sync: int = _replication(
        256 * 1024 * 1024,
        "a `SYNC_MASTER` does not wait for a slave that is this many bytes behind (256 MiB)",
        low=1,
        dynamic=True,
    )
    slave_timeout: int = _replication(
        3_000,
        "milliseconds that a `SYNC_MASTER` waits for a slave; then the send has the status `FLUSH_SLAVE_TIMEOUT`",
        low=1,
        dynamic=True,
    )
    slave_read_enable: bool = _replication(
        False, "pull responses suggest a slave to groups that are far behind", dynamic=True
    )
    access_message_in_memory_max_ratio: int = _replication(
        40,
        "percentage of the machine's memory. Messages further from the end of the log count as not in memory: "
        "groups that read them are far behind, and new POP groups do not start with them",
        low=0,
        high=100,
        dynamic=True,
    )
    offset_check_in_slave: bool = _replication(
        False,
        "a slave answers a pull beyond its queue with `PULL_OFFSET_MOVED` (21). Default: pull again (20), because "
        "the slave may be behind",
        dynamic=True,
    )

    acl_enable: bool = _access(
        False, "check signatures and permissions ([security](../guides/security.md#access-control))"
    )
    acl_file: str = _access(
        "",
        "the file with the accounts, relative to the directory of `broker.conf`. Default: `plain_acl.yml`. Without"
        " `broker.conf`: in `config` of the store. A system property in Apache's",
    )
    authentication_enabled: bool = _access(
        False,
        "require signatures of users ([ACL 2.0](../guides/accounts.md#users-with-acl-20)); not together with "
        "`aclEnable`",
    )
    authentication_provider: str = _access(
        "",
        "Apache's `DefaultAuthenticationProvider`, with its package, or nothing; other classes are refused",
        check=one_class("authenticationProvider", AUTHENTICATION_PROVIDER),
    )
    authentication_metadata_provider: str = _access(
        "", "Apache's `LocalAuthenticationMetadataProvider`, or nothing", check=LOCAL_AUTHENTICATION
    )
    authentication_strategy: str = _access(
        "",
        "Apache's `StatelessAuthenticationStrategy` (default), which verifies every signature, or "
        "`StatefulAuthenticationStrategy`: after a verified request, a connection's requests of the same code, "
        "user and names are not verified until users or policies change ([costs and "
        "risks](../guides/accounts.md#verify-once-per-connection))",
        check=one_class("authenticationStrategy", *AUTHENTICATION_STRATEGIES),
    )
    authentication_whitelist: str = _access(
        "",
        "request codes that need no signature, separated by commas. With `authorizationEnabled` they must be in "
        "`authorizationWhitelist`, too",
        check=codes("authenticationWhitelist"),
    )
    init_authentication_user: str = _access(
        "", 'the first Super user, created unless it exists: `{"username": "…", "password": "…"}`', secret=True
    )
    authorization_enabled: bool = _access(False, "require policies, too. Without it, every user may do everything")
    authorization_provider: str = _access(
        "",
        "Apache's `DefaultAuthorizationProvider`, or nothing",
        check=one_class("authorizationProvider", AUTHORIZATION_PROVIDER),
    )
    authorization_metadata_provider: str = _access(
        "", "Apache's `LocalAuthorizationMetadataProvider`, or nothing", check=LOCAL_AUTHORIZATION
    )
    authorization_strategy: str = _access(
        "",
        "Apache's `StatelessAuthorizationStrategy` or `StatefulAuthorizationStrategy`. What was decided is "
        "remembered per connection with both",
        check=one_class("authorizationStrategy", *AUTHORIZATION_STRATEGIES),
    )
    authorization_whitelist: str = _access(
        "", "request codes that need no policy", check=codes("authorizationWhitelist")
    )
    auth_config_path: str = _access("", "the directory of `users.json`. Default: `config/auth` of the store")
    migrate_auth_from_v1_enabled: bool = _access(
        False, "create the accounts of `aclFile` that do not exist as users, with their policies"
    )
    inner_client_authentication_credentials: str = _access(
        "",
        'the broker\'s own account, which signs its requests to name servers and to its master: `{"accessKey": "…",'
        ' "secretKey": "…"}`. With `authenticationEnabled` it is created as a Super user unless it exists',
        secret=True,
        check=inner_credentials,
    )

    metrics_exporter_type: MetricsExporterType = _access(  # noqa: RUF009 - makes a field
        MetricsExporterType.DISABLE,
        "`PROM` opens the port for [metrics and health](metrics.md). `OTLP_GRPC` and `LOG` are not supported: a "
        "warning. `rocket up`: `PROM`",
    )
    metrics_prom_exporter_host: str = _access("", "the address of the metrics port. Default: 127.0.0.1")
    metrics_prom_exporter_port: int = _access(5557, "the metrics port; 0 for a free port", low=0, high=65535)

    broker_permission: int = _topics(
        6, "the permissions of all topics of the broker: 4 read, 2 write, 6 both", low=0, high=7, dynamic=True
    )
    auto_create_topic_enable: bool = _topics(
        True,
        "create unknown topics with the first message. The template, topic `TBW102`, is created at start",
        dynamic=True,
    )
    auto_create_subscription_group: bool = _topics(True, "create unknown consumer groups", dynamic=True)
    max_auto_create_topics: int = _topics(
        10_000,
        "number of the broker's topics from which first messages create no more. *Own*",
        low=0,
        high=50_000,
        dynamic=True,
    )
    max_auto_create_groups: int = _topics(
        5_000,
        "number of the broker's consumer groups from which clients create no more. *Own*",
        low=0,
        high=20_000,
        dynamic=True,
    )
    cluster_topic_enable: bool = _topics(
        True, "the topic with the cluster's name can be read, written and used as a template"
    )
    broker_topic_enable: bool = _topics(True, "the same for the topic with the broker's name")
    default_topic_queue_nums: int = _topics(
        8,
        "the number of queues of the template `TBW102`, which is the maximum for new topics. A change takes effect"
        " at the next start",
        low=1,
        high=65_536,
        dynamic=True,
    )
    trace_topic_enable: bool = _topics(False, "create the trace topic at start")
    msg_trace_topic_name: str = _topics(TRACE_TOPIC, "the name of the trace topic")
    trace_on: bool = _topics(True, "tell clients to record traces (`TRACE_ON`)", dynamic=True)
    open_telemetry_enable: bool = _access(
        False, "create [OpenTelemetry spans](../guides/monitoring.md#opentelemetry). *Own*"
    )
    region_id: str = _topics(
        "DefaultRegion",
        "the region that messages and traces are labeled with (`MSG_REGION`); at most 255 characters",
        dynamic=True,
        check=_property_value,
    )
    store_reply_message_enable: bool = _topics(
        True, "store replies of request-reply messages besides forwarding them", dynamic=True
    )
    start_accept_send_request_time_stamp: int = _topics(
        0, "reject sends until this time (milliseconds since the epoch)", low=0, dynamic=True
    )

    flush_delay_offset_interval: int = _delays(
        10_000, "milliseconds between two saves of the progress of delay levels", low=100
    )
    timer_wheel_enable: bool = _delays(True, "messages with a delivery time of their own (timer messages)")
    timer_precision_ms: int = _delays(
        1_000,
        "precision of delivery times in milliseconds: 1000, 500, 200 or 100. Other values are rounded down, and up"
        " to 100",
        low=1,
    )
    timer_max_delay_sec: int = _delays(
        259_200,
        "maximum delay in seconds (three days); also the maximum invisible time of popped messages",
        low=1,
        high=2**31 - 1,
    )
    recall_message_enable: bool = _delays(
        False, "delayed messages can be recalled (request 370). `rocket up`, `LocalCluster`: `true`", dynamic=True
    )
    allow_recall_when_broker_not_writeable: bool = _delays(
        True, "also without write permission in `brokerPermission`", dynamic=True
    )

    reject_transaction_message: bool = _delays(False, "reject transactional messages", dynamic=True)
    transaction_time_out: int = _delays(
        6_000, "milliseconds until an undecided transaction is checked for the first time", low=0, dynamic=True
    )
    transaction_check_max: int = _delays(15, "number of checks before a transaction is abandoned", low=0, dynamic=True)
    transaction_check_interval: int = _delays(30_000, "milliseconds between two checks", low=1, dynamic=True)

    long_polling_enable: bool = _pulls(
        True, "hold pulls without messages for as long as the client requests", dynamic=True
    )
    short_polling_time_mills: int = _pulls(
        1_000, "hold them for this many milliseconds if `longPollingEnable=false`", low=0, high=60_000, dynamic=True
    )
    max_transfer_count_on_message_in_memory: int = _pulls(
        32,
        "messages in the response to a POP, or to a pull that requests no more than "
        "`maxTransferBytesOnMessageInMemory`",
        low=1,
        high=65_536,
        dynamic=True,
    )
    max_transfer_bytes_on_message_in_memory: int = _pulls(
        256 * 1024, "bytes in such a response (256 KiB)", low=1, high=15 * 1024 * 1024, dynamic=True
    )
    max_pull_bytes: int = _pulls(
        8 * 1024 * 1024,
        "bytes in the response to a pull that requests more than `maxTransferBytesOnMessageInMemory`, as Spark's do "
        "(8 MiB). *Own*",
        low=1,
        high=15 * 1024 * 1024,
        dynamic=True,
    )
    max_pull_msg_nums: int = _pulls(
        100_000,
        "messages in such a response. *Own*",
        low=1,
        high=1_000_000,
        dynamic=True,
    )
    max_held_pulls: int = _pulls(
        100_000, "number of pulls that are held; further ones are answered immediately. *Own*", low=0, dynamic=True
    )
    max_metrics_group_topics: int = _pulls(
        2_000,
        "pairs of a consumer group and a topic for which a scrape of `/metrics` has lags and counts. 2,000 cost "
        "100 ms of CPU time. `rocket_metrics_left_out` has the number of the others. *Own*",
        low=0,
        dynamic=True,
    )
    pop_polling_size: int = _pulls(
        1_024, "held POP requests per topic, group and queue; further ones get `POLLING_FULL`", low=0, dynamic=True
    )
    pop_polling_map_size: int = _pulls(
        100_000, "combinations of topic, group and queue with held POP requests", low=0, dynamic=True
    )
    max_pop_polling_size: int = _pulls(100_000, "held POP requests of the broker", low=0, dynamic=True)
    server_load_balancer_enable: bool = _pulls(
        True,
        "assign queues to the members of a group (request 400). `false`: each member gets all queues",
        dynamic=True,
    )
    default_message_request_mode: MessageRequestMode = _pulls(  # noqa: RUF009 - makes a field
        MessageRequestMode.PULL, "mode of groups without a mode of their own (request 401)", dynamic=True
    )
    default_pop_share_queue_num: int = _pulls(
        -1,
        "queues that POP members share if their group has no number of its own; -1: all queues",
        low=-1,
        high=2**31 - 1,
        dynamic=True,
    )
    default_query_max_num: int = _pulls(
        32, "messages in the response to a query by message id", low=1, high=1_024, dynamic=True
    )
    max_msgs_num_batch: int = _pulls(64, "messages in the response to a query by key", low=1, high=1_024, dynamic=True)
    lite_pull_message_enable: bool = _pulls(True, "serve request 361 (`LITE_PULL_MESSAGE`)", dynamic=True)
    enable_property_filter: bool = _pulls(
        False, "serve SQL92 filters. `rocket up`, `LocalCluster`: `true`", dynamic=True
    )
    enable_mixed_message_type: bool = _topics(
        False, "accept topics with `message.type=MIXED`. `rocket up`, `LocalCluster`: `true`", dynamic=True
    )
    use_server_side_reset_offset: bool = _pulls(
        True, "the broker resets offsets itself. `false`: it requests this from the members of the group", dynamic=True
    )

    enable_retry_topic_v2: bool = _pulls(
        False, "name the retry topics of POP groups `%RETRY%group+topic`, as new versions of Apache's do", dynamic=True
    )
    pop_from_retry_probability: int = _pulls(
        20, "percentage of POP requests that read the retry topic first", low=0, high=100, dynamic=True
    )

    channel_expired_timeout: int = _cluster(
        120_000, "milliseconds without a heartbeat until a client is removed from its groups", low=1_000, dynamic=True
    )
    server_channel_max_idle_time_seconds: int = _cluster(
        120, "seconds without data until a connection is closed", low=1, high=86_400
    )
    flush_consumer_offset_interval: int = _pulls(
        5_000, "milliseconds between two saves of the consumer offsets", low=100
    )
    rebalance_lock_max_live_time: int = _pulls(
        60_000, "milliseconds until the queue lock of an ordered consumer expires", low=1_000
    )

    broker_fast_failure_enable: bool = _overload(
        True, "reject requests that are queued for too long (`waitTimeMillsIn…`)", dynamic=True
    )
    send_thread_pool_queue_capacity: int = _overload(10_000, "queued sends", low=1, dynamic=True)
    put_thread_pool_queue_capacity: int = _overload(
        10_000, "sends that wait for the disk or for slaves", low=1, dynamic=True
    )
    pull_thread_pool_queue_capacity: int = _overload(100_000, "queued pulls and POP requests", low=1, dynamic=True)
    ack_thread_pool_queue_capacity: int = _overload(100_000, "queued acks", low=1, dynamic=True)
    query_thread_pool_queue_capacity: int = _overload(20_000, "queued queries of messages", low=1, dynamic=True)
    heartbeat_thread_pool_queue_capacity: int = _overload(50_000, "queued heartbeats", low=1, dynamic=True)
    end_transaction_pool_queue_capacity: int = _overload(
        100_000, "queued decisions of transactions", low=1, dynamic=True
    )
    admin_broker_thread_pool_queue_capacity: int = _overload(
        10_000, "queued requests of other kinds", low=1, dynamic=True
    )
    wait_time_mills_in_send_queue: int = _overload(
        2_000, "milliseconds that a send is queued at most. Apache's default: 200", low=0, dynamic=True
    )
    wait_time_mills_in_pull_queue: int = _overload(
        5_000, "milliseconds that a pull is queued at most", low=0, dynamic=True
    )
    wait_time_mills_in_ack_queue: int = _overload(3_000, "the same for acks", low=0, dynamic=True)
    wait_time_mills_in_heartbeat_queue: int = _overload(31_000, "the same for heartbeats", low=0, dynamic=True)
    wait_time_mills_in_transaction_queue: int = _overload(
        3_000, "the same for decisions of transactions", low=0, dynamic=True
    )
    wait_time_mills_in_admin_broker_queue: int = _overload(
        5_000, "the same for requests of other kinds", low=0, dynamic=True
    )
    os_page_cache_busy_time_out_mills: int = _overload(
        1_000, "an append that takes this many milliseconds is slow", low=1, dynamic=True
    )
    server_oneway_semaphore_value: int = _overload(
        256, "one-way requests of the broker to clients that do not read", low=0, dynamic=True
    )
    server_async_semaphore_value: int = _overload(
        64, "pending requests of the broker, per connection", low=1, dynamic=True
    )
    max_connections: int = _overload(20_000, "connections. *Own*", low=1, dynamic=True)
    max_connections_per_address: int = _overload(
        0, "connections of one address; 0: no limit. *Own*", low=0, dynamic=True
    )
    first_request_timeout_millis: int = _overload(
        30_000, "milliseconds until the first byte of a new connection. *Own*", low=1, dynamic=True
    )
    slow_writer_timeout_millis: int = _overload(
        30_000, "milliseconds for a complete request, and a second more for each 16 KiB. *Own*", low=1, dynamic=True
    )
    slow_reader_timeout_millis: int = _overload(
        30_000, "milliseconds in which a client with unread responses reads nothing. *Own*", low=1, dynamic=True
    )
    max_waiting_request_bytes: int = _overload(
        256 * 1024 * 1024, "bytes of queued and incomplete requests (256 MiB). *Own*", low=1, dynamic=True
    )
    max_unread_answer_bytes: int = _overload(
        256 * 1024 * 1024, "bytes of responses that clients have not read (256 MiB). *Own*", low=1, dynamic=True
    )
    max_memory_bytes: int = _overload(
        0,
        "bytes of memory of the process; 0: three quarters of the memory of the machine or container. *Own*",
        low=0,
        dynamic=True,
    )
    clean_resource_interval: int = _retention(
        10_000, "milliseconds between two checks of the disk and of expired files", low=100
    )
