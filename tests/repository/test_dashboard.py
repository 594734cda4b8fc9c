"""The Grafana dashboard asks for metrics that exist, by labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_rocket.broker.metrics.table import METRICS
from spark_rocket.namesrv.name_server import METRICS as NAMESRV_METRICS
from spark_rocket.proxy.metrics import METRICS as PROXY_METRICS
from spark_rocket.remoting.http.monitor import MONITOR_METRICS
from spark_rocket.remoting.server.overload import OVERLOAD_METRICS

DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "docs" / "grafana" / "spark-rocket.json").read_text(encoding="utf-8")
)
ALERTS = yaml.safe_load((Path(__file__).parents[2] / "docs" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))[
    "groups"
]
_GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "monitoring.md").read_text(encoding="utf-8")
_TABLES = (METRICS, NAMESRV_METRICS, PROXY_METRICS, OVERLOAD_METRICS, MONITOR_METRICS)
KNOWN = {metric.name: metric for table in _TABLES for metric in table}
VARIABLES = {one["name"] for one in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
SELECTOR = re.compile(r"\b((?:rocket|rocketmq|process)_\w+)\b(?:\{([^}]*)\})?")


def queries() -> Iterator[Any]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield pytest.param(target["expr"], target["legendFormat"], id=f"{panel['title']}-{target['refId']}")
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield pytest.param(variable["query"]["query"], "", id=variable["name"])
    for group in ALERTS[:2]:  # not those of the lag listener
        for rule in group["rules"]:
            if "up{" not in rule["expr"]:
                yield pytest.param(rule["expr"], "", id=rule["alert"])


@pytest.mark.parametrize(("query", "legend"), list(queries()))
def test_a_query_names_what_there_is(query: str, legend: str) -> None:
    found = SELECTOR.findall(query)
    assert found
    labels: set[str] = set()
    for name, conditions in found:
        metric = KNOWN[name.removesuffix("_bucket") if name not in KNOWN else name]
        labels |= {*metric.labels, "le"}
        assert set(re.findall(r"(\w+)=~?\"", conditions)) <= set(metric.labels), conditions
        if metric.kind == "counter":
            assert re.search(rf"(rate|increase)\({name}", query), "a counter needs a rate"
        else:
            assert name.endswith("_bucket") or not re.search(rf"(rate|increase)\({name}", query)
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels
    assert set(re.findall(r"by \(([^)]*)\)", query)) <= {", ".join(some) for some in _lists(query)} | {""}
    for some in _lists(query):
        assert set(some) <= labels
    assert set(re.findall(r"\$(\w+)", query)) <= VARIABLES
    assert query.count("(") == query.count(")")
    assert query.count("{") == query.count("}")


def _lists(query: str) -> list[list[str]]:
    return [re.split(r",\s*", some) for some in re.findall(r"by \(([^)]*)\)", query)]


def test_the_guide_explains_each_alert() -> None:
    section = _GUIDE.partition("## Alerts")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"`(Rocket[A-Z]\w+)`(?=[^|]*\|[^|]*\|$)", section, re.M)) == sorted(
        rule["alert"] for group in ALERTS for rule in group["rules"]
    )


def test_panels_do_not_overlap_and_have_a_title() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["title"]
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
