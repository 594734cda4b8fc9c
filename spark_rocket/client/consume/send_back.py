"""Giving back messages that could not be consumed: to the group's retry topic, or its dead-letter topic.

The broker that has the message is asked to copy it (36). Should that fail, the client sends a copy to the retry topic
itself, as the original does. Both count up the message's reconsume times; from ``max_reconsume_times`` on it goes to
``%DLQ%group``.

Thread-safety: all methods. Corresponds to DefaultMQPushConsumerImpl.sendMessageBack.
"""

from __future__ import annotations

import logging
import time

from spark_rocket.client.consume.pull import BROKER_NAME, RETRY_TOPIC
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RocketError
from spark_rocket.model import DELAY, RETRY_PREFIX, MessageExt
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeader
from spark_rocket.remoting.address import format_address

logger = logging.getLogger(__name__)

ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
DEFAULT_MAX_RECONSUME_TIMES = 16
_FIRST_LEVEL = 3
_SECONDS = 5.0
_LEFT_BEHIND = ("TRAN_MSG", "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET")


class SendBack:
    """Gives back messages of one group."""

    def __init__(self, instance: ClientInstance, group: str, max_reconsume_times: int) -> None:
        self._instance = instance
        self._group = group
        self._retry_topic = RETRY_PREFIX + group
        self._most = max_reconsume_times

    def send(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Have it delivered again later: whether that is certain. ``delay_level``: −1 dead letters, 0 as usual."""
        try:
            self._ask_broker(message, delay_level)
        except RocketError as error:
            logger.warning("broker %s did not take back %s: %s", message.broker_name, message.msg_id, error)
            return self.send_copy(message)
        return True

    def _ask_broker(self, message: MessageExt, delay_level: int) -> None:
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self._most,
        )
        address = self._master(message) or format_address(*message.store_host)
        ext = header.to_ext() | {BROKER_NAME: message.broker_name}
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        self._instance.invoke(address, request, f"the return of {message.msg_id}", timeout=_SECONDS)

    def _master(self, message: MessageExt) -> str | None:
        """Where routes say that its broker is: what the message says may be an address that only brokers can reach."""
        for topic in (self._retry_topic, message.topic):
            try:
                masters = self._instance.routes.route(topic).masters
            except RocketError:
                continue
            if message.broker_name in masters:
                return masters[message.broker_name]
        return None

    def send_copy(self, message: MessageExt) -> bool:
        """Send a copy to the retry topic: whether a broker has it."""
        properties = {name: value for name, value in message.properties.items() if name not in _LEFT_BEHIND}
        properties.setdefault(RETRY_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.msg_id)
        properties[DELAY] = str(_FIRST_LEVEL + message.reconsume_times)
        try:
            queues = self._instance.routes.publish_route(self._retry_topic)
            queue = queues[message.queue_offset % len(queues)]
            header = SendMessageRequestHeader(
                producer_group=self._group,
                topic=self._retry_topic,
                default_topic="TBW102",
                default_topic_queue_nums=1,
                queue_id=queue.queue_id,
                sys_flag=0,
                born_timestamp=time.time_ns() // 1_000_000,
                flag=message.flag,
                properties=encode_properties(properties).decode(),
                reconsume_times=message.reconsume_times + 1,
                max_reconsume_times=self._most,
                broker_name=queue.broker_name,
            )
            request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), message.body)
            address = self._instance.routes.master(queue)
            self._instance.invoke(address, request, f"the copy of {message.msg_id}", timeout=_SECONDS)
        except RocketError as error:
            logger.warning("%s could not be sent to %s: %s", message.msg_id, self._retry_topic, error)
            return False
        return True
