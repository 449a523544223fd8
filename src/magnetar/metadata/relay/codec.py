"""Operations on the metadata store as JSON, and their outcomes: the messages between `RelayedStore` and brokers.

Format:    request: {"op": "get" | "children" | "create" | "put" | "delete" | "transact" | "sync", "path", "value",
           "version", "mode", "operations", "fresh"}; a value is base64; `fresh`: sync first.
           answer: {"result": …}, or {"error": {"class", "message", "index", "cause"}}: the class is one of errors.py,
           so that the caller's code is the same for a local store and a relayed one.
Read next: store.py (asks), admin/cluster/relay.py (answers)
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from magnetar import errors
from magnetar.errors import InvalidPathError, MalformedMetadataError, MetadataError, TransactionFailedError
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.store import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    CreateMode,
    Delete,
    Get,
    Node,
    Operation,
    Put,
    Request,
    Sync,
    Transact,
)

RELAY_PATH: Final = "/admin/v2/magnetar/metadata"
OPERATIONS_MAX: Final = 1_000
"""Operations in one transaction."""
_ERRORS: Final[dict[str, type[MetadataError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, MetadataError) and kind is not TransactionFailedError
}


def is_id_node(create: Create, paths: BookKeeperPaths) -> bool:
    """Reports whether this node counts a ledger id: the one kind of ephemeral node that is relayed. It belongs to the
    broker's session, and the client deletes it at once."""
    return create.mode.is_sequential and create.path.startswith((f"{paths.short_ids}/", f"{paths.long_ids}/"))


# --- requests ---------------------------------------------------------------------------------------------------------


def encode_request(request: Request, *, is_fresh: bool = False) -> dict[str, Any]:
    """Encodes a request without its watcher, which stays here. `is_fresh`: it must see everything done before."""
    match request:
        case Get(path):
            body: dict[str, Any] = {"op": "get", "path": path}
        case Children(path):
            body = {"op": "children", "path": path}
        case Sync():
            body = {"op": "sync"}
        case Transact(operations):
            body = {"op": "transact", "operations": [_encode_operation(each) for each in operations]}
        case operation:
            body = _encode_operation(operation)
    return {**body, "fresh": True} if is_fresh else body


def _encode_operation(operation: Operation) -> dict[str, Any]:
    match operation:
        case Create(path, value, mode):
            return {"op": "create", "path": path, "value": _text(value), "mode": mode.value}
        case Put(path, value, version):
            return {"op": "put", "path": path, "value": _text(value), "version": version}
        case Delete(path, version):
            return {"op": "delete", "path": path, "version": version}
        case Check(path, version):
            return {"op": "check", "path": path, "version": version}


def decode_request(body: Mapping[str, Any]) -> Request:
    """Decodes a request; raises MalformedMetadataError if it is not one."""
    match body.get("op"):
        case "get":
            return Get(_path(body))
        case "children":
            return Children(_path(body))
        case "sync":
            return Sync()
        case "transact":
            return Transact(_decode_operations(body.get("operations")))
    operation = _decode_operation(body)
    if isinstance(operation, Check):
        raise MalformedMetadataError("a check is only part of a transaction")
    return operation


def _decode_operations(found: Any) -> tuple[Operation, ...]:
    if not isinstance(found, list) or len(found) > OPERATIONS_MAX or not all(isinstance(each, dict) for each in found):
        raise MalformedMetadataError(f"operations must be a list of at most {OPERATIONS_MAX} objects")
    return tuple(_decode_operation(each) for each in found)


def _decode_operation(body: Mapping[str, Any]) -> Operation:
    match body.get("op"):
        case "create":
            return Create(_path(body), _value(body), _mode(body))
        case "put":
            return Put(_path(body), _value(body), _version(body))
        case "delete":
            return Delete(_path(body), _version(body))
        case "check":
            return Check(_path(body), _version(body))
    raise MalformedMetadataError(f"{body.get('op')!r} is not an operation on metadata")


def _path(body: Mapping[str, Any]) -> str:
    path = body.get("path")
    if not isinstance(path, str):
        raise InvalidPathError(f"path must be a string, not {path!r}")
    return path


def _value(body: Mapping[str, Any]) -> bytes:
    return _bytes(body.get("value", ""))


def _version(body: Mapping[str, Any]) -> int:
    version = body.get("version", ANY_VERSION)
    if isinstance(version, bool) or not isinstance(version, int):
        raise MalformedMetadataError(f"version must be an integer, not {version!r}")
    return version


def _mode(body: Mapping[str, Any]) -> CreateMode:
    try:
        return CreateMode(body.get("mode", CreateMode.PERSISTENT.value))
    except ValueError as error:
        raise MalformedMetadataError(str(error)) from None


# --- results ----------------------------------------------------------------------------------------------------------


def encode_result(result: Any) -> Any:
    """Encodes a node, or returns what is JSON already."""
    if not isinstance(result, Node):
        return result
    return {
        "value": _text(result.value),
        "version": result.version,
        "createdMs": result.created_ms,
        "modifiedMs": result.modified_ms,
        "owner": result.owner,
    }


def decode_result(request: Request, result: Any) -> Any:
    """Decodes a result; raises MalformedMetadataError if the broker sent something different."""
    if not isinstance(request, Get) or result is None:
        return result
    try:
        return Node(
            _bytes(result["value"]), result["version"], result["createdMs"], result["modifiedMs"], result["owner"]
        )
    except (KeyError, TypeError) as error:
        raise MalformedMetadataError(f"a broker's answer is not a node: {error!r}") from None


def encode_error(error: MetadataError) -> dict[str, Any]:
    body: dict[str, Any] = {"class": type(error).__name__, "message": str(error)}
    if isinstance(error, TransactionFailedError):
        body |= {"index": error.index, "cause": encode_error(error.cause)}
    return body


def decode_error(body: Any) -> MetadataError:
    """Returns the same error again; an error of an unknown class is a MetadataError."""
    if not isinstance(body, dict):
        return MalformedMetadataError(f"a broker's answer is not an error: {body!r}")
    if body.get("class") == TransactionFailedError.__name__:
        return TransactionFailedError(int(body.get("index", 0)), decode_error(body.get("cause")))
    return _ERRORS.get(str(body.get("class")), MetadataError)(str(body.get("message", "")))


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, binascii.Error, ValueError) as error:
        raise MalformedMetadataError(f"a value is not base64: {error}") from None
