"""Verbs and commands of other tools, and the ``rocket`` commands that do the same.

``MQADMIN`` has the commands of ``mqadmin`` 4.9 to 5.4, ``KAFKA`` the scripts of Kafka 3.9 and 4.1. A string instead of
commands is the reason why RocketMQ or this package has no counterpart. Tests have the complete lists, and compare
``MQADMIN`` with docs/guides/from-mqadmin.md.
"""

from __future__ import annotations

RELATED: dict[str, tuple[str, ...]] = {
    "accounts": ("acl list",),
    "brokers": ("cluster list",),
    "cat": ("message tail",),
    "checkpoint": ("offsets show",),
    "connections": ("group show", "cluster producers"),
    "consume": ("message tail", "bench consume"),
    "consumers": ("group list", "group show"),
    "consumer-groups": ("group list", "group lag", "offsets reset"),
    "create": ("topic create", "group create"),
    "dead-letters": ("dlq list",),
    "csv": ("message export",),
    "delete": ("topic delete", "group delete"),
    "describe": ("topic show", "group show"),
    "docs": ("help",),
    "find": ("message query-key", "message query-id"),
    "list": ("topic list", "group list", "cluster list"),
    "ls": ("topic list", "group list", "cluster list"),
    "messages": ("message tail", "message query-key"),
    "mqadmin": ("help from-mqadmin",),
    "mqbroker": ("broker",),
    "mqnamesrv": ("namesrv",),
    "mqproxy": ("proxy",),
    "name-server": ("namesrv",),
    "nameserver": ("namesrv",),
    "parquet": ("message export",),
    "peek": ("message tail", "queue dump"),
    "perf": ("bench send", "bench consume"),
    "produce": ("message send",),
    "publish": ("message send",),
    "query": ("message query-key", "message query-id"),
    "read": ("message tail", "message export", "queue dump"),
    "reset-offset": ("offsets reset",),
    "reset-offsets": ("offsets reset",),
    "replay": ("dlq resend", "message resend"),
    "retry": ("dlq resend", "message resend"),
    "rewind": ("offsets reset",),
    "run": ("up",),
    "search": ("message query-key", "message query-id"),
    "seek": ("offsets reset",),
    "server": ("up", "broker", "namesrv"),
    "show": ("topic show", "group show"),
    "start": ("up",),
    "status": ("cluster list", "broker runtime"),
    "subscribe": ("message tail",),
    "users": ("acl list",),
    "version": ("--version",),
}
"""Verbs that users of other tools look for, for suggestions after an unknown one."""

_CONTROLLER = "This broker has no controller mode."
_ROCKSDB = "This broker does not use RocksDB."
_COLD = "This broker does not limit reads of cold data."
_STATIC = "This broker does not support static topics."
_CONTAINER = "There are no broker containers; rocket up --brokers N starts several brokers."
_SHOW = ("acl list", "acl show")
_COPY = "Changes apply to all brokers; copy the output of rocket acl list --json for another cluster."
_KRAFT = "RocketMQ has no KRaft quorum: name servers hold the routes, see rocket namesrv."
_ZOOKEEPER = "RocketMQ has no ZooKeeper: name servers hold the routes, see rocket namesrv."
_LEADER = "Queues elect no leader: they belong to their broker. To promote a slave, see rocket help operations."
_CONNECT = "This package runs no connectors: Spark reads and writes other systems, see rocket help lakes."
_MIRROR = "Read from one cluster and write to the other with Spark: rocket help enrich."
_STOP = "End the process of {} with SIGTERM."

MQADMIN: dict[str, tuple[str, ...] | str] = {
    "addBroker": _CONTAINER, "addWritePerm": ("broker undrain",), "allocateMQ": ("group show",),
    "brokerConsumeStats": ("group list", "group lag"), "brokerStatus": ("broker runtime",),
    "checkMsgSendRT": ("bench send",), "checkRocksdbCqWriteProgress": _ROCKSDB, "cleanBrokerMetadata": _CONTROLLER,
    "cleanExpiredCQ": ("broker clean",), "cleanUnusedTopic": ("broker clean",),
    "cloneGroupOffset": ("offsets reset",), "clusterAclConfigVersion": ("acl list",), "clusterList": ("cluster list",),
    "clusterRT": ("bench send",), "consumeMessage": ("message tail",), "consumerConnection": ("group show",),
    "consumerProgress": ("group list", "group lag"), "consumerStatus": ("group member",), "copyAcl": _COPY,
    "copyUser": _COPY, "createAcl": ("acl allow", "acl deny"), "createUser": ("acl update",),
    "deleteAccessConfig": ("acl delete",),
    "deleteAcl": ("acl revoke",), "deleteAclConfig": ("acl delete",), "deleteExpiredCommitLog": ("broker clean",),
    "deleteKvConfig": ("namesrv kv delete",), "deleteSubGroup": ("group delete",), "deleteTopic": ("topic delete",),
    "deleteUser": ("acl delete",), "dumpCompactionLog": "This broker does not support compaction.",
    "electMaster": _CONTROLLER, "exportConfigs": ("broker config",), "exportMetadata": ("topic list", "group list"),
    "exportMetadataInRocksDB": _ROCKSDB, "exportMetrics": ("broker runtime",), "exportPopRecord": _ROCKSDB,
    "getAccessConfigSubCommand": ("acl list", "acl show"), "getAcl": _SHOW,
    "getAclConfig": ("acl list", "acl show"),
    "getBrokerConfig": ("broker config",), "getBrokerEpoch": _CONTROLLER, "getColdDataFlowCtrInfo": _COLD,
    "getConsumerConfig": ("group show",), "getControllerConfig": _CONTROLLER, "getControllerMetaData": _CONTROLLER,
    "getNamesrvConfig": ("namesrv config",), "getSyncStateSet": _CONTROLLER, "getUser": _SHOW,
    "haStatus": ("broker ha",), "listAcl": ("acl list",), "listUser": ("acl list",), "printMsg": ("message tail",),
    "printMsgByQueue": ("message tail", "queue dump"), "producer": ("cluster producers",),
    "producerConnection": ("cluster producers",), "queryCq": ("queue dump",), "queryMsgById": ("message get",),
    "queryMsgByKey": ("message query-key",), "queryMsgByOffset": ("queue dump",),
    "queryMsgByUniqueKey": ("message query-id",), "queryMsgTraceById": ("message trace",),
    "remappingStaticTopic": _STATIC, "removeBroker": _CONTAINER, "removeColdDataFlowCtrGroupConfig": _COLD,
    "resetMasterFlushOffset": _CONTROLLER, "resetOffsetByTime": ("offsets reset",), "rocksDBConfigToJson": _ROCKSDB,
    "sendMessage": ("message send",), "sendMsgStatus": ("bench send",),
    "setCommitLogReadAheadMode": _COLD, "setConsumeMode": "Choose pull or POP in the consumer's code.",
    "skipAccumulatedMessage": ("offsets reset",), "startMonitoring": ("console",), "statsAll": ("topic stats",),
    "switchTimerEngine": _ROCKSDB, "topicClusterList": ("topic route",), "topicList": ("topic list",),
    "topicRoute": ("topic route",), "topicStatus": ("topic stats",), "updateAclConfig": ("acl update",),
    "updateBrokerConfig": ("broker config",), "updateColdDataFlowCtrGroupConfig": _COLD,
    "updateControllerConfig": _CONTROLLER, "updateAcl": ("acl allow", "acl deny"),
    "updateGlobalWhiteAddr": ("acl white-list",),
    "updateKvConfig": ("namesrv kv set",), "updateNamesrvConfig": ("namesrv config",),
    "updateOrderConf": ("topic update",), "updateStaticTopic": _STATIC, "updateSubGroup": ("group create",),
    "updateSubGroupList": ("group create",),
    "updateTieredTopic": "This broker does not support tiered storage.",
    "updateTopic": ("topic create", "topic update"),
    "updateTopicList": ("topic create",), "updateTopicPerm": ("topic update",), "updateUser": ("acl update",),
    "wipeWritePerm": ("broker drain",),
}  # fmt: skip

KAFKA: dict[str, tuple[str, ...] | str] = {
    "connect-distributed": _CONNECT, "connect-mirror-maker": _MIRROR, "connect-plugin-path": _CONNECT,
    "connect-standalone": _CONNECT, "kafka-acls": ("acl list", "acl allow", "acl update", "acl delete"),
    "kafka-broker-api-versions": ("broker runtime",), "kafka-client-metrics": ("broker config",),
    "kafka-cluster": ("cluster list",), "kafka-configs": ("broker config", "topic update", "group create"),
    "kafka-console-consumer": ("message tail",), "kafka-console-producer": ("message send",),
    "kafka-console-share-consumer": ("message tail",),
    "kafka-consumer-groups": ("group list", "group lag", "offsets reset"),
    "kafka-consumer-perf-test": ("bench consume",), "kafka-delegation-tokens": "RocketMQ has no delegation tokens.",
    "kafka-delete-records": "RocketMQ deletes messages only by age and disk usage: set fileReservedTime with rocket "
        "broker config.",
    "kafka-dump-log": ("store dump",), "kafka-e2e-latency": ("bench send",),
    "kafka-features": "RocketMQ has no feature levels.", "kafka-get-offsets": ("topic stats",),
    "kafka-groups": ("group list",), "kafka-jmx": ("broker runtime",), "kafka-leader-election": _LEADER,
    "kafka-log-dirs": ("store stats",), "kafka-metadata-quorum": _KRAFT, "kafka-metadata-shell": _KRAFT,
    "kafka-mirror-maker": _MIRROR, "kafka-producer-perf-test": ("bench send",), "kafka-reassign-partitions":
        "RocketMQ does not move queues. To empty a broker, see rocket broker drain.",
    "kafka-replica-verification": ("broker ha",), "kafka-run-class": ("help",), "kafka-server-start": ("up",),
    "kafka-server-stop": _STOP.format("rocket up"), "kafka-share-consumer-perf-test": ("bench consume",),
    "kafka-share-groups": ("group list",), "kafka-storage": _KRAFT,
    "kafka-streams-application-reset": ("offsets reset",), "kafka-streams-groups": ("group list",),
    "kafka-topics": ("topic list", "topic create", "topic show", "topic delete"), "kafka-transactions":
        "Brokers end open transactions: they ask the producer, at most transactionCheckMax times.",
    "kafka-verifiable-consumer": ("message tail",), "kafka-verifiable-producer": ("message send",),
    "kafka-verifiable-share-consumer": ("message tail",), "trogdor": ("bench send", "bench consume"),
    "zookeeper-security-migration": _ZOOKEEPER, "zookeeper-server-start": ("namesrv",),
    "zookeeper-server-stop": _STOP.format("rocket namesrv"), "zookeeper-shell": _ZOOKEEPER,
}  # fmt: skip

_BY_NAME = {name.lower(): counterpart for name, counterpart in (MQADMIN | KAFKA).items()}


def counterpart(name: str) -> tuple[str, ...] | str | None:
    """Return the commands without ``rocket``, or the reason why there is none; None for an unknown name.

    The name can have a path and a suffix: ``bin/kafka-topics.sh``.
    """
    return _BY_NAME.get(name.lower().rpartition("/")[2].removesuffix(".sh").removesuffix(".bat"))
