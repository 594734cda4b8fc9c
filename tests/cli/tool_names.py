"""All commands of ``mqadmin`` and all scripts of Kafka, from their sources, separated by blanks."""

#: What MQAdminStartup registers in RocketMQ 4.9 to 5.4.
MQADMIN_COMMANDS = """
addBroker addWritePerm allocateMQ brokerConsumeStats brokerStatus checkMsgSendRT checkRocksdbCqWriteProgress
cleanBrokerMetadata cleanExpiredCQ cleanUnusedTopic cloneGroupOffset clusterAclConfigVersion clusterList clusterRT
consumeMessage consumerConnection consumerProgress consumerStatus copyAcl copyUser createAcl createUser
deleteAccessConfig deleteAcl deleteAclConfig deleteExpiredCommitLog deleteKvConfig deleteSubGroup deleteTopic
deleteUser dumpCompactionLog electMaster exportConfigs exportMetadata exportMetadataInRocksDB exportMetrics
exportPopRecord getAccessConfigSubCommand getAcl getAclConfig getBrokerConfig getBrokerEpoch getColdDataFlowCtrInfo
getConsumerConfig getControllerConfig getControllerMetaData getNamesrvConfig getSyncStateSet getUser haStatus listAcl
listUser printMsg printMsgByQueue producer producerConnection queryCq queryMsgById queryMsgByKey queryMsgByOffset
queryMsgByUniqueKey queryMsgTraceById remappingStaticTopic removeBroker removeColdDataFlowCtrGroupConfig
resetMasterFlushOffset resetOffsetByTime rocksDBConfigToJson sendMessage sendMsgStatus setCommitLogReadAheadMode
setConsumeMode skipAccumulatedMessage startMonitoring statsAll switchTimerEngine topicClusterList topicList topicRoute
topicStatus updateAcl updateAclConfig updateBrokerConfig updateColdDataFlowCtrGroupConfig updateControllerConfig
updateGlobalWhiteAddr updateKvConfig updateNamesrvConfig updateOrderConf updateStaticTopic updateSubGroup
updateSubGroupList updateTieredTopic updateTopic updateTopicList updateTopicPerm updateUser wipeWritePerm
"""

#: ``bin/*.sh`` of Kafka 3.9 and 4.1.
KAFKA_SCRIPTS = """
connect-distributed connect-mirror-maker connect-plugin-path connect-standalone kafka-acls kafka-broker-api-versions
kafka-client-metrics kafka-cluster kafka-configs kafka-console-consumer kafka-console-producer
kafka-console-share-consumer kafka-consumer-groups kafka-consumer-perf-test kafka-delegation-tokens
kafka-delete-records kafka-dump-log kafka-e2e-latency kafka-features kafka-get-offsets kafka-groups kafka-jmx
kafka-leader-election kafka-log-dirs kafka-metadata-quorum kafka-metadata-shell kafka-mirror-maker
kafka-producer-perf-test kafka-reassign-partitions kafka-replica-verification kafka-run-class kafka-server-start
kafka-server-stop kafka-share-consumer-perf-test kafka-share-groups kafka-storage kafka-streams-application-reset
kafka-streams-groups kafka-topics kafka-transactions kafka-verifiable-consumer kafka-verifiable-producer
kafka-verifiable-share-consumer trogdor zookeeper-security-migration zookeeper-server-start zookeeper-server-stop
zookeeper-shell
"""
