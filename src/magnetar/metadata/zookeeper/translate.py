"""Translates ZooKeeper's answers. If a write is not certainly "not done", its outcome is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kazoo import exceptions as kazoo

from magnetar.errors import (
    AccessDeniedError,
    BadVersionError,
    InvalidPathError,
    MetadataError,
    MetadataUnavailableError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    StoreClosedError,
    TransactionFailedError,
)
from magnetar.metadata.base import unanswered
from magnetar.metadata.store import (
    Check,
    Create,
    Delete,
    Node,
    Operation,
    OperationResult,
    Put,
    Request,
    Transact,
    WatchKind,
    describe,
)
from magnetar.metadata.zookeeper.client import NotSentError

WATCH_KINDS = {
    "CREATED": WatchKind.CREATED,
    "CHANGED": WatchKind.CHANGED,
    "DELETED": WatchKind.DELETED,
    "CHILD": WatchKind.CHILDREN,
    "NONE": WatchKind.INTERRUPTED,
}

_Make: TypeAlias = Callable[[str], MetadataError]
# Refused by the server before anything was changed.
_REFUSED: dict[type[BaseException], tuple[_Make, str]] = {
    kazoo.NoNodeError: (NoNodeError, "the node, or the parent it needs, does not exist"),
    kazoo.NodeExistsError: (NodeExistsError, "the node exists already"),
    kazoo.BadVersionError: (BadVersionError, "the node has another version"),
    kazoo.NotEmptyError: (NotEmptyError, "the node has children; delete them first"),
    kazoo.NoChildrenForEphemeralsError: (
        NoChildrenForEphemeralsError,
        "the parent is ephemeral and cannot have children",
    ),
    kazoo.NoAuthError: (
        AccessDeniedError,
        "ZooKeeper denies it to us; check zookeeper.auth_digest against the access list of the node",
    ),
    kazoo.AuthFailedError: (AccessDeniedError, "ZooKeeper refuses our credentials; check zookeeper.auth_digest"),
    kazoo.SessionClosedRequireSaslError: (AccessDeniedError, "ZooKeeper asks for SASL, which we do not speak"),
    kazoo.InvalidACLError: (
        AccessDeniedError,
        "ZooKeeper refuses zookeeper.acl = creator; check zookeeper.auth_digest",
    ),
    kazoo.BadArgumentsError: (InvalidPathError, "ZooKeeper refuses the path"),
    kazoo.QuotaExceededError: (MetadataError, "a quota that an administrator has set in ZooKeeper is exceeded"),
    kazoo.UnimplementedError: (MetadataError, "this ZooKeeper server does not know the operation"),
    kazoo.ThrottledOpError: (MetadataUnavailableError, "ZooKeeper is overloaded and refused it"),
    kazoo.SessionMovedError: (MetadataUnavailableError, "the session has moved to another server"),
    kazoo.SessionExpiredError: (SessionExpiredError, "the session has expired"),
}


def translate(error: BaseException, request: Request, *, closing: bool) -> MetadataError:
    """Returns the error that the caller gets."""
    what = describe(request)
    if isinstance(error, NotSentError | kazoo.ConnectionClosedError):
        if closing:
            return StoreClosedError(f"{what}: the metadata store was closed")
        if isinstance(error, NotSentError) and error.session_expired:
            return SessionExpiredError(f"{what}: the session expired before it was sent")
        if isinstance(error, NotSentError) and error.access_denied:
            return AccessDeniedError(f"{what}: {_REFUSED[kazoo.AuthFailedError][1]}")
        return MetadataUnavailableError(f"{what}: the connection was lost before it was sent")
    if type(error) in _REFUSED:
        make, why = _REFUSED[type(error)]
        return make(f"{what}: {why}")
    unknown = unanswered(request)
    if not isinstance(error, kazoo.ConnectionLoss):
        unknown.add_note(f"ZooKeeper's answer: {error!r}")
    return unknown


def transaction_results(request: Transact, answers: Sequence[Any]) -> list[OperationResult] | MetadataError:
    """Returns each operation's result, or why one failed; the other operations report that they were rolled back."""
    for index, (operation, answer) in enumerate(zip(request.operations, answers, strict=True)):
        if isinstance(answer, Exception) and not isinstance(answer, kazoo.RolledBackError | kazoo.RuntimeInconsistency):
            return TransactionFailedError(index, _cause(operation, answer))
    if any(isinstance(answer, Exception) for answer in answers):
        return unanswered(request)
    return [_result(operation, answer) for operation, answer in zip(request.operations, answers, strict=True)]


def _cause(operation: Operation, answer: Exception) -> MetadataError:
    what = f"{type(operation).__name__.lower()} {operation.path}"
    make, why = _REFUSED.get(type(answer), (MetadataError, repr(answer)))
    return make(f"{what}: {why}")


def _result(operation: Operation, answer: Any) -> OperationResult:
    match operation:
        case Create():
            return str(answer)
        case Put():
            return int(answer.version)
        case Delete() | Check():
            return None


def node_of(value: bytes | None, stat: Any) -> Node:
    """Returns the node. Another client may have made it without any value: for us that is an empty one."""
    return Node(value or b"", stat.version, stat.ctime, stat.mtime, stat.ephemeralOwner)
