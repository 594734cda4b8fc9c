"""The examples of the client's guide and reference run unchanged, and their tables match the code."""

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
from spark_rocket.client.core.client_config import Connecting
from spark_rocket.client.send.router import QueueChoice
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster

pytestmark = pytest.mark.live

DOCS = Path(__file__).parents[2] / "docs"
GUIDE, REFERENCE = DOCS / "guides" / "python-client.md", DOCS / "reference" / "client.md"
_PROSE = re.sub(r"^```.*?^```", "", REFERENCE.read_text(encoding="utf-8"), flags=re.M | re.S)


def _examples(page: Path) -> Iterator[tuple[str, Path, int, str]]:
    """Heading and number, page, line, code."""
    text = page.read_text(encoding="utf-8")
    headings: dict[str, int] = {}
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S):
        heading = re.findall(r"^#+ (.*)", text[: found.start()], re.M)[-1]
        headings[heading] = headings.get(heading, 0) + 1
        yield f"{heading} {headings[heading]}", page, text.count("\n", 0, found.start(1)), found[1]


EXAMPLES = [*_examples(GUIDE), *_examples(REFERENCE)]


@pytest.fixture(scope="module")
def name_server() -> Iterator[str]:
    with LocalCluster(in_process=True, config={"enablePropertyFilter": True, "recallMessageEnable": True}) as cluster:
        yield cluster.name_server


@pytest.mark.parametrize(
    ("page", "line", "code"), [example[1:] for example in EXAMPLES], ids=[example[0] for example in EXAMPLES]
)
def test_an_example_runs(page: Path, line: int, code: str, name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", name_server)
    exec(compile("\n" * line + code, str(page), "exec"), {"__name__": "__main__"})


def test_the_names_for_those_of_the_java_client_exist() -> None:
    names = {**{name: getattr(clients, name) for name in clients.__all__}, **vars(model), **vars(errors)}
    section = _PROSE.partition("## Names of the Java client")[2].partition("\n## ")[0]
    ours = " ".join(re.findall(r"^\| .* \| (.*) \|$", section, re.M))
    documented = re.findall(r"`([A-Z]\w+)\.(\w+)", ours)
    assert len(documented) > 40
    for kind, name in documented:
        fields = getattr(names[kind], "__dataclass_fields__", {})
        assert hasattr(names[kind], name) or name in fields or name == "response_code", f"{kind}.{name}"
    for name in re.findall(r"\b(\w+)=", ours):
        assert name in {**PushOptions.__annotations__, **QueueChoice.__annotations__} or any(
            name in inspect.signature(kind).parameters
            for kind in (Producer, Producer.send, PushConsumer, PushConsumer.subscribe, LitePullConsumer, Message.of)
        ), name


@pytest.mark.parametrize("client", [Producer, PushConsumer, LitePullConsumer])
def test_every_setting_is_documented(client: type[Producer | PushConsumer | LitePullConsumer]) -> None:
    settings = set(inspect.signature(client).parameters) - {"group", "connecting", "options"}
    settings |= set(
        {Producer: Connecting, PushConsumer: PushOptions, LitePullConsumer: GroupOptions}[client].__annotations__
    )
    documented = set(re.findall(r"\b(\w+)\b", " ".join(re.findall(r"`([^`]+)`", _PROSE))))
    assert settings <= documented
