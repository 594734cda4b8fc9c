"""RocketMQ's own Python client and this package in one process: both define protobuf messages with the same names."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.live

THEIRS = "from rocketmq.grpc_protocol import service_pb2, definition_pb2 as theirs"
OURS = "from spark_rocket.proxy import definitions as ours, server"
CHECK = """
message = theirs.Message(topic=theirs.Resource(name="T"), body=b"x")
assert ours.Message.FromString(message.SerializeToString()).topic.name == "T"
assert theirs.Message.FromString(ours.Message(body=b"y").SerializeToString()).body == b"y"
assert type(message) is not ours.Message
"""


@pytest.mark.skipif(importlib.util.find_spec("rocketmq") is None, reason="rocketmq-python-client is not installed")
@pytest.mark.parametrize("order", [(THEIRS, OURS), (OURS, THEIRS)], ids=["theirs first", "ours first"])
def test_both_can_be_imported(order: tuple[str, str]) -> None:
    program = "\n".join([*order, CHECK])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
