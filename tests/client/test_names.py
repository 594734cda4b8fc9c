"""What ``spark_rocket.client`` offers is imported when it is asked for."""

import subprocess
import sys

import pytest

import spark_rocket.client

pytestmark = pytest.mark.live


def test_every_name_is_there() -> None:
    for name in spark_rocket.client.__all__:
        assert getattr(spark_rocket.client, name).__name__ == name
    assert set(spark_rocket.client.__all__) <= set(dir(spark_rocket.client))
    with pytest.raises(AttributeError, match="no attribute 'Consumer'"):
        spark_rocket.client.Consumer  # noqa: B018


def test_an_admin_needs_no_consumers_and_nothing_heavy() -> None:
    script = "import sys; from spark_rocket.client import Admin; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"spark_rocket.client.consume.push_consumer", "spark_rocket.client.consume.lite_pull_consumer"}
    heavy |= {"pyarrow", "numpy", "cryptography", "grpc", "rich", "yaml"}
    assert not heavy & {*ran.stdout.split()}
