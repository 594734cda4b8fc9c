"""The protocol's messages: the encoded bytes match the definition, in a separate descriptor pool."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError

from spark_rocket.proxy import definitions


def test_a_request_byte_for_byte() -> None:
    request = definitions.SendMessageRequest()
    message = request.messages.add(topic=definitions.Resource(name="orders"), body=b"hello", user_properties={"a": "b"})
    message.system_properties.tag = "t"
    message.system_properties.message_type = definitions.MessageType.FIFO
    message.system_properties.born_timestamp.FromMilliseconds(1_500)
    message.system_properties.message_group = "g"
    expected = (
        "0a2e"  # messages
        "0a08" "12066f7264657273"  # topic: name
        "1206" "0a0161120162"  # user_properties: a, b
        "1a13" "0a0174" "3002" "3a08" "0801" "1080cab5ee01" "8a010167"  # tag, FIFO, 1 s and 500,000,000 ns, group
        "2205" "68656c6c6f"
    )  # fmt: skip
    assert request.SerializeToString(deterministic=True).hex() == expected
    assert definitions.SendMessageRequest.FromString(bytes.fromhex(expected)) == request


def test_presence_oneof_and_numbers() -> None:
    settings = definitions.Settings()
    assert not settings.HasField("client_type")
    settings.subscription.fifo = False
    assert settings.WhichOneof("pub_sub") == "subscription"
    assert settings.subscription.HasField("fifo")
    assert definitions.Code.Name(40402) == "TOPIC_NOT_FOUND"
    assert definitions.OffsetOption(policy=2).WhichOneof("offset_type") == "policy"


def test_every_method_has_its_messages() -> None:
    service = definitions.messaging().descriptor.services_by_name["MessagingService"]
    assert len(service.methods) == 17
    streams = {method.name for method in service.methods if method.server_streaming}
    assert streams == {"ReceiveMessage", "PullMessage", "Telemetry"}
    for method in service.methods:
        assert getattr(definitions, method.input_type.name).DESCRIPTOR is method.input_type


def test_definitions_are_not_registered_globally() -> None:
    assert definitions.Message.DESCRIPTOR.full_name == "apache.rocketmq.v2.Message"
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("apache.rocketmq.v2.Message")


def test_unsupported_features() -> None:
    with pytest.raises(AttributeError, match="Unknown message or enumeration Envelope"):
        _ = definitions.Envelope
    with pytest.raises(DecodeError):
        definitions.Message.FromString(b"\xff")


@pytest.mark.live
def test_the_descriptor_set_is_that_of_the_proto(tmp_path: Path) -> None:
    """`make protos` was run after the last change."""
    pytest.importorskip("grpc_tools")
    root = Path(__file__).resolve().parents[2]
    made = tmp_path / "made.binpb"
    subprocess.run([sys.executable, root / "tools" / "protos.py", made], check=True, timeout=60)
    assert made.read_bytes() == files("spark_rocket.proxy").joinpath("messaging_service.binpb").read_bytes()
