"""What ``rocket up`` says once it is up."""

from __future__ import annotations

import pytest

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.cli.servers.serve import snippet


@pytest.mark.parametrize(
    ("settings", "asked_for"),
    [
        ({}, []),
        ({"aclEnable": "true"}, ["accessKey", "secretKey"]),
        ({"tls.server.mode": "permissive", "tls.test.mode.enable": "true"}, []),
        ({"tls.server.mode": "enforcing", "tls.test.mode.enable": "true"}, ["tls", "tlsCaFile"]),
    ],
)
def test_the_lines_to_try_have_what_the_servers_ask_for(settings: dict[str, object], asked_for: list[str]) -> None:
    lines = snippet("127.0.0.1:9876", BrokerConfig.from_properties(settings))
    for name in ("accessKey", "secretKey", "tls", "tlsCaFile"):
        assert lines.count(f'.option("{name}", ') == (2 if name in asked_for else 0)
    assert lines.count('.option("nameServer", "127.0.0.1:9876")') == 2
    compile("\n".join(line.strip() for line in lines.splitlines()), "snippet", "exec")
