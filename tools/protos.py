"""``make protos``: compile messaging_service.proto to the descriptor set that the package reads.

``python tools/protos.py [OUTPUT]``; the default is the checked-in file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

PROXY = Path(__file__).resolve().parents[1] / "spark_rocket" / "proxy"
NAME = "apache/rocketmq/v2/messaging_service.proto"


def compile_to(output: Path) -> None:
    """Write the descriptor set of the service, without its imports."""
    source = PROXY / "messaging_service.proto"
    include = Path(protoc.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{PROXY}", f"-I{include}", f"--descriptor_set_out={output}", source.name]
    if protoc.main(arguments):
        raise SystemExit(f"protoc cannot compile {source}")
    found = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    found.file[0].name = NAME  # the name that reflection reports
    output.write_bytes(found.SerializeToString(deterministic=True))


if __name__ == "__main__":
    compile_to(Path(sys.argv[1]) if sys.argv[1:] else PROXY / "messaging_service.binpb")
