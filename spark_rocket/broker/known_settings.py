"""Names of Apache settings that may stand in a broker.conf but that change nothing in this broker.

They are kept and shown again by code 26, without the warning that an unknown name gets.
Corresponds to the other fields of org.apache.rocketmq.common.BrokerConfig, MessageStoreConfig and NettyServerConfig.
"""

from __future__ import annotations

import re

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

_SECRET = re.compile("secret|passw|credential|key|token", re.IGNORECASE)


def may_be_secret(name: str, text: str) -> bool:
    """Whether a setting that this broker does not read may be a misspelt secret, by its name or its value."""
    return _SECRET.search(name) is not None or "secretkey" in text.lower()
