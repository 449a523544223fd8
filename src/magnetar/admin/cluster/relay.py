"""The metadata store for clients that know only a broker: single operations, relayed. A path that Pulsar does not have.

Ledgers (below the ledgers' root) and sinks (below /magnetar/sinks) may be read and changed; racks may be read. Bookies'
own nodes there (registrations, cookies) and the cluster's own nodes may be read and not changed. Ephemeral nodes are
refused, as they would live as long as this broker, except those by which ledger ids are counted.

Format:    The answer is a result, or the error's class, so that the other side raises the same
           (metadata/relay.py).
"""

from __future__ import annotations

import json
from typing import Any, Final

from magnetar.admin.http.call import Call, Reply, Route
from magnetar.admin.http.errors import BAD_REQUEST, CONFLICT, FAILED, NOT_FOUND, UNAVAILABLE
from magnetar.errors import (
    AccessDeniedError,
    BadVersionError,
    InvalidPathError,
    MalformedMetadataError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    TransactionFailedError,
    ValueTooLargeError,
)
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.paths import check_path
from magnetar.metadata.relay import RELAY_PATH, decode_request, encode_error, encode_result, is_id_node
from magnetar.metadata.store import (
    Check,
    Children,
    Create,
    Delete,
    Get,
    MetadataStore,
    Operation,
    Put,
    Request,
    Sync,
    Transact,
)

OURS: Final = "/magnetar"
SINKS: Final = f"{OURS}/sinks"
RACKS: Final = "/bookies"

_FORBIDDEN: Final = 403
_STATUS: Final[tuple[tuple[type[MetadataError], int], ...]] = (
    (AccessDeniedError, _FORBIDDEN),
    (NoNodeError, NOT_FOUND),
    (NodeExistsError, CONFLICT),
    (BadVersionError, CONFLICT),
    (NotEmptyError, CONFLICT),
    (TransactionFailedError, CONFLICT),
    (InvalidPathError, BAD_REQUEST),
    (MalformedMetadataError, BAD_REQUEST),
    (ValueTooLargeError, BAD_REQUEST),
)


class Permissions:
    """Decides which nodes may be reached from outside."""

    def __init__(self, ledgers_root: str) -> None:
        self._paths = paths = BookKeeperPaths(ledgers_root)
        self._readable = (ledgers_root, OURS, RACKS)
        self._changeable = (ledgers_root, SINKS)
        self._kept = (paths.available, paths.cookies, paths.instance_id, paths.layout)

    def check(self, request: Request) -> None:
        match request:
            case Get(path) | Children(path):
                if not _is_below(path, self._readable):
                    raise _denied(path, "read")
            case Transact(operations):
                for operation in operations:
                    self._check_change(operation)
            case Sync():
                return
            case operation:
                self._check_change(operation)

    def _check_change(self, operation: Operation) -> None:
        path = operation.path
        if isinstance(operation, Check):
            may = _is_below(path, self._readable)
        elif isinstance(operation, Create) and path == OURS:  # The parent of what may be made.
            may = not operation.mode.is_ephemeral
        else:
            may = _is_below(path, self._changeable) and not _is_below(path, self._kept)
        if not may:
            raise _denied(path, "changed")
        if isinstance(operation, Create) and operation.mode.is_ephemeral and not is_id_node(operation, self._paths):
            raise AccessDeniedError(f"{path} cannot be ephemeral: it would live as long as the broker's session")


def _is_below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _denied(path: str, what: str) -> AccessDeniedError:
    return AccessDeniedError(f"{path} cannot be {what} through a broker: ledgers and {SINKS} can")


async def relay(call: Call) -> Reply:
    body = call.json_object()
    permissions = Permissions(call.service.config.metadata.ledgers_root)
    return await perform(call.service.resources.store, body, permissions)


async def perform(store: MetadataStore, body: dict[str, Any], permissions: Permissions | None) -> Reply:
    """Performs one operation and returns its outcome; without permissions everything is allowed."""
    try:
        request = decode_request(body)
        for path in _paths_of(request):
            check_path(path)
        if permissions is not None:
            permissions.check(request)
        if body.get("fresh") is True:
            await store.sync()
        result = encode_result(await _apply(store, request))
    except MetadataError as error:
        return _reply({"error": encode_error(error), "reason": str(error)}, _status_of(error))
    return _reply({"result": result})


def _paths_of(request: Request) -> list[str]:
    match request:
        case Transact(operations):
            return [operation.path for operation in operations]
        case Sync():
            return []
        case other:
            return [other.path]


async def _apply(store: MetadataStore, request: Request) -> Any:
    match request:
        case Get(path):
            return await store.get(path)
        case Children(path):
            return await store.children(path)
        case Sync():
            return await store.sync()
        case Transact(operations):
            return await store.transact(operations)
        case Create(path, value, mode):
            return await store.create(path, value, mode=mode)
        case Put(path, value, version):
            return await store.put(path, value, version)
        case Delete(path, version):
            return await store.delete(path, version)


def _status_of(error: MetadataError) -> int:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return UNAVAILABLE if error.retryable or error.outcome_unknown else FAILED


def _reply(body: dict[str, Any], status: int = 200) -> Reply:
    return Reply(json.dumps(body, separators=(",", ":")).encode(), status=status)


ROUTES = [
    Route(
        "POST",
        RELAY_PATH,
        "Perform one operation on the metadata of ledgers and sinks",
        relay,
        body='an operation, such as {"op": "get", "path": "/ledgers/00/0000/L0001"}',
    )
]
