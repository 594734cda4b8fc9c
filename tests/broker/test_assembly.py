"""What the processors may touch: the parts that their fields name, and no others. No code has two processors."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest

from spark_rocket.broker.acl.access_control import AccessControl
from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.processors.deletions import DeletionProcessor
from spark_rocket.broker.processors.families import FAMILIES, POP_FAMILIES, wired
from spark_rocket.broker.processors.processor import Processor
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager, new_topic
from spark_rocket.broker.tracing import BrokerTracing
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.store.message_store import MessageStore
from tests.kit.clock import Clock
from tests.store.helpers import BORN, HOST, small

PROCESSORS = (*FAMILIES, *POP_FAMILIES)
RECORDS = ("BrokerParts", "BrokerEnvironment")
LATE = {"AccessControl": AccessControl, "BrokerTracing": BrokerTracing}  # imported by brokers that need them only
each_processor = pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.__name__)


def codes_of(processor: type[Processor]) -> list[int]:
    return [int(code) for member in vars(processor).values() for code in getattr(member, "request_codes", ())]


def parts_named_by(processor: type[Processor]) -> dict[str, str]:
    """The fields of a processor's signature, with their types as they are written."""
    return {field.name: str(field.type) for field in fields(processor) if field.init}  # type: ignore[arg-type]  # all are dataclasses


def test_every_processor_is_in_the_table() -> None:
    assert {each for each in _subclasses(Processor) if codes_of(each)} == set(PROCESSORS)


def _subclasses(cls: type[Processor]) -> set[type[Processor]]:
    return {found for each in cls.__subclasses__() for found in {each, *_subclasses(each)}}


def test_a_code_has_one_processor() -> None:
    counts = Counter(code for processor in PROCESSORS for code in codes_of(processor))
    assert len(counts) > 60
    assert [code for code, count in counts.items() if count > 1] == []


@each_processor
def test_a_processor_uses_all_that_it_may_touch(processor: type[Processor]) -> None:
    source = "".join(inspect.getsource(each) for each in processor.__mro__ if each not in (Processor, object))
    assert [name for name in parts_named_by(processor) if not re.search(rf"\bself\.{name}\b", source)] == []


@each_processor
def test_no_processor_takes_a_record_of_many_parts(processor: type[Processor]) -> None:
    types = " ".join(parts_named_by(processor).values())
    assert [record for record in RECORDS if record in types] == []
    assert len(codes_of(processor)) <= 12


@pytest.mark.live
@each_processor
def test_a_processor_has_the_parts_that_it_names_and_no_others(processor: type[Processor], parts: BrokerParts) -> None:
    built, hints = wired(processor, parts), get_type_hints(processor, localns=LATE)
    given = {name: value for name, value in vars(built).items() if not name.startswith("_")}
    assert given.keys() == parts_named_by(processor).keys()
    for name, value in given.items():
        kind = hints[name]
        assert value == getattr(parts, name)
        assert isinstance(value, get_origin(kind) if get_origin(kind) in (Callable, tuple) else kind), name


def test_a_processor_runs_with_its_parts_alone(tmp_path: Path, clock: Clock) -> None:
    """Without a broker: no settings, offsets, groups or clients, which a deletion of queues must not touch."""
    store = MessageStore(small(tmp_path), store_host=HOST, clock=clock)
    store.start()
    topics = TopicConfigManager(BrokerConfig(), clock)
    topics.put(new_topic("Known", 1))
    for topic in ("Known", "Gone"):
        store.put_message(topic, 0, b"x", b"", born_timestamp=clock(), born_host=BORN)
    processor = DeletionProcessor(clock=clock, store=store, topics=topics)
    no_channel: Any = None
    request = RemotingCommand.request(RequestCode.CLEAN_UNUSED_TOPIC)
    assert asyncio.run(processor.clean_unused_topics(no_channel, request)).code == ResponseCode.SUCCESS
    assert store.topics() == {"Known"}
    store.close()
