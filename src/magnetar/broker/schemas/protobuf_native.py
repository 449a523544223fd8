"""PROTOBUF_NATIVE schemas: descriptors of the message and of everything it refers to.

Form:      JSON with `fileDescriptorSet` (base64 of protobuf's FileDescriptorSet), `rootMessageTypeName` and
           `rootFileDescriptorName`.
Fit:       protobuf has its own rules for what may change in a message; a broker checks only that it is the same one.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from magnetar.errors import InvalidSchemaError


def root_message(data: bytes) -> str:
    """The message's full name; InvalidSchemaError unless all that it needs is there."""
    document = _document(data)
    files = {file.name: file for file in _files(document)}
    root = _text(document, "rootFileDescriptorName")
    name = _text(document, "rootMessageTypeName")
    _check_dependencies(files, root)
    if name not in _messages(files[root]):
        raise InvalidSchemaError(f"a PROTOBUF_NATIVE schema is of message {name}, which is not in {root}")
    return name


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidSchemaError("the definition of a PROTOBUF_NATIVE schema is not a JSON object")
    return document


def _text(document: dict[str, Any], name: str) -> str:
    found = document.get(name)
    if not isinstance(found, str):
        raise InvalidSchemaError(f"a PROTOBUF_NATIVE schema has no {name}")
    return found


def _files(document: dict[str, Any]) -> list[FileDescriptorProto]:
    try:
        encoded = base64.b64decode(_text(document, "fileDescriptorSet"), validate=True)
        return list(FileDescriptorSet.FromString(encoded).file)
    except (binascii.Error, ValueError, DecodeError):
        raise InvalidSchemaError("the fileDescriptorSet of a PROTOBUF_NATIVE schema is not one in base64") from None


def _check_dependencies(files: dict[str, FileDescriptorProto], root: str) -> None:
    needed = [root]
    for name in needed:
        if name not in files:
            raise InvalidSchemaError(f"a PROTOBUF_NATIVE schema lacks the descriptors of file {name}")
        needed.extend(each for each in files[name].dependency if each not in needed)


def _messages(file: FileDescriptorProto) -> list[str]:
    prefix = f"{file.package}." if file.package else ""
    found = [(f"{prefix}{message.name}", message) for message in file.message_type]
    for name, message in found:
        found.extend(_nested(name, message))
    return [name for name, _ in found]


def _nested(name: str, message: DescriptorProto) -> list[tuple[str, DescriptorProto]]:
    return [(f"{name}.{inner.name}", inner) for inner in message.nested_type]
