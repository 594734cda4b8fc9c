"""The protocol's messages as classes: ``definitions.SendMessageRequest(...)``, ``definitions.Code.OK``.

They are built on first use from the descriptor set messaging_service.binpb (``make protos``), in a separate descriptor
pool. Generated code would register in protobuf's default pool, where RocketMQ's Python client registers the same names:
a process that imports both would fail.

Thread-safety: all functions; classes do not change after they are built.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{PACKAGE}.MessagingService"


class Definitions:
    """The messages and enumerations of a descriptor set with one file, by name."""

    def __init__(self, descriptor_set: bytes) -> None:
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
        self.pool = descriptor_pool.DescriptorPool()
        for imported in (duration_pb2, timestamp_pb2):
            self.pool.AddSerializedFile(imported.DESCRIPTOR.serialized_pb)
        self.pool.AddSerializedFile(file.SerializeToString())
        self.descriptor = self.pool.FindFileByName(file.name)
        self.types: dict[str, Any] = {
            name: message_factory.GetMessageClass(message)
            for name, message in self.descriptor.message_types_by_name.items()
        }
        self.types.update((name, EnumTypeWrapper(enum)) for name, enum in self.descriptor.enum_types_by_name.items())
        for name in ("Duration", "Timestamp"):
            found = self.pool.FindMessageTypeByName(f"google.protobuf.{name}")
            self.types[name] = message_factory.GetMessageClass(found)


@cache
def messaging() -> Definitions:
    """Return the definitions of the messaging service."""
    return Definitions(files(__package__).joinpath("messaging_service.binpb").read_bytes())


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        found = messaging().types[name]
    except KeyError:
        raise AttributeError(f"Unknown message or enumeration {name}.") from None
    globals()[name] = found
    return found
