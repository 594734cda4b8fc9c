"""Requests that a slave refuses: it does not accept messages, and copies its settings from its master.

==========================================================  =================================================
request                                                     response, as from Apache's slave
==========================================================  =================================================
sends (10, 310, 320, 324, 325), recalls (370), pops, acks   14 SERVICE_NOT_AVAILABLE
(200050, 200051, 200053, 200056, 200151)
a message sent back (36)                                    1 SYSTEM_ERROR
the end of a transaction (37)                               11 SLAVE_NOT_AVAILABLE
changes of topics, groups, offsets and request modes        1 SYSTEM_ERROR
deletions of topics (215, 316)                              0 SUCCESS, without effect
==========================================================  =================================================

Deletions succeed because mqadmin sends them to all brokers of a cluster in any order, and stops at the first refusal.
The slave deletes the topic when it synchronizes with its master.

Corresponds to AdminBrokerProcessor.validateSlave and the checks of the role in SendMessageProcessor,
EndTransactionProcessor and DefaultMessageStore.
"""

from __future__ import annotations

from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.remoting_server import Handler

_MESSAGES = (
    Code.SEND_MESSAGE,
    Code.SEND_MESSAGE_V2,
    Code.SEND_BATCH_MESSAGE,
    Code.SEND_REPLY_MESSAGE,
    Code.SEND_REPLY_MESSAGE_V2,
    Code.RECALL_MESSAGE,
    Code.POP_MESSAGE,
    Code.ACK_MESSAGE,
    Code.CHANGE_MESSAGE_INVISIBLETIME,
    Code.POP_ROLLBACK,
    Code.BATCH_ACK_MESSAGE,
)
_CHANGES = (
    Code.UPDATE_AND_CREATE_TOPIC,
    Code.UPDATE_AND_CREATE_TOPIC_LIST,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Code.DELETE_SUBSCRIPTIONGROUP,
    Code.INVOKE_BROKER_TO_RESET_OFFSET,
    Code.CLONE_GROUP_OFFSET,
    Code.SET_MESSAGE_REQUEST_MODE,
    Code.RESUME_CHECK_HALF_MESSAGE,
)
_POPS = (Code.POP_MESSAGE, Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME)
_DELETIONS = (Code.DELETE_TOPIC_IN_BROKER, Code.CLEAN_UNUSED_TOPIC)
_OF_SLAVES = (
    (
        _MESSAGES,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now: {} is a slave. Send messages to its master.",
    ),
    (_CHANGES, ResponseCode.SYSTEM_ERROR, "{} is a slave. Change topics, groups and offsets on its master."),
    (_DELETIONS, ResponseCode.SUCCESS, "{} is a slave. It deletes topics when its master does."),
    (
        (Code.CONSUMER_SEND_MSG_BACK,),
        ResponseCode.SYSTEM_ERROR,
        "{} is a slave. Send messages back to its master.",
    ),
    (
        (Code.END_TRANSACTION,),
        ResponseCode.SLAVE_NOT_AVAILABLE,
        "{} is a slave. End transactions on its master.",
    ),
)


def slave_refusals(broker: str) -> dict[int, Handler]:
    """Handlers that replace a master's. ``broker``: the slave's name in the responses."""
    return {int(code): _refusal(found, text.format(broker)) for codes, found, text in _OF_SLAVES for code in codes}


def pop_refusals(host: str) -> dict[int, Handler]:
    """Handlers of pops and acks without ``timerWheelEnable``: their messages reappear by timed messages."""
    refuse = _refusal(
        ResponseCode.SYSTEM_ERROR,
        f"the broker[{host}] pop message is forbidden because timerWheelEnable is false. "
        "Set timerWheelEnable=true at the broker.",
    )
    return {int(code): refuse for code in _POPS}


def _refusal(code: ResponseCode, text: str) -> Handler:
    def handler(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, code, text)

    return handler
