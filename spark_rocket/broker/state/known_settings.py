"""Apache settings that are accepted in a broker.conf but have no effect in this broker.

They are retained and returned by code 26, without the warning for unknown names.
Corresponds to the other fields of org.apache.rocketmq.common.BrokerConfig, MessageStoreConfig and NettyServerConfig.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from spark_rocket.errors import ConfigError

_NAMES = """
    abortFile aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond adminBrokerThreadPoolNums
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
    endTransactionThreadPoolNums
    expectConsumerNumUseFilter fastFailIfNoBufferInStorePool fetchNamesrvAddrByAddressServer
    fileNameExtendable filterDataCleanTimeSpan filterServerNums filterSupportRetry flushCommitLogLeastPages
    flushCommitLogThoroughInterval flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
    flushConsumerOffsetHistoryInterval flushLeastPagesWhenWarmMapedFile forceRegister
    haSlaveFallbehindMax haTransferBatchSize
    heartbeatThreadPoolNums highSpeedMode isEnableBatchPush
    litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity loadBalanceThreadPoolNums
    mappedFileSizeConsumeQueueExt maxDelayTime maxErrorRateOfBloomFilter
    maxTransferBytesOnMessageInDisk maxTransferCountOnMessageInDisk messageIndexSafe messageStorePlugIn
    metricsGrpcExporterTarget
    notifyConsumerIdsChangedEnable
    preferredLeaderId pullMessageThreadPoolNums
    putMessageFutureThreadPoolNums putMsgTimeout queryMessageThreadPoolNums
    readLocalFileEnable redeleteHangedFileInterval
    replyMessageThreadPoolNums replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1 reviveQueueNum
    rocketmqHome sendMessageThreadPoolNums
    serverCallbackExecutorThreads
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketRcvBufSize serverSocketSndBufSize
    serverWorkerThreads storeCheckpoint
    statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
    storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile
    syncBrokerMemberGroupPeriod timeoutMillis timerInterceptDelayLevel
    transactionOpBatchInterval transactionOpMsgMaxSize transferMsgByHeap
    transientStorePoolSize useEpollNativeSelector useReentrantLockWhenPutMessage useTLS
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    validateSystemTopicWhenUpdateTopic
    warmMapedFileEnable
"""

KNOWN_UNUSED: frozenset[str] = frozenset(_NAMES.split())

#: Settings of the gRPC proxy (spark_rocket.proxy.proxy_config), accepted in the broker.conf that ``rocket up`` reads.
PROXY_SETTINGS = frozenset(
    {
        "aclCacheRefreshSeconds",
        "aclMaxClockSkew",
        "grpcClientIdleTimeMills",
        "grpcMaxConcurrentCallsPerConnection",
        "grpcServerPort",
        "tlsCertPath",
        "tlsKeyPassword",
        "tlsKeyPath",
        "tlsTestModeEnable",
        "userCacheRefreshSeconds",
    }
)

# Unsupported settings: the values without effect, which are accepted, and the remedy for all other values.
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "enableDLegerCommitLog": (("false",), "Remove it: DLedger is not supported."),
    "enableControllerMode": (("false",), "Remove it: controller mode is not supported."),
    "storeType": (("default", ""), "Remove it: this broker stores its data in files."),
    "transientStorePoolEnable": (("false",), "Remove it: the commit log is written through its memory mapping."),
    "proxyProtocolTrustedAddresses": (("",), "Remove it: PROXY protocol headers are no longer read."),
    "readOnlyCommitLogStorePaths": (("",), "Remove it: the commit log is in one directory, storePathCommitLog."),
}
_MAX_UPDATE = 64 * 1024  # characters of one update at run time
_MAX_UNKNOWN = 100  # in the file and all updates: the search for a similar name blocks the event loop for 1 ms each
_SECRET = re.compile("secret|passw|credential|key|token", re.IGNORECASE)


def may_be_secret(name: str, text: str) -> bool:
    """Whether the name or value of an unknown setting suggests a misspelt secret."""
    return _SECRET.search(name) is not None or "secretkey" in text.lower()


def is_without_effect(name: str) -> bool:
    """Whether this is an accepted Apache setting without effect."""
    return name in KNOWN_UNUSED or name in REFUSED


def check_refused(name: str, text: str, where: str) -> None:
    """Raise ConfigError for a value that requires an unsupported feature."""
    refusal = REFUSED.get(name)
    if refusal is not None and text.strip() not in refusal[0]:
        raise ConfigError(f"{where}: {name}={text} is not supported.", remedy=refusal[1])


def check_length(update: str) -> None:
    """Raise ConfigError for an update that is too long to be parsed on the event loop."""
    if len(update) > _MAX_UPDATE:
        raise ConfigError(
            f"The update has {len(update):,} characters; at most {_MAX_UPDATE:,} are allowed.",
            remedy="Send fewer settings at once.",
        )


def check_unknown(kept: Collection[str], given: Collection[str]) -> None:
    """Raise ConfigError if an update adds unknown settings and their total exceeds the limit."""
    added = [name for name in given if name not in kept and not is_without_effect(name)]
    count = len(added) + sum(not is_without_effect(name) for name in kept)
    if added and count > _MAX_UNKNOWN:
        raise ConfigError(
            f"The broker would have {count:,} unknown settings; at most {_MAX_UNKNOWN} are allowed.",
            remedy="Send only known settings: rocket broker config lists them.",
        )
