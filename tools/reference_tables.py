"""The tables of the reference pages, from the declarations in the code. ``generated_tables`` writes them into pages."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

from spark_rocket.broker.metrics.table import METRICS as BROKER_METRICS
from spark_rocket.client.core.metrics import CLIENT_METRICS
from spark_rocket.datasource.conditions import CONDITIONS, FORMER_NAMES
from spark_rocket.datasource.options.listing import in_chinese, scope_names
from spark_rocket.datasource.options.table import OPTIONS
from spark_rocket.datasource.options.table import SECTIONS as OPTION_SECTIONS
from spark_rocket.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    ProtocolError,
    RemotingError,
    RocketError,
    StateError,
)
from spark_rocket.namesrv.name_server import METRICS as NAMESRV_METRICS
from spark_rocket.protocol.requests import REQUESTS, STATE_LIMITS, RequestType
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.proxy.metrics import METRICS as PROXY_METRICS
from spark_rocket.remoting.exposition import Metric
from spark_rocket.remoting.http.monitor import MONITOR_METRICS
from spark_rocket.remoting.server.overload import OVERLOAD_METRICS

METRICS: dict[str, Sequence[Metric]] = {
    "broker": BROKER_METRICS,
    "overload": OVERLOAD_METRICS,
    "name server": NAMESRV_METRICS,
    "proxy": PROXY_METRICS,
    "processes": MONITOR_METRICS,
    "clients": CLIENT_METRICS,
}
_ORIGINS = {
    "5": "Names of RocketMQ 5:",
    "exporter": "Names of rocketmq-exporter:",
    "own": "Own names:",
    "process": "Names of Prometheus:",
    "client": "Names of RocketMQ 5's clients:",
}
_ERRORS = (RemotingError, ClientError, StateError, ProtocolError, ConfigError)

#: Labels that all metrics of a kind have. The page names them once.
NODE_LABELS = ("cluster", "node_type", "node_id")
RUNTIME_LABELS = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")

_SMALLEST_HEADER, _SMALLEST_BODY = 64 << 10, 4 << 10


def rows(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    shown = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    shown += ["|" + "|".join(f" {_escaped(cell)} " if cell else " " for cell in line) + "|" for line in lines]
    return "\n".join(shown)


def _escaped(cell: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", cell)


def options(section: str, language: int) -> str:
    """The options of a section."""
    return rows(
        (("Option", "Type", "Default", "Scope", "Meaning"), ("选项", "类型", "默认值", "范围", "含义"))[language],
        (
            (
                f"`{option.name}`",
                in_chinese(option.type) if language else option.type,
                f"`{option.default}`" if option.default else "—",
                in_chinese(", ".join(scopes)) if language else ", ".join(scopes),
                option.chinese if language else option.meaning,
            )
            for option in OPTION_SECTIONS[section]
            for scopes in [scope_names(option.scopes)]
        ),
    )


def dependencies(argument: str, language: int) -> str:
    """The options that others require or exclude. Options with the same ones share a row."""
    found: dict[tuple[str, str], list[str]] = {}
    separator, either = ("、", "` 或 `") if language else (", ", "` or `")
    for option in OPTIONS:
        needed = separator.join(f"`{name.replace('|', either)}`" for name in option.needs)
        for value in dict.fromkeys(["", *(one.value for one in option.excludes)]):
            excluded = separator.join(f"`{one.other}`" for one in option.excludes if one.value == value)
            if excluded or (needed and not value):
                name = f"`{option.name}={value}`" if value else f"`{option.name}`"
                found.setdefault(("" if value else needed, excluded), []).append(name)
    head = (("Options", "Require", "Exclude"), ("选项", "需要", "不能同时使用"))[language]
    return rows(head, ((separator.join(names), *texts) for texts, names in found.items()))


def conditions(argument: str, language: int) -> str:
    lines: Iterable[Sequence[str]] = ((f"`{each.name}`", each.text, each.remedy) for each in CONDITIONS)
    if language:
        translated = chinese_conditions()
        lines = ((name, *(translated[text] for text in texts)) for name, *texts in lines)
    return rows((("Condition", "Message", "Remedy"), ("条件", "消息", "处理"))[language], lines)


@cache
def chinese_conditions() -> Mapping[str, str]:
    """The messages and remedies of conditions in English, each with its translation. Errors themselves are English."""
    path = Path(__file__).with_name("chinese_conditions.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def former_names(argument: str, language: int) -> str:
    lines = ((f"`{name}`", f"`{former}`") for name, former in FORMER_NAMES.items())
    return rows((("Condition", "Former name"), ("条件", "原名"))[language], lines)


def errors(argument: str, language: int) -> str:
    """The errors of clients: each family, then its members."""
    lines: list[Sequence[str]] = []
    for family in _ERRORS:
        members = list(_members(family))
        lines.append(_error(family, ""))
        lines += [_error(kind, "└ " if kind is members[-1] else "├ ") for kind in members]
    return rows(("error", "code", "retriable", "cause and remedy"), lines)


def _members(family: type[RocketError]) -> Iterator[type[RocketError]]:
    for kind in family.__subclasses__():
        if kind.__module__ == family.__module__:
            yield kind
            yield from _members(kind)


def _error(kind: type[RocketError], mark: str) -> Sequence[str]:
    """Return the row of an error class; the text is the first paragraph of its docstring.

    The response code decides whether a BrokerError is retriable.
    """
    text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).replace("``", "`").replace("|", r"\|")
    retriable = "some" if kind is BrokerError else "yes" if kind.retriable else "no"
    return f"{mark}`{kind.__name__}`", f"`{kind.code}`", retriable, text


def metrics(source: str, language: int) -> str:
    """The metrics of a source, divided by the origin of their names."""
    parts = []
    for origin, group in groupby(METRICS[source], lambda metric: metric.origin):
        lines = ((f"`{metric.name}`", metric.kind, " ".join(_own_labels(metric)), metric.help) for metric in group)
        parts.append(f"{_ORIGINS[origin]}\n\n" + rows(("metric", "type", "labels", "meaning"), lines))
    return "\n\n".join(parts)


def _own_labels(metric: Metric) -> tuple[str, ...]:
    common = RUNTIME_LABELS if metric.name.startswith("rocketmq_brokeruntime_") else NODE_LABELS
    return metric.labels[len(common) :] if metric.labels[: len(common)] == common else metric.labels


def limits(kind: str, language: int) -> str:
    return LIMITS[kind]()


def _requests() -> str:
    """The requests with bounds of their own. Codes with equal bounds share a row."""
    found: dict[tuple[str, ...], list[str]] = {}
    for code, request in sorted(REQUESTS.items()):
        if not _is_smallest(request):
            entries = "; ".join(f"`{path}` {most:,}" for path, most in request.max_entries.items())
            sizes = _size(request.max_header_bytes), _size(request.max_body_bytes)
            name = f"{code}\N{NO-BREAK SPACE}`{RequestCode(code).name}`"
            found.setdefault((*sizes, entries, ", ".join(request.state)), []).append(name)
    head = ("codes", "header", "body", "entries", "state that it may leave behind")
    return rows(head, ((", ".join(codes), *bounds) for bounds, codes in found.items()))


def _others() -> str:
    """The requests with the smallest bounds."""
    codes = [f"{code}_{RequestCode(code).name}" for code, request in sorted(REQUESTS.items()) if _is_smallest(request)]
    sizes = f"a header of at most {_size(_SMALLEST_HEADER)} and a body of at most {_size(_SMALLEST_BODY)}"
    listed = textwrap.fill(f"{', '.join(codes)}.", 120)
    return f"All other codes have {sizes}, and leave no state behind:\n" + re.sub(r"\b(\d+)_", r"\1 ", listed)


def _is_smallest(request: RequestType) -> bool:
    sizes = (request.max_header_bytes, request.max_body_bytes)
    return sizes == (_SMALLEST_HEADER, _SMALLEST_BODY) and not request.max_entries and not request.state


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _state() -> str:
    lines = (
        (
            name,
            *("" if most is None else f"{most:,}" for most in (limit.per_connection, limit.per_client)),
            f"{limit.total:,}" + (f" (`{limit.setting}`)" if limit.setting else ""),
            limit.released,
        )
        for name, limit in STATE_LIMITS.items()
    )
    return rows(("state", "per connection", "per address", "in all", "released by"), lines)


LIMITS = {"requests": _requests, "other requests": _others, "state": _state}
