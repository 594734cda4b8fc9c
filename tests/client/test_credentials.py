"""Sources of a client's credentials."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.client.core.client_config import ClientConfig, find_credentials, read_credentials
from spark_rocket.client.core.instance import _key
from spark_rocket.errors import BrokerError, ConfigError
from spark_rocket.model import Message
from spark_rocket.protocol.auth import Credentials
from spark_rocket.testing import LocalCluster

ENVIRONMENT = {"ROCKETMQ_ACCESS_KEY": "env-key", "ROCKETMQ_SECRET_KEY": "env-s3cr3t"}


def test_arguments_override_the_environment() -> None:
    assert find_credentials(environment={}) is None
    assert find_credentials(environment=ENVIRONMENT) == Credentials("env-key", "env-s3cr3t")
    assert find_credentials("a", "b", "c", ENVIRONMENT) == Credentials("a", "b", "c")
    token = ENVIRONMENT | {"ROCKETMQ_SECURITY_TOKEN": "t"}
    assert find_credentials(environment=token) == Credentials("env-key", "env-s3cr3t", "t")


@pytest.mark.parametrize(
    ("given", "environment", "missing"),
    [
        ({"access_key": "a"}, ENVIRONMENT, "access_key is set without secret_key"),
        ({"secret_key": "s3cr3t"}, {}, "secret_key is set without access_key"),
        ({}, {"ROCKETMQ_SECRET_KEY": "s3cr3t"}, "ROCKETMQ_SECRET_KEY is set without ROCKETMQ_ACCESS_KEY"),
        ({}, {"ROCKETMQ_ACCESS_KEY": "a"}, "ROCKETMQ_ACCESS_KEY is set without ROCKETMQ_SECRET_KEY"),
    ],
)
def test_incomplete_credentials(given: dict[str, str], environment: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigError, match=missing) as refused:
        find_credentials(**given, environment=environment)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("accessKey: rocketmq2\nsecretKey: 12345678\n", "12345678"),  # mqadmin's tools.yml
        ("accessKey: rocketmq2\nsecretKey: 0123456\n", "0123456"),
        ('{"accessKey": "rocketmq2", "secretKey": "s3cr3t: x"}', "s3cr3t: x"),
    ],
)
def test_a_credentials_file(tmp_path: Path, text: str, secret: str) -> None:
    path = tmp_path / "tools.yml"
    path.write_text(text)
    assert read_credentials(path) == Credentials("rocketmq2", secret)


@pytest.mark.parametrize(
    "text",
    ["", "s3cr3t", "- s3cr3t", "accessKey: a", "secretKey: s3cr3t", "accessKey: [s3cr3t",
     "accessKey: a\nsecretKey: {x: s3cr3t}", "accessKey: a\nsecretKey: 's3cr3t \0'", "[" * 4_000, "x" * 100_000,
     'accessKey: a\nsecretKey: "s3cr3t\\n"'],
)  # fmt: skip
def test_an_invalid_credentials_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tools.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)) as refused:
        read_credentials(path)
    assert "s3cr3t" not in str(refused.value)
    for unreadable in (tmp_path / "away", "tools\0.yml"):
        with pytest.raises(ConfigError, match="Cannot read the credentials file"):
            read_credentials(unreadable)


def test_clients_with_different_credentials_share_nothing() -> None:
    configs = [
        ClientConfig.of("127.0.0.1:9876", {}),
        ClientConfig.of("127.0.0.1:9876", {}, access_key="a", secret_key="s3cr3t"),
        ClientConfig.of("127.0.0.1:9876", {}, access_key="a", secret_key="s3cr3t2"),
        ClientConfig.of("127.0.0.1:9876", ENVIRONMENT),
        ClientConfig.of("http://127.0.0.1:8080/rocketmq/nsaddr", ENVIRONMENT),
    ]
    assert len({_key(config) for config in configs}) == 5
    assert "s3cr3t" not in repr(configs)


@pytest.mark.live
def test_clients_of_a_cluster_with_signatures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slave signs its requests to the master. Clients read the environment."""
    keys: dict[str, Any] = {"access_key": "root-key", "secret_key": "r00t-s3cr3t"}
    with LocalCluster(brokers=1, slaves=True, data_dir=tmp_path, **keys) as cluster:
        cluster.create_topic("orders", 1)
        with Producer("senders", name_server=cluster.name_server, **keys) as producer:
            for number in range(20):
                producer.send(Message.of("orders", str(number)))
            assert producer.send_async(Message.of("orders", "later")).result(30.0).msg_id
            producer.send_oneway(Message.of("orders", "one way"))
        with Reader(cluster.name_server, **keys) as reader:
            (queue,) = reader.queues("orders")
            assert len(reader.messages(queue, 0)) >= 21
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "root-key")
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "wrong-s3cr3t")
        with Reader(cluster.name_server) as reader, pytest.raises(BrokerError) as refused:
            reader.max_offset(reader.queues("orders")[0])
        assert refused.value.response_code == 16
        assert refused.value.remedy.startswith("Set the access key and the secret key of an account")
        assert "accessKey root-key" in refused.value.message
        assert "s3cr3t" not in str(refused.value)
        slave = cluster.slaves[0]
        topics = slave.store_dir / "config" / "topics.json"
        deadline = time.monotonic() + 60.0
        while not (topics.exists() and "orders" in topics.read_text()):  # it has taken over its master's topics
            assert time.monotonic() < deadline, slave.log
            time.sleep(0.05)
        assert "s3cr3t" not in cluster.log
        assert "r00t" not in "".join(path.read_text() for path in tmp_path.rglob("*.json"))
