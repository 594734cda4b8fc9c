"""What the processors may touch: their fields are the parts that they use, and no code has two processors."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from dataclasses import fields

import pytest

from spark_rocket.broker import broker_parts
from spark_rocket.broker.processors.processor import Processor

PROCESSORS = [
    member
    for member in vars(broker_parts).values()
    if inspect.isclass(member) and issubclass(member, Processor) and member is not Processor
]


def codes_of(processor: type[Processor]) -> list[int]:
    return [int(code) for member in vars(processor).values() for code in getattr(member, "request_codes", ())]


def test_a_code_has_one_processor() -> None:
    counts = Counter(code for processor in PROCESSORS for code in codes_of(processor))
    assert len(counts) > 60
    assert [code for code, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.__name__)
def test_a_processor_uses_all_that_it_may_touch(processor: type[Processor]) -> None:
    source = inspect.getsource(processor)
    shared = {field.name for field in fields(Processor)}
    taken = {field.name for field in fields(processor) if field.init} - shared  # type: ignore[arg-type]  # all are dataclasses
    assert {name for name in taken if not re.search(rf"\bself\.{name}\b", source)} == set()


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.__name__)
def test_no_processor_takes_all_parts(processor: type[Processor]) -> None:
    types = " ".join(str(field.type) for field in fields(processor))  # type: ignore[arg-type]
    assert "BrokerParts" not in types
    assert len(codes_of(processor)) <= 12
