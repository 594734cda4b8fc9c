"""Names of Apache settings that may stand in a broker.conf but that change nothing in this broker.

They are kept and shown again by code 26, without the warning that an unknown name gets.
Corresponds to the other fields of org.apache.rocketmq.common.BrokerConfig, MessageStoreConfig and NettyServerConfig.
"""

from __future__ import annotations

import re
from collections.abc import Collection

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

#: Settings of the gRPC proxy (spark_rocket.proxy.config). They may stand in the broker.conf that ``rocket up`` reads.
PROXY_SETTINGS = frozenset(
    {
        "aclMaxClockSkew",
        "grpcClientIdleTimeMills",
        "grpcMaxConcurrentCallsPerConnection",
        "grpcServerPort",
        "proxyProtocolTrustedAddresses",
        "tlsCertPath",
        "tlsKeyPassword",
        "tlsKeyPath",
        "tlsTestModeEnable",
    }
)

# Settings whose meaning we cannot honour yet: the values that change nothing, and what to do about others.
_REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "enableDLegerCommitLog": (("false",), "Remove it: there is no DLedger log here."),
    "enableControllerMode": (("false",), "Remove it: there is no controller here."),
    "storeType": (("default", ""), "Remove it: this broker keeps its store in files."),
    "transientStorePoolEnable": (("false",), "Remove it: the commit log is written through its mapping."),
    "readOnlyCommitLogStorePaths": (("",), "Remove it: the commit log is in one directory, storePathCommitLog."),
}
_MAX_UPDATE = 64 * 1024  # characters of one update at run time
_MAX_UNKNOWN = 100  # of the file and all updates: a search for a similar name takes a millisecond on the event loop
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


def check_length(update: str) -> None:
    """ConfigError for the text of an update that is too long to be read on the event loop."""
    if len(update) > _MAX_UPDATE:
        raise ConfigError(
            f"The update has {len(update):,} characters; at most {_MAX_UPDATE:,} are read.",
            remedy="Send fewer settings at once.",
        )


def check_unknown(kept: Collection[str], given: Collection[str]) -> None:
    """ConfigError if an update adds unknown settings to those kept, and these are too many."""
    added = [name for name in given if name not in kept and not is_without_effect(name)]
    count = len(added) + sum(not is_without_effect(name) for name in kept)
    if added and count > _MAX_UNKNOWN:
        raise ConfigError(
            f"The broker would have {count:,} unknown settings; at most {_MAX_UNKNOWN} are kept.",
            remedy="Send only settings that the broker has: rocket broker config lists them.",
        )
