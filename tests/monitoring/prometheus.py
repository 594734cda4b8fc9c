"""Prometheus and promtool, as Debian's package ``prometheus`` installs them, for the long tests of the alerts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.kit.waiting import until

RULES = Path(__file__).parents[2] / "docs" / "prometheus" / "alerts.yml"
INSTALLED = shutil.which("prometheus") is not None and shutil.which("promtool") is not None
needs_prometheus = pytest.mark.skipif(
    not INSTALLED, reason="prometheus and promtool are not installed: apt-get install prometheus"
)
_INTERVAL = "1s"
_LISTENING = re.compile(r'msg="Listening on" address=(\S+)')
_READY = 'msg="Server is ready'


def rules() -> dict[str, dict[str, Any]]:
    """The shipped alerts by name."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def without_waiting(leave_out: Collection[str] = ()) -> str:
    """The shipped alerts, except that they fire at once: without ``for``."""
    chosen = [
        {key: value for key, value in rule.items() if key != "for"}
        for name, rule in rules().items()
        if name not in leave_out
    ]
    return yaml.safe_dump({"groups": [{"name": "shipped", "rules": chosen}]})


def promtool(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["promtool", *arguments], input=given, capture_output=True, timeout=60, check=False)


class Prometheus:
    """A running Prometheus, asked over its HTTP interface."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as response:
            return json.load(response)["data"]

    def firing(self) -> set[str]:
        alerts = self.get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def settle(self) -> None:
        """Wait until each target was scraped again, and then each rule evaluated with that."""
        scraped = datetime.now(UTC)
        until(lambda: min(self._scrapes()) > scraped, "a scrape of each target")
        evaluated = datetime.now(UTC)
        until(lambda: min(self._evaluations()) > evaluated, "an evaluation of each group of rules")

    def _scrapes(self) -> list[datetime]:
        return [datetime.fromisoformat(one["lastScrape"]) for one in self.get("targets")["activeTargets"]]

    def _evaluations(self) -> list[datetime]:
        return [datetime.fromisoformat(one["lastEvaluation"]) for one in self.get("rules")["groups"]]


def _address(log: str) -> str | None:
    """The address of a server that is ready. Either can be logged first."""
    found = _LISTENING.search(log)
    return found[1] if found is not None and _READY in log else None


@contextmanager
def running(directory: Path, targets: Mapping[str, Sequence[str]], alerts: str) -> Iterator[Prometheus]:
    """Prometheus with these URLs by job as its targets."""
    directory.mkdir()
    (directory / "alerts.yml").write_text(alerts, encoding="utf-8")
    config = {
        "global": {"scrape_interval": _INTERVAL, "scrape_timeout": _INTERVAL, "evaluation_interval": _INTERVAL},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [{"targets": [url.removeprefix("http://") for url in urls]}],
            }
            for job, urls in targets.items()
        ],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                "--web.listen-address=127.0.0.1:0",
            ],
            cwd=directory,
            stdout=output,
            stderr=output,
        )
    try:
        until(lambda: process.poll() is not None or _address(log.read_text()), "Prometheus")
        address = _address(log.read_text())
        assert address is not None, log.read_text()
        prometheus = Prometheus(f"http://{address}")
        until(lambda: prometheus.get("targets")["activeTargets"])
        prometheus.settle()
        yield prometheus
    finally:
        process.terminate()
        process.wait(30)
