"""Server reflection (grpc.reflection.v1 and v1alpha, which differ by name only): tools such as grpcurl ask it for the
services and their messages, and need no .proto files.

======================  =====================================================================
asked for               answer
======================  =====================================================================
list_services           the services' full names
file_by_filename        that file's descriptor and those of all files that it imports
file_containing_symbol  likewise, of the file with that service, method, message or enum
extensions              NOT_FOUND: there are none
======================  =====================================================================

Thread-safety: used on the event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import cache
from typing import Any

from google.protobuf.message import DecodeError

from spark_rocket.proxy.context import Context, GrpcCode, Rpc, RpcError
from spark_rocket.proxy.definitions import Definitions

PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
_TEXT = """
syntax = "proto3";
package {package};
message ServerReflectionRequest {{
  string host = 1;
  oneof message_request {{
    string file_by_filename = 3;
    string file_containing_symbol = 4;
    ExtensionRequest file_containing_extension = 5;
    string all_extension_numbers_of_type = 6;
    string list_services = 7;
  }}
}}
message ExtensionRequest {{ string containing_type = 1; int32 extension_number = 2; }}
message ServerReflectionResponse {{
  string valid_host = 1;
  ServerReflectionRequest original_request = 2;
  oneof message_response {{
    FileDescriptorResponse file_descriptor_response = 4;
    ExtensionNumberResponse all_extension_numbers_response = 5;
    ListServiceResponse list_services_response = 6;
    ErrorResponse error_response = 7;
  }}
}}
message FileDescriptorResponse {{ repeated bytes file_descriptor_proto = 1; }}
message ExtensionNumberResponse {{ string base_type_name = 1; repeated int32 extension_number = 2; }}
message ListServiceResponse {{ repeated ServiceResponse service = 1; }}
message ServiceResponse {{ string name = 1; }}
message ErrorResponse {{ int32 error_code = 1; string error_message = 2; }}
service ServerReflection {{
  rpc ServerReflectionInfo (stream ServerReflectionRequest) returns (stream ServerReflectionResponse);
}}
"""


@cache
def definitions(package: str) -> Definitions:
    """The service's messages in one of its two packages."""
    return Definitions(_TEXT.format(package=package), f"{package.replace('.', '/')}/reflection.proto")


def rpcs(served: Iterable[Definitions]) -> dict[str, Rpc]:
    """The methods, for a server of the services of these files, and of reflection itself."""
    known = [*served, *map(definitions, PACKAGES)]
    return {
        f"/{package}.ServerReflection/ServerReflectionInfo": Rpc(
            _handler(definitions(package), known), request_streaming=True, response_streaming=True
        )
        for package in PACKAGES
    }


def _handler(own: Definitions, known: list[Definitions]) -> Callable[..., AsyncIterator[bytes]]:
    request_class: Any = own.types["ServerReflectionRequest"]
    answer_class: Any = own.types["ServerReflectionResponse"]

    async def info(context: Context, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for raw in requests:
            try:
                request = request_class.FromString(raw)
            except DecodeError as error:
                raise RpcError(
                    GrpcCode.INVALID_ARGUMENT, f"the request is no ServerReflectionRequest: {error}"
                ) from None
            answer = answer_class(valid_host=request.host, original_request=request)
            _fill(answer, request, known)
            yield answer.SerializeToString()

    return info


def _fill(answer: Any, request: Any, known: list[Definitions]) -> None:
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        for definitions in known:
            for service in definitions.descriptor.services_by_name.values():
                answer.list_services_response.service.add(name=service.full_name)
        return
    if kind in ("file_by_filename", "file_containing_symbol"):
        for definitions in known:
            file = _find(definitions.pool, kind, getattr(request, kind))
            if file is None:
                continue
            answer.file_descriptor_response.file_descriptor_proto.extend(
                {found.name: found.serialized_pb for found in _with_imports(file)}.values()
            )
            return
    answer.error_response.error_code = GrpcCode.NOT_FOUND
    answer.error_response.error_message = f"there is no {kind} of that name" if kind else "nothing was asked for"


def _find(pool: Any, kind: str, name: str) -> Any:
    if kind == "file_by_filename":
        finders = [(pool.FindFileByName, name)]
    else:  # methods are found by their services
        finders = [(pool.FindFileContainingSymbol, symbol) for symbol in (name, name.rpartition(".")[0])]
    for find, what in finders:
        try:
            return find(what)
        except KeyError:
            continue
    return None


def _with_imports(file: Any) -> Iterable[Any]:
    yield file
    for imported in file.dependencies:
        yield from _with_imports(imported)
