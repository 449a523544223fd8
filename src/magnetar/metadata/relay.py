"""RelayedStore: the metadata store through a broker's HTTP port, for processes that know only where a broker is.

Purpose:   an executor of Spark creates, closes and reads ledgers; it has a broker's address, not ZooKeeper's, and
           the embedded store can be opened by one process alone.
Format:    request: {"op": "get" | "children" | "create" | "put" | "delete" | "transact" | "sync", "path", "value",
           "version", "mode", "operations", "fresh"}; a value is base64; `fresh`: sync first.
           answer: {"result": …}, or {"error": {"class", "message", "index", "cause"}}: the class is one of errors.py,
           so that the caller's code is the same for a local store and a relayed one.
Invariant: it has no session, so one state, connected, until it is closed; ephemeral nodes are refused. (Except for the
           nodes that count ledger ids: those belong to the broker's session, and are deleted once they are counted.)
Order:     changes are sent one at a time, each when the one before is answered. Reads overtake each other.
Failure:   while no broker answers, reads and unsent requests are tried again, up to `operation_timeout_ms`. A change
           whose answer is lost is OutcomeUnknownError. The first request after an outage syncs: another broker may
           answer, and its store may lag.
Limits:    a watcher is called with INTERRUPTED after `watch_s`, which any store may do at any time; a follower reads
           the node anew then. So news may be late by that much, but no connection is held open for them. Only nodes
           below the ledgers' root and /magnetar/sinks are allowed.
Read next: admin/cluster/relay.py (answers), client/http.py
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from random import Random
from typing import Any, Final

from magnetar import errors
from magnetar.client.http import HttpAnswer, HttpClient
from magnetar.config.metadata import MetadataConfig
from magnetar.errors import (
    AccessDeniedError,
    BrokerUnavailableError,
    InvalidPathError,
    MalformedMetadataError,
    MetadataError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    StoreClosedError,
    TransactionFailedError,
)
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.store import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    CreateMode,
    Delete,
    Get,
    MetadataStore,
    Node,
    Operation,
    Put,
    Read,
    Request,
    Session,
    SessionState,
    Sync,
    Transact,
    Watcher,
    WatchEvent,
    WatchKind,
    call_watcher,
    describe,
    unanswered,
)
from magnetar.runtime.backoff import Backoff

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


WATCH_S: Final = 30.0
"""Time between the polls of a followed node; a process follows three, and there may be hundreds of processes."""
_PAUSE_S_MAX: Final = 1.0
_CLOSE_S_MAX: Final = 2.0  # For changes in progress when the store is closed.
_MARGIN: Final = (
    0.95  # The part of the operation's time after which we give up: before the caller does, and knowing what was sent.
)
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503
_JSON: Final = "application/json"


class RelayedStore(MetadataStore):
    """Made on a running loop; ended by `aclose`. Does not own the HTTP client."""

    def __init__(self, http: HttpClient, config: MetadataConfig, random: Random, *, watch_s: float = WATCH_S) -> None:
        """Uses `ledgers_root`, the limits and `operation_timeout_ms` of the configuration."""
        super().__init__(Session(0, config.session_timeout_ms), config)
        self._http = http
        self._random = random
        self._watch_s = watch_s
        self._paths = BookKeeperPaths(config.ledgers_root)
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()
        self._in_progress: dict[asyncio.Task[None], asyncio.Future[Any]] = {}
        self._armed: dict[int, tuple[asyncio.TimerHandle, Watcher, str]] = {}
        self._armed_so_far = 0
        self._closing = asyncio.Event()
        self._must_sync = False

    def _check_operation(self, operation: Operation) -> None:
        super()._check_operation(operation)
        if isinstance(operation, Create) and operation.mode.is_ephemeral and not is_id_node(operation, self._paths):
            raise AccessDeniedError(
                f"{operation.path} cannot be ephemeral: this store is reached through a broker's HTTP port and has no "
                "session; connect to ZooKeeper itself (metadata.url), or make the node persistent"
            )

    def _submit(self, request: Request) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        task = self._loop.create_task(self._carry_to_broker(request, answer), name=f"relay {describe(request)}")
        self._in_progress[task] = answer
        task.add_done_callback(self._in_progress.pop)
        answer.add_done_callback(lambda _: task.cancel())  # The caller waits no more.
        return answer

    async def _carry_to_broker(self, request: Request, answer: asyncio.Future[Any]) -> None:
        deadline = self._loop.time() + self._timeout * _MARGIN
        try:
            if isinstance(request, Read):
                result = await self._ask_until(deadline, request)
            else:
                async with self._changing:
                    result = await self._ask_until(deadline, request)
        except MetadataError as error:
            if not answer.done():
                answer.set_exception(error)
        except asyncio.CancelledError:
            if not answer.done():
                answer.set_exception(unanswered(request))
            raise
        else:
            self._arm(request)
            if not answer.done():
                answer.set_result(result)

    async def _ask_until(self, deadline: float, request: Request) -> Any:
        backoff = Backoff(self._random, longest_s=_PAUSE_S_MAX)
        while True:
            try:
                return await self._ask(request, deadline - self._loop.time())
            except BrokerUnavailableError as error:
                self._must_sync = True
                if error.outcome_unknown and not isinstance(request, Read):
                    raise OutcomeUnknownError(
                        f"{describe(request)}: {error}; it may or may not have been done"
                    ) from error
                pause_s = backoff.next_s()
                if self._loop.time() + pause_s >= deadline:
                    raise MetadataUnavailableError(f"{describe(request)}: {error}") from error
            await self._pause(pause_s, request)

    async def _pause(self, seconds: float, request: Request) -> None:
        """Raises StoreClosedError if the store is closed during the pause."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return
        raise StoreClosedError(f"{describe(request)}: {self.closed_because}")

    async def _ask(self, request: Request, timeout_s: float) -> Any:
        is_fresh = self._must_sync
        body = json.dumps(encode_request(request, is_fresh=is_fresh)).encode()
        answer = await self._http.request("POST", RELAY_PATH, body=body, timeout_s=max(timeout_s, 0.001))
        heard = _heard(answer)
        if is_fresh:
            self._must_sync = False
        if "error" in heard:
            raise decode_error(heard["error"])
        return decode_result(request, heard["result"])

    def _arm(self, request: Request) -> None:
        if not isinstance(request, Get | Children) or request.watch is None or self._closing.is_set():
            return
        delay_s = self._watch_s * (0.75 + self._random.random() / 2)  # So that not all clients ask at once.
        self._armed_so_far += 1
        number = self._armed_so_far
        timer = self._loop.call_later(delay_s, self._interrupt, number)
        self._armed[number] = (timer, request.watch, request.path)

    def _interrupt(self, number: int) -> None:
        timer, watcher, path = self._armed.pop(number)
        timer.cancel()
        call_watcher(watcher, WatchEvent(WatchKind.INTERRUPTED, path))

    async def aclose(self) -> None:
        if self.session.state is SessionState.CLOSED:
            return
        self.session.move(SessionState.CLOSED)
        self._closing.set()
        for number in list(self._armed):
            self._interrupt(number)
        if self._in_progress:
            await asyncio.wait(self._in_progress, timeout=_CLOSE_S_MAX)
        for task in list(self._in_progress):
            task.cancel()
        if self._in_progress:
            await asyncio.wait(self._in_progress)


def _heard(answer: HttpAnswer) -> dict[str, Any]:
    """Returns the relay's answer; otherwise raises an error that shows whether the relay was reached at all."""
    is_json = answer.headers.get("content-type", "").startswith(_JSON)
    try:
        heard = json.loads(answer.body) if is_json else None
    except ValueError:
        heard = None
    if isinstance(heard, dict) and ("error" in heard or "result" in heard):
        return heard
    reason = heard.get("reason") if isinstance(heard, dict) else None
    error = BrokerUnavailableError(f"the broker answered with status {answer.status}: {reason or answer.body[:100]!r}")
    error.outcome_unknown = not _is_turned_away(answer, is_json)
    raise error


def _is_turned_away(answer: HttpAnswer, is_json: bool) -> bool:
    """Reports whether nothing was begun: the HTTP server's limit refused it, or a broker that starts or has no
    relay."""
    if answer.status == _UNAVAILABLE:
        return not is_json or "retry-after" in answer.headers
    return answer.status == _NOT_FOUND
