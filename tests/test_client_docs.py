"""The examples of docs/client.md run as they are, and what its tables say is so."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_rocket.client as clients
from spark_rocket import errors, model
from spark_rocket.client import LitePullConsumer, Producer, PushConsumer
from spark_rocket.client.consume.group_consumer import GroupOptions
from spark_rocket.client.consume.push_settings import PushOptions
from spark_rocket.client.core.config import Connecting
from spark_rocket.errors import ClientError
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster

pytestmark = pytest.mark.live

DOCUMENT = Path(__file__).parents[1] / "docs" / "client.md"
_TEXT = DOCUMENT.read_text(encoding="utf-8")
_PROSE = re.sub(r"^```.*?^```", "", _TEXT, flags=re.M | re.S)


def _examples() -> Iterator[tuple[str, int, str]]:
    """Heading and number, line, code."""
    headings: dict[str, int] = {}
    for found in re.finditer(r"^```python\n(.*?)^```", _TEXT, re.M | re.S):
        heading = re.findall(r"^#+ (.*)", _TEXT[: found.start()], re.M)[-1]
        headings[heading] = headings.get(heading, 0) + 1
        yield f"{heading} {headings[heading]}", _TEXT.count("\n", 0, found.start(1)), found[1]


EXAMPLES = list(_examples())


@pytest.fixture(scope="module")
def name_server() -> Iterator[str]:
    with LocalCluster(config={"enablePropertyFilter": True, "recallMessageEnable": True}) as cluster:
        yield cluster.name_server


@pytest.mark.parametrize(("line", "code"), [example[1:] for example in EXAMPLES], ids=[name for name, _, _ in EXAMPLES])
def test_an_example_runs(line: int, code: str, name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", name_server)
    exec(compile("\n" * line + code, str(DOCUMENT), "exec"), {"__name__": "__main__"})


def test_links_within_the_document_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)", _PROSE, re.M)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", _PROSE)) <= anchors


def test_errors_have_the_codes_that_are_told() -> None:
    told = re.findall(r"^\| (?:[├└] )?`(\w+Error)` \| `(\w+)` \| (yes|no|some) \|", _PROSE, re.M)
    assert len(told) > 15
    for name, code, retriable in told:
        kind = getattr(errors, name)
        assert kind.code == code, name
        assert retriable == "some" or kind.retriable is (retriable == "yes"), name
    clients = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ClientError)}
    assert clients <= {name for name, _, _ in told}


def test_what_java_is_translated_to_is_there() -> None:
    names = {**vars(clients), **vars(model), **vars(errors)}
    section = _PROSE.partition("## From Java's names to these")[2].partition("\n## ")[0]
    ours = " ".join(re.findall(r"^\| .* \| (.*) \|$", section, re.M))
    told = re.findall(r"`([A-Z]\w+)\.(\w+)", ours)
    assert len(told) > 40
    for kind, name in told:
        fields = getattr(names[kind], "__dataclass_fields__", {})
        assert hasattr(names[kind], name) or name in fields or name == "response_code", f"{kind}.{name}"
    for name in re.findall(r"\b(\w+)=", ours):
        assert name in PushOptions.__annotations__ or any(
            name in inspect.signature(kind).parameters
            for kind in (Producer, Producer.send, PushConsumer, PushConsumer.subscribe, LitePullConsumer, Message.of)
        ), name


@pytest.mark.parametrize("client", [Producer, PushConsumer, LitePullConsumer])
def test_every_setting_is_told(client: type[Producer | PushConsumer | LitePullConsumer]) -> None:
    settings = set(inspect.signature(client).parameters) - {"group", "connecting", "options"}
    settings |= set(
        {Producer: Connecting, PushConsumer: PushOptions, LitePullConsumer: GroupOptions}[client].__annotations__
    )
    told = set(re.findall(r"\b(\w+)\b", " ".join(re.findall(r"`([^`]+)`", _PROSE))))
    assert settings <= told
