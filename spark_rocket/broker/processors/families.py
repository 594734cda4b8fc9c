"""All processors of a broker, one for each family of request codes, and how they get their parts: by name."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

from spark_rocket.broker.processors.accounts import AccountProcessor
from spark_rocket.broker.processors.ack import AckMessageProcessor
from spark_rocket.broker.processors.assignment import QueryAssignmentProcessor
from spark_rocket.broker.processors.broker_settings import SettingsProcessor
from spark_rocket.broker.processors.client_manage import ClientManageProcessor
from spark_rocket.broker.processors.consume_stats import ConsumeStatsProcessor
from spark_rocket.broker.processors.consumer_offsets import OffsetProcessor
from spark_rocket.broker.processors.consumer_requests import ConsumerRequestProcessor
from spark_rocket.broker.processors.deletions import DeletionProcessor
from spark_rocket.broker.processors.end_transaction import EndTransactionProcessor
from spark_rocket.broker.processors.group_admin import GroupAdminProcessor
from spark_rocket.broker.processors.ha_status import HaStatusProcessor
from spark_rocket.broker.processors.offset_reset import OffsetResetProcessor
from spark_rocket.broker.processors.peek import PeekProcessor
from spark_rocket.broker.processors.pending import PendingMessageProcessor
from spark_rocket.broker.processors.pop import PopMessageProcessor
from spark_rocket.broker.processors.processor import Processor
from spark_rocket.broker.processors.pull import PullMessageProcessor
from spark_rocket.broker.processors.query import QueryMessageProcessor
from spark_rocket.broker.processors.reply import ReplyMessageProcessor
from spark_rocket.broker.processors.send import SendMessageProcessor
from spark_rocket.broker.processors.send_back import SendBackProcessor
from spark_rocket.broker.processors.statistics import StatisticsProcessor
from spark_rocket.broker.processors.topic_admin import TopicAdminProcessor
from spark_rocket.broker.processors.users import UserProcessor

_P = TypeVar("_P", bound=Processor)

FAMILIES: tuple[type[Processor], ...] = (
    AccountProcessor,
    QueryAssignmentProcessor,
    SettingsProcessor,
    ClientManageProcessor,
    ConsumeStatsProcessor,
    OffsetProcessor,
    ConsumerRequestProcessor,
    DeletionProcessor,
    EndTransactionProcessor,
    GroupAdminProcessor,
    HaStatusProcessor,
    OffsetResetProcessor,
    PeekProcessor,
    PendingMessageProcessor,
    PullMessageProcessor,
    QueryMessageProcessor,
    ReplyMessageProcessor,
    SendMessageProcessor,
    SendBackProcessor,
    StatisticsProcessor,
    TopicAdminProcessor,
    UserProcessor,
)
#: Processors that need the service for pops, which a broker with ``timerWheelEnable=false`` and a slave do not have.
POP_FAMILIES: tuple[type[Processor], ...] = (AckMessageProcessor, PopMessageProcessor)


def wired(family: type[_P], parts: object) -> _P:
    """Build a processor: each of its fields is the attribute of ``parts`` with the same name."""
    names = [each.name for each in fields(family) if each.init]  # type: ignore[arg-type]  # all are dataclasses
    return family(**{name: getattr(parts, name) for name in names})
