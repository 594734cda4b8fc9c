"""Names of Apache settings that may stand in a broker.conf but that change nothing in this broker.

They are kept and shown again by code 26, without the warning that an unknown name gets.
Corresponds to the other fields of org.apache.rocketmq.common.BrokerConfig, MessageStoreConfig and NettyServerConfig.
"""

from __future__ import annotations

import re

from spark_rocket.errors import ConfigError

_NAMES = """
    abortFile adminBrokerThreadPoolNums
    autoDeleteUnusedStats bitMapLengthConsumeQueueExt brokerHeartbeatInterval
    brokerIP2 brokerNotActiveTimeoutMillis checkCRCOnRecover
    clientCloseSocketIfTimeout clientManagerThreadPoolQueueCapacity clientManageThreadPoolNums
    commercialEnable commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
    compressedRegister consumerFallbehindThreshold consumerManagerThreadPoolQueueCapacity
    consumerManageThreadPoolNums debugLockEnable deleteConsumeQueueFilesInterval
    destroyMapedFileIntervalForcibly disableConsumeIfConsumerReadSlowly diskFallRecorded
    dLegerGroup dLegerPeers dLegerSelfId duplicationEnable enableCalcFilterBitMap
    enableConsumeQueueExt enableLmq enableMultiDispatch enablePopBatchAck
    enablePopBufferMerge enableScheduleMessageStats enableSlaveActingMaster
    enableSplitRegistration endTransactionThreadPoolNums
    expectConsumerNumUseFilter fastFailIfNoBufferInStorePool fetchNamesrvAddrByAddressServer
    fileNameExtendable filterDataCleanTimeSpan filterServerNums filterSupportRetry flushCommitLogLeastPages
    flushCommitLogThoroughInterval flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
    flushConsumerOffsetHistoryInterval flushLeastPagesWhenWarmMapedFile forceRegister
    haSlaveFallbehindMax haTransferBatchSize
    heartbeatThreadPoolNums highSpeedMode isEnableBatchPush
    litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity loadBalanceThreadPoolNums
    mappedFileSizeConsumeQueueExt maxDelayTime maxErrorRateOfBloomFilter
    maxTransferBytesOnMessageInDisk maxTransferCountOnMessageInDisk messageStorePlugIn
    metricsGrpcExporterTarget
    notifyConsumerIdsChangedEnable
    preferredLeaderId pullMessageThreadPoolNums
    putMessageFutureThreadPoolNums putMsgTimeout queryMessageThreadPoolNums
    readLocalFileEnable redeleteHangedFileInterval
    replyMessageThreadPoolNums replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1 reviveQueueNum
    rocketmqHome sendMessageThreadPoolNums
    serverCallbackExecutorThreads
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketRcvBufSize serverSocketSndBufSize
    serverWorkerThreads splitRegistrationSize storeCheckpoint
    storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile
    syncBrokerMemberGroupPeriod timeoutMillis timerInterceptDelayLevel
    transactionOpBatchInterval transactionOpMsgMaxSize transferMsgByHeap
    transientStorePoolSize useEpollNativeSelector useReentrantLockWhenPutMessage useTLS
    validateSystemTopicWhenUpdateTopic
    warmMapedFileEnable
"""

KNOWN_UNUSED: frozenset[str] = frozenset(_NAMES.split())

# Settings whose meaning we cannot honour yet: the values that change nothing, and what to do about others.
_REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "enableDLegerCommitLog": (("false",), "Remove it: there is no DLedger log here."),
    "enableControllerMode": (("false",), "Remove it: there is no controller here."),
    "storeType": (("default", ""), "Remove it: this broker keeps its store in files."),
    "transientStorePoolEnable": (("false",), "Remove it: the commit log is written through its mapping."),
    "readOnlyCommitLogStorePaths": (("",), "Remove it: the commit log is in one directory, storePathCommitLog."),
}
_SECRET = re.compile("secret|passw|credential|key|token", re.IGNORECASE)


def may_be_secret(name: str, text: str) -> bool:
    """Whether a setting that this broker does not read may be a misspelt secret, by its name or its value."""
    return _SECRET.search(name) is not None or "secretkey" in text.lower()


def is_without_effect(name: str) -> bool:
    """Whether it is a setting of Apache's that may be given and changes nothing."""
    return name in KNOWN_UNUSED or name in _REFUSED


def check_refused(name: str, text: str, where: str) -> None:
    """ConfigError for a value that would change something which this broker cannot do."""
    refusal = _REFUSED.get(name)
    if refusal is not None and text.strip() not in refusal[0]:
        raise ConfigError(f"{where}: {name}={text} is not supported.", remedy=refusal[1])
