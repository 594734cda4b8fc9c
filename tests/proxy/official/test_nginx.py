"""RocketMQ's own client behind nginx with the configuration in ``deploy/nginx``."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from spark_rocket.proxy import definitions
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.certificates import CertificateAuthority
from spark_rocket.testing.threads import ProxyThread
from tests.kit.waiting import until
from tests.proxy.caller import SECONDS
from tests.proxy.official.clients import Official

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")

CONFIG = (Path(__file__).parents[3] / "deploy" / "nginx" / "rocket-grpc.conf").read_text()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), SECONDS).close()
    except ConnectionError:
        return False
    return True


@contextmanager
def nginx(directory: Path, proxy: str) -> Iterator[tuple[str, Path]]:
    """The endpoint of a proxy behind nginx, and the CA of its certificate."""
    authority, port = CertificateAuthority(directory), free_port()
    pair = authority.issue("nginx")
    here = {
        "/etc/nginx/rocket/certificate.pem": str(pair.certificate),
        "/etc/nginx/rocket/key.pem": str(pair.key),
        "127.0.0.1:8081": proxy,
        "listen 443": f"listen 127.0.0.1:{port}",
    }
    text = re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], CONFIG)
    # nginx creates them at its start; the default ones belong to an installed package.
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {directory};\n" for kind in kinds)
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; error_log stderr; pid {directory}/nginx.pid;\n"
        f"events {{}}\nhttp {{ access_log off;\n{folders}{text}}}\n"
    )
    with subprocess.Popen(["nginx", "-p", directory, "-c", directory / "nginx.conf"]) as process:
        try:
            until(lambda: process.poll() is not None or listens(port))
            yield f"127.0.0.1:{port}", authority.certificate
        finally:
            process.terminate()


def test_the_python_client_and_health_behind_nginx(tmp_path: Path) -> None:
    with LocalCluster(in_process=True) as cluster:
        topic = cluster.create_topic("orders", 2)
        settings = {"namesrvAddr": cluster.name_server, "grpcServerPort": 0, "tlsTestModeEnable": False}
        proxy = ProxyThread(ProxyConfig.from_properties(settings), SECONDS)
        with ExitStack() as stack:
            stack.callback(proxy.stop)
            endpoint, trusted = stack.enter_context(nginx(tmp_path, proxy.address))
            client = Official("python", endpoint, tmp_path, trusted=trusted)
            stack.callback(client.close)
            client.do("producer", "p", topics=[topic])
            client.do("simple", "c", group="readers", topics={topic: ["*", "TAG"]})
            sent = [client.do("send", "p", message={"topic": topic, "body": f"{n}" * 20_000}) for n in range(10)]
            received = client.receive("c", 10)
            assert {one["messageId"] for one in received} == {one["messageId"] for one in sent}
            credentials = grpc.ssl_channel_credentials(trusted.read_bytes())
            with grpc.secure_channel(endpoint, credentials) as channel:
                proxy.stop()
                query = channel.unary_unary(f"/{definitions.SERVICE}/QueryRoute")
                with pytest.raises(grpc.RpcError) as caught:
                    query(b"", timeout=SECONDS)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
