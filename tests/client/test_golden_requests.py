"""Every request that a client sends has the fields of the one that Apache's own client was recorded with.

Order of fields does not matter: ext fields are a map, and signatures sort them. What was not recorded is held against
the field tables of RocketMQ 5.3. Sends (310, 320) are compared value by value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

import spark_rocket.client
from spark_rocket.client import (
    Admin,
    Producer,
    Reader,
    TransactionProducer,
    create_reply_message,
)
from spark_rocket.client.consume.allocation import GroupMembers
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.queue_locks import QueueLocks
from spark_rocket.client.consume.services import SendBack
from spark_rocket.client.core.client_config import ClientConfig
from spark_rocket.client.core.instance import ClientInstance, acquire, release
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.protocol.ids import RecallMessageHandle, encode_offset_msg_id
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.wire.bodies.assignment import LockBatchResponseBody
from spark_rocket.protocol.wire.bodies.client import ConsumerData, GetConsumerListByGroupResponseBody, SubscriptionData
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupWrapper, TopicConfigSerializeWrapper
from spark_rocket.protocol.wire.bodies.route import KVTable, TopicList
from spark_rocket.protocol.wire.bodies.stats import (
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    OffsetWrapper,
    ProducerConnection,
    TopicStatsTable,
)
from spark_rocket.protocol.wire.codes import BROKER_NAME, ONE_LETTER_CODES, RequestCode
from spark_rocket.protocol.wire.command import FLAG_ONEWAY, RemotingCommand
from spark_rocket.protocol.wire.json import loads_tolerant
from tests import golden
from tests.client.consuming import SECONDS
from tests.client.producing import Decides
from tests.kit.scripted import QUEUE, FakeCluster, says

pytestmark = pytest.mark.live

FIELDS = {
    **dict.fromkeys(("offset", "timestamp", "queueOffset", "nextBeginOffset", "maxOffset"), "5"),
    **dict.fromkeys(("queueId", "minOffset", "suggestWhichBrokerId", "wipeTopicCount", "addTopicCount"), "0"),
    "msgId": "7F00000100002A9F0000000000000005",
    "value": "v",
}
MESSAGE = MessageExt(
    "t",
    b"x",
    {"UNIQ_KEY": "K", "CORRELATION_ID": "1", "REPLY_TO_CLIENT": "c", "TTL": "3000", "CLUSTER": "c"},
    broker_name="b0",
    physical_offset=5,
    store_host=("127.0.0.1", 1),
)


class Rig:
    """A fake cluster that accepts everything, and clients of it."""

    def __init__(self, mq: FakeCluster, stack: list[Callable[[], None]]) -> None:
        self.mq = mq
        self._stack = stack
        bodies = {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList(["t"]),
            RequestCode.GET_KVLIST_BY_NAMESPACE: KVTable({}),
            RequestCode.GET_BROKER_RUNTIME_INFO: KVTable({}),
            RequestCode.GET_TOPIC_STATS_INFO: TopicStatsTable(),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: GroupList(),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerConnection(),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: GetConsumerListByGroupResponseBody(["c"]),
            RequestCode.LOCK_BATCH_MQ: LockBatchResponseBody([]),
            RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigSerializeWrapper(),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupWrapper(),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: ProducerConnection(),
            RequestCode.GET_CONSUME_STATS: ConsumeStats({QUEUE: OffsetWrapper(9, 5, 1)}),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: TopicList(),
        }
        for server in (mq.name_server, *mq.brokers):
            for code in RequestCode:
                body = bodies[code].to_json() if code in bodies else b""
                server.responses.setdefault(code, says(0, ext=FIELDS, body=body))
        mq.everywhere(RequestCode.GET_MIN_OFFSET, says(0, ext=FIELDS | {"offset": "0"}))
        for name in ("t", "c_REPLY_TOPIC", "%RETRY%g"):
            mq.add(name, 1)
        self.name_server = mq.name_server.address

    def _closing(self, client: Any) -> Any:
        self._stack.append(client.close)
        return client

    def reader(self) -> Reader:
        return self._closing(Reader(self.name_server))

    def admin(self) -> Admin:
        return self._closing(Admin(self.name_server))

    def producer(self, **settings: Any) -> Producer:
        return self._closing(Producer("g", name_server=self.name_server, **settings))

    def transactions(self) -> TransactionProducer:
        return self._closing(TransactionProducer("g", Decides(), name_server=self.name_server))

    def instance(self) -> ClientInstance:
        shared = acquire(ClientConfig((self.name_server,)))
        self._stack.append(lambda: release(shared))
        shared.routes.route("t")
        return shared

    def member(self, kind: str = "TAG") -> None:
        """A consumer that starts and closes."""

        class Member:
            group = "g"

            def consumer_data(self) -> ConsumerData:
                return ConsumerData("g", subscription_data_set=[SubscriptionData.build("t", "a", 1, kind)])

            def rebalance(self) -> None: ...

            def persist_offsets(self) -> None: ...

        member = Member()
        members = self.instance().members
        members.join_consumer(member)
        members.leave_consumer(member)

    def host(self) -> tuple[str, int]:
        host, _, port = self.mq.brokers[0].address.rpartition(":")
        return host, int(port)

    def sent(self, code: int) -> RemotingCommand:
        """The last request with this code, at any server."""
        while True:
            every = [request for server in (self.mq.name_server, *self.mq.brokers) for request in server.requests]
            found = [request for request in every if request.code == code]
            if found:
                return found[-1]
            assert self.mq.brokers[0].arrived.acquire(timeout=SECONDS)  # a one-way request is still on its way


@pytest.fixture
def rig(fake: Callable[..., FakeCluster]) -> Iterator[Rig]:
    stack: list[Callable[[], None]] = []
    yield Rig(fake(1), stack)
    for close in reversed(stack):
        close()


def recall(rig: Rig) -> None:
    rig.producer().recall_message("t", RecallMessageHandle("t", "b0", "1", "K").encode())


C = RequestCode
SENDS: dict[int, Callable[[Rig], object]] = {
    C.SEND_MESSAGE_V2: lambda rig: rig.producer().send(Message.of("t", "x")),
    C.SEND_BATCH_MESSAGE: lambda rig: rig.producer().send([Message.of("t", "x")]),
    C.SEND_REPLY_MESSAGE_V2: lambda rig: rig.producer().send(create_reply_message(MESSAGE, b"y")),
    C.END_TRANSACTION: lambda rig: rig.transactions().send_in_transaction(Message.of("t", "x")),
    C.RECALL_MESSAGE: recall,
    C.PULL_MESSAGE: lambda rig: rig.reader().pull(QUEUE, 5, suspend_ms=1),
    C.QUERY_CONSUMER_OFFSET: lambda rig: rig.reader().committed_offset("g", QUEUE),
    C.UPDATE_CONSUMER_OFFSET: lambda rig: rig.reader().commit_offset("g", QUEUE, 5, oneway=False),
    C.SEARCH_OFFSET_BY_TIMESTAMP: lambda rig: rig.reader().offset_for_time(QUEUE, 5),
    C.GET_MAX_OFFSET: lambda rig: rig.reader().max_offset(QUEUE),
    C.GET_MIN_OFFSET: lambda rig: rig.reader().min_offset(QUEUE),
    C.GET_EARLIEST_MSG_STORETIME: lambda rig: rig.reader().earliest_store_time(QUEUE),
    C.HEART_BEAT: Rig.member,
    C.UNREGISTER_CLIENT: Rig.member,
    C.CHECK_CLIENT_CONFIG: lambda rig: rig.member("SQL92"),
    C.CONSUMER_SEND_MSG_BACK: lambda rig: SendBack(rig.instance(), "g", 16).send(MESSAGE),
    C.GET_CONSUMER_LIST_BY_GROUP: lambda rig: GroupMembers("g", rig.instance).client_ids("t"),
    C.LOCK_BATCH_MQ: lambda rig: QueueLocks(rig.instance, "g").renew([ProcessQueue(QUEUE)]),
    C.UNLOCK_BATCH_MQ: lambda rig: QueueLocks(rig.instance, "g").unlock([QUEUE]),
    C.GET_ROUTEINFO_BY_TOPIC: lambda rig: rig.reader().queues("t"),
    C.GET_BROKER_CLUSTER_INFO: lambda rig: rig.admin().cluster_info(),
    C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda rig: rig.admin().topics(),
    C.UPDATE_AND_CREATE_TOPIC: lambda rig: rig.admin().create_topic("t", 1),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: lambda rig: rig.admin().create_group("g"),
    C.DELETE_TOPIC_IN_BROKER: lambda rig: rig.admin().delete_topic("t"),
    C.DELETE_TOPIC_IN_NAMESRV: lambda rig: rig.admin().delete_topic("t", cluster="c"),
    C.GET_TOPIC_STATS_INFO: lambda rig: rig.admin().topic_stats("t"),
    C.QUERY_TOPIC_CONSUME_BY_WHO: lambda rig: rig.admin().groups_of("t"),
    C.GET_CONSUMER_CONNECTION_LIST: lambda rig: rig.admin().consumers("g", "t"),
    C.VIEW_MESSAGE_BY_ID: lambda rig: rig.admin().view_message(encode_offset_msg_id(rig.host(), 5)),
    C.GET_ALL_TOPIC_CONFIG: lambda rig: rig.admin().topic_configs("b0"),
    C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda rig: rig.admin().subscription_groups("b0"),
    C.GET_PRODUCER_CONNECTION_LIST: lambda rig: rig.admin().producers("g"),
    C.GET_CONSUME_STATS: lambda rig: rig.admin().consume_stats("g", broker="b0"),
    C.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda rig: rig.reader().topics(),
    C.QUERY_CONSUME_QUEUE: lambda rig: rig.reader().message_sizes_later(QUEUE, 0, 1).result(SECONDS),
    C.QUERY_MESSAGE: lambda rig: rig.admin().query_messages("t", "k"),
    C.GET_BROKER_CONFIG: lambda rig: rig.admin().broker_config("b0"),
    C.UPDATE_BROKER_CONFIG: lambda rig: rig.admin().update_broker_config("b0", {"a": "b"}),
    C.GET_BROKER_RUNTIME_INFO: lambda rig: rig.admin().runtime_info("b0"),
    C.WIPE_WRITE_PERM_OF_BROKER: lambda rig: rig.admin().wipe_write_perm("b0"),
    C.ADD_WRITE_PERM_OF_BROKER: lambda rig: rig.admin().add_write_perm("b0"),
    C.PUT_KV_CONFIG: lambda rig: rig.admin().put_kv_config("n", "k", "v"),
    C.GET_KV_CONFIG: lambda rig: rig.admin().get_kv_config("n", "k"),
    C.DELETE_KV_CONFIG: lambda rig: rig.admin().delete_kv_config("n", "k"),
    C.GET_KVLIST_BY_NAMESPACE: lambda rig: rig.admin().kv_configs("n"),
    C.GET_TOPIC_CONFIG: lambda rig: rig.admin().topic_config("t", broker="b0"),
    C.DELETE_SUBSCRIPTIONGROUP: lambda rig: rig.admin().delete_group("g"),
    C.CLONE_GROUP_OFFSET: lambda rig: rig.admin().clone_offsets("g", "h", "t"),
    C.INVOKE_BROKER_TO_RESET_OFFSET: lambda rig: rig.admin()._invoke_reset("g", "t", "b0", 5),
    C.QUERY_CONSUME_TIME_SPAN: lambda rig: rig.admin().group_state("g", topic="t"),
    C.GET_ALL_PRODUCER_INFO: lambda rig: rig.admin().producer_groups(),
    C.VIEW_BROKER_STATS_DATA: lambda rig: rig.admin().broker_stats("b0", "TOPIC_PUT_NUMS", "t"),
    C.CLEAN_EXPIRED_CONSUMEQUEUE: lambda rig: rig.admin().clean_expired_queues("b0"),
    C.CLEAN_UNUSED_TOPIC: lambda rig: rig.admin().clean_unused_topics("b0"),
    C.DELETE_EXPIRED_COMMITLOG: lambda rig: rig.admin().delete_expired_commit_log("b0"),
    C.GET_BROKER_HA_STATUS: lambda rig: rig.admin().ha_status("b0"),
    C.GET_TIMER_METRICS: lambda rig: rig.admin().timer_metrics("b0"),
    C.GET_NAMESRV_CONFIG: lambda rig: rig.admin().name_server_configs(),
    C.UPDATE_NAMESRV_CONFIG: lambda rig: rig.admin().update_name_server_config({"a": "b"}),
    C.UPDATE_AND_CREATE_ACL_CONFIG: lambda rig: rig.admin().update_account("key", admin=False, topic_perms=["t=PUB"]),
    C.DELETE_ACL_CONFIG: lambda rig: rig.admin().delete_account("access"),
    C.GET_BROKER_CLUSTER_ACL_INFO: lambda rig: rig.admin().acl_versions(),
    C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: lambda rig: rig.admin().update_global_white_addrs(["*"]),
    C.GET_BROKER_CLUSTER_ACL_CONFIG: lambda rig: rig.admin().acl_config("b0"),
    C.AUTH_CREATE_USER: lambda rig: rig.admin().create_user("ada", "secret"),
    C.AUTH_UPDATE_USER: lambda rig: rig.admin().update_user("ada", user_status="disable"),
    C.AUTH_DELETE_USER: lambda rig: rig.admin().delete_user("ada"),
    C.AUTH_LIST_USER: lambda rig: rig.admin().users("b0"),
    C.AUTH_GET_USER: lambda rig: rig.admin().user("b0", "ada"),
    C.AUTH_GET_ACL: lambda rig: rig.admin().acl("b0", "ada"),
    C.AUTH_UPDATE_ACL: lambda rig: rig.admin().put_permission("ada", "Topic:t", ["Pub"]),
    C.AUTH_DELETE_ACL: lambda rig: rig.admin().delete_permission("ada", "Topic:t"),
    C.AUTH_LIST_ACL: lambda rig: rig.admin().acls("b0"),
}

# Requests that were not recorded: fields, their content, and whether a broker requires them.
TABLES: dict[int, dict[str, tuple[str, bool]]] = {
    C.SEND_REPLY_MESSAGE_V2: {
        **dict.fromkeys("abc", ("text", True)),
        **dict.fromkeys("defgh", ("number", True)),
        "i": ("text", False),
        "j": ("number", False),
        "k": ("truth", False),
        "l": ("number", False),
        "m": ("truth", False),
        "n": ("text", False),
    },
    C.RECALL_MESSAGE: {"producerGroup": ("text", False), "topic": ("text", True), "recallHandle": ("text", True)},
    C.GET_EARLIEST_MSG_STORETIME: {"topic": ("text", True), "queueId": ("number", True), "bname": ("text", False)},
    C.CHECK_CLIENT_CONFIG: {},
    C.GET_CONSUMER_CONNECTION_LIST: {"consumerGroup": ("text", True)},
    C.GET_PRODUCER_CONNECTION_LIST: {"producerGroup": ("text", True)},
    C.GET_ALL_TOPIC_CONFIG: {"topicSeq": ("number", True)},
    C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {"groupSeq": ("number", True)},
    C.GET_SYSTEM_TOPIC_LIST_FROM_NS: {},
    C.QUERY_CONSUME_QUEUE: {
        **dict.fromkeys(("queueId", "index", "count"), ("number", False)),
        **dict.fromkeys(("topic", "consumerGroup", "bname"), ("text", False)),
    },
    C.GET_KV_CONFIG: {"namespace": ("text", True), "key": ("text", True)},
    C.GET_KVLIST_BY_NAMESPACE: {"namespace": ("text", True)},
    C.GET_TOPIC_CONFIG: {"topic": ("text", True), "lo": ("truth", False)},
    C.CLONE_GROUP_OFFSET: {
        **dict.fromkeys(("srcGroup", "destGroup"), ("text", True)),
        "topic": ("text", False),
        "offline": ("truth", False),
    },
    C.QUERY_CONSUME_TIME_SPAN: {"topic": ("text", True), "group": ("text", True)},
    C.VIEW_BROKER_STATS_DATA: {"statsName": ("text", True), "statsKey": ("text", True)},
    C.UPDATE_AND_CREATE_ACL_CONFIG: {
        "accessKey": ("text", True),
        "admin": ("truth", True),
        **dict.fromkeys(("secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm"), ("text", False)),
        **dict.fromkeys(("topicPerms", "groupPerms"), ("text", False)),
    },
    C.DELETE_ACL_CONFIG: {"accessKey": ("text", True)},
    **{code: {"username": ("text", False)} for code in (C.AUTH_CREATE_USER, C.AUTH_UPDATE_USER, C.AUTH_DELETE_USER)},
    C.AUTH_GET_USER: {"username": ("text", False)},
    C.AUTH_GET_ACL: {"subject": ("text", False)},
    C.AUTH_LIST_USER: {"filter": ("text", False)},
    C.AUTH_UPDATE_ACL: {"subject": ("text", False)},
    C.AUTH_DELETE_ACL: dict.fromkeys(("subject", "policyType", "resource"), ("text", False)),
    C.AUTH_LIST_ACL: dict.fromkeys(("subjectFilter", "resourceFilter"), ("text", False)),
    C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: {"globalWhiteAddrs": ("text", True), "aclFileFullPath": ("text", True)},
    **{
        code: {}
        for code in (
            *(C.GET_ALL_PRODUCER_INFO, C.CLEAN_EXPIRED_CONSUMEQUEUE, C.CLEAN_UNUSED_TOPIC, C.DELETE_EXPIRED_COMMITLOG),
            *(C.GET_BROKER_HA_STATUS, C.GET_TIMER_METRICS, C.UPDATE_NAMESRV_CONFIG),
            *(C.GET_BROKER_CLUSTER_ACL_INFO, C.GET_BROKER_CLUSTER_ACL_CONFIG),
        )
    },
}

SIGNING = {"AccessKey", "Signature"}  # of clients that sign; ours does not yet
OF_JAVA = {"ReqT"}  # some requests of Java's clients since 4.9 repeat the encoding of their header

# Fields that only one side has, with the reason.
ONLY_OURS: dict[int, dict[str, str]] = {
    C.QUERY_CONSUMER_OFFSET: {
        "setZeroIfNotFound": "5.x: distinguishes a new group from one at offset 0; 4.9 ignores it"
    },
    C.GET_ROUTEINFO_BY_TOPIC: {"acceptStandardJsonOnly": "5.x: quoted keys for any version"},
    C.END_TRANSACTION: {"topic": "5.x: for the proxy"},
    C.UPDATE_AND_CREATE_TOPIC: {"force": "5.x: whether topics of the system may be changed, which is never asked"},
    C.DELETE_SUBSCRIPTIONGROUP: {"cleanOffset": "since 4.9: whether where it is goes with the group"},
    C.INVOKE_BROKER_TO_RESET_OFFSET: {"queueId": "5.x: one queue; -1 for all of them"},
    C.GET_MAX_OFFSET: {"committed": "since 5.0: the end of what may be read, the only one that 4.9 has"},
}
ONLY_JAVAS: dict[int, dict[str, str]] = {
    C.QUERY_MESSAGE: {"_UNIQUE_KEY_QUERY": "a key of either kind is looked for, and the client compares the keys"},
}
ACKNOWLEDGED = {  # requests that Java sends one-way
    C.UPDATE_CONSUMER_OFFSET: "brokers of 5.x reject unknown groups, and their response reports it",
}


def frames(code: int) -> list[golden.GoldenFrame]:
    return [frame for frame in golden.frames() if frame.is_request and frame.request_code == code]


def recorded(code: int) -> list[RemotingCommand]:
    return [RemotingCommand.decode(frame.raw[4:]) for frame in frames(code)]


def holds(value: str) -> str:
    return "truth" if value in ("true", "false") else "number" if re.fullmatch(r"-?\d+", value) else "text"


def own_fields(command: RemotingCommand) -> set[str]:
    return set(command.ext_fields) - SIGNING - OF_JAVA - {BROKER_NAME}


def names_in(body: Any) -> set[str]:
    """The names of all fields of a JSON body, at any depth."""
    if isinstance(body, dict):
        return set(body).union(*map(names_in, body.values()))
    return set().union(*map(names_in, body)) if isinstance(body, list) else set()


@pytest.mark.parametrize("code", sorted(SENDS), ids=lambda code: f"{code}-{RequestCode(code).name}")
def test_a_request_has_javas_fields(code: int, rig: Rig) -> None:
    try:
        SENDS[code](rig)
    except (RocketError, IndexError):  # the content of the response does not matter here
        pass
    for broker, name in zip(rig.mq.brokers, ("b0", "b1"), strict=False):
        for request in broker.requests:
            field = "n" if request.code in ONE_LETTER_CODES else BROKER_NAME
            assert request.ext_fields[field] == name, f"{RequestCode(request.code).name}: a proxy needs the name"
    ours, java = rig.sent(code), recorded(code)
    assert int(ours.code) == code
    assert ours.version >= 401, "brokers since 4.9.4 respond to such clients in standard JSON"
    if not java:
        table = TABLES[code]
        assert own_fields(ours) <= set(table)
        assert {name for name, (_, required) in table.items() if required} <= own_fields(ours)
        assert {name: holds(ours.ext_fields[name]) for name in own_fields(ours) - {"c"}} == {
            name: table[name][0] for name in own_fields(ours) - {"c"}
        }
        return
    assert code not in TABLES, "it was recorded"
    always = set.intersection(*map(own_fields, java))
    ever = set.union(*map(own_fields, java))
    assert own_fields(ours) - ever == set(ONLY_OURS.get(code, {}))
    assert always - own_fields(ours) == set(ONLY_JAVAS.get(code, {}))
    for name in own_fields(ours) & ever:
        texts = {one.ext_fields[name] for one in java if name in one.ext_fields}
        assert holds(ours.ext_fields[name]) in {holds(text) for text in texts}, name
    oneway = {bool(one.flag & FLAG_ONEWAY) for one in java}
    assert code in ACKNOWLEDGED or bool(ours.flag & FLAG_ONEWAY) in oneway
    if any(one.body for one in java) and bytes(ours.body)[:1] == b"{":
        theirs = set().union(*(names_in(loads_tolerant(one.body)) for one in java))
        assert names_in(loads_tolerant(ours.body)) - theirs <= ONLY_IN_OUR_BODIES.get(code, set())


ONLY_IN_OUR_BODIES: dict[int, set[str]] = {
    C.HEART_BEAT: {
        *("heartbeatFingerprint", "withoutSub"),  # 5.x
        # No subscription was recorded; these names are from the field tables.
        *("classFilterMode", "codeSet", "expressionType", "subString", "subVersion", "tagsSet", "topic"),
    },
    C.LOCK_BATCH_MQ: {"onlyThisBroker"},  # 5.x
    C.UNLOCK_BATCH_MQ: {"onlyThisBroker"},
    # 5.x
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {
        *("attributes", "consumeMessageOrderly", "consumeTimeoutMinute", "groupSysFlag"),
    },
}


def test_json_headers_have_the_same_names() -> None:
    """What is not an ext field: every header that was recorded in JSON, and ours."""
    every = set()
    for frame in golden.frames():
        if frame.is_request and frame.index["serialize"] == "JSON":
            length = int.from_bytes(frame.raw[5:8], "big")
            every |= set(orjson.loads(frame.raw[8 : 8 + length]))
    raw = RemotingCommand.request(RequestCode.PULL_MESSAGE, {"a": "b"}).encode()
    ours = orjson.loads(raw[8 : 8 + int.from_bytes(raw[5:8], "big")])
    assert set(ours) == every


def test_every_request_code_of_the_clients_is_covered() -> None:
    """The codes in the sources of the client, except those of requests from brokers to clients."""
    asked_of_clients = {
        C.NOTIFY_CONSUMER_IDS_CHANGED,
        C.RESET_CONSUMER_CLIENT_OFFSET,
        C.GET_CONSUMER_STATUS_FROM_CLIENT,
        C.GET_CONSUMER_RUNNING_INFO,
        C.CONSUME_MESSAGE_DIRECTLY,
        C.CHECK_TRANSACTION_STATE,
        C.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
    sources = Path(spark_rocket.client.__file__).parent.rglob("*.py")
    names = {name for path in sources for name in re.findall(r"RequestCode\.([A-Z]\w+)", path.read_text("utf-8"))}
    assert {RequestCode[name] for name in names} - asked_of_clients == set(SENDS)
    assert set(TABLES) == {code for code in SENDS if not recorded(code)}, "what was recorded is held against that"


# --- sends, value by value ------------------------------------------------------------------------------------------

BORN = "g"  # the only field whose value differs each time


@pytest.fixture
def sent(
    fake: Callable[..., FakeCluster], closing: Callable[[Producer], Producer]
) -> Callable[[RemotingCommand, Any], RemotingCommand]:
    def send(like: RemotingCommand, messages: Message | list[Message]) -> RemotingCommand:
        mq = fake(1)
        ext = like.ext_fields
        topic, queue_id = ext["b"], int(ext["e"])
        mq.add(topic, queues=queue_id + 1)
        mq.accept()
        producer = closing(Producer(ext["a"], name_server=mq.name_server.address, member=False))
        producer.send(messages, queue=MessageQueue(topic, "b0", queue_id))
        (request,) = mq.brokers[0].requests
        return request

    return send


def with_body(frame: golden.GoldenFrame) -> bool:
    """Apache's client refuses to send messages without one, so one recorded message was built by hand."""
    return frame.index["bodyLength"] > 0


@pytest.mark.parametrize("frame", [frame for frame in frames(310) if with_body(frame)], ids=lambda frame: frame.name)
def test_a_single_send(frame: golden.GoldenFrame, sent: Callable[..., RemotingCommand]) -> None:
    java = RemotingCommand.decode(frame.raw[4:])
    ext = java.ext_fields
    properties = decode_properties(ext["i"])
    ours = sent(java, Message(ext["b"], bytes(java.body), properties, int(ext["h"])))
    assert (ours.code, bytes(ours.body), ours.flag & 1) == (java.code, java.body, 0)
    assert ours.ext_fields.keys() == ext.keys()
    kept = ext.keys() - {BORN, "i", "n"}
    assert {name: ours.ext_fields[name] for name in kept} == {name: ext[name] for name in kept}
    assert decode_properties(ours.ext_fields["i"]) == properties


@pytest.mark.parametrize("frame", frames(320), ids=lambda frame: frame.name)
def test_a_batch(frame: golden.GoldenFrame, sent: Callable[..., RemotingCommand]) -> None:
    java = RemotingCommand.decode(frame.raw[4:])
    ext = java.ext_fields
    parts = decode_batch_body(bytes(java.body))
    messages = [Message(ext["b"], bytes(body), decode_properties(raw), flag) for flag, body, raw in parts]
    ours = sent(java, messages)
    assert [(flag, bytes(body)) for flag, body, _ in decode_batch_body(ours.body)] == [
        (flag, bytes(body)) for flag, body, _ in parts
    ]
    assert [decode_properties(raw) for *_, raw in decode_batch_body(ours.body)] == [
        message.properties for message in messages
    ]
    kept = ext.keys() - {BORN, "i", "n"}
    assert {name: ours.ext_fields[name] for name in kept} == {name: ext[name] for name in kept}
    assert decode_properties(ours.ext_fields["i"]) == decode_properties(ext["i"])
