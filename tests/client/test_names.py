"""Names of ``spark_rocket.client`` are imported on first use."""

import subprocess
import sys

import pytest

import spark_rocket.client

pytestmark = pytest.mark.live


def test_every_exported_name_exists() -> None:
    for name in spark_rocket.client.__all__:
        assert getattr(spark_rocket.client, name).__name__ == name
    assert set(spark_rocket.client.__all__) <= set(dir(spark_rocket.client))
    with pytest.raises(AttributeError, match="no attribute 'Consumer'"):
        spark_rocket.client.Consumer  # noqa: B018


def test_importing_admin_loads_no_consumers_and_no_heavy_modules() -> None:
    script = "import sys; from spark_rocket.client import Admin; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"spark_rocket.client.consume.push_consumer", "spark_rocket.client.consume.lite_pull_consumer"}
    heavy |= {"pyarrow", "numpy", "cryptography", "grpc", "rich", "yaml"}
    assert not heavy & {*ran.stdout.split()}
