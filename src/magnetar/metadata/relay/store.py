"""RelayedStore: the metadata store through a broker's HTTP port, for processes that know only where a broker is.

Purpose:   an executor of Spark creates, closes and reads ledgers; it has a broker's address, not ZooKeeper's, and
           the embedded store can be opened by one process alone.
Invariant: it has no session, so one state, connected, until it is closed; ephemeral nodes are refused. (Except for the
           nodes that count ledger ids: those belong to the broker's session, and are deleted once they are counted.)
Order:     changes are sent one at a time, each when the one before is answered. Reads overtake each other.
Failure:   while no broker answers, reads and unsent requests are tried again, up to `operation_timeout_ms`. A change
           whose answer is lost is OutcomeUnknownError. The first request after an outage syncs: another broker may
           answer, and its store may lag.
Limits:    a watcher is called with INTERRUPTED after `watch_s`, which any store may do at any time; a follower reads
           the node anew then. So news may be late by that much, but no connection is held open for them. Only nodes
           below the ledgers' root and /magnetar/sinks are allowed (admin/cluster/relay.py).
Read next: codec.py, client/http/client.py
"""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any, Final

from magnetar.client.http.client import HttpClient
from magnetar.client.http.connection import HttpAnswer
from magnetar.config.metadata import MetadataConfig
from magnetar.errors import (
    AccessDeniedError,
    BrokerUnavailableError,
    MetadataError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    StoreClosedError,
)
from magnetar.metadata.base import BaseStore, unanswered
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.relay.codec import RELAY_PATH, decode_error, decode_result, encode_request, is_id_node
from magnetar.metadata.session import Session, SessionState
from magnetar.metadata.store import (
    Children,
    Create,
    Get,
    Operation,
    Read,
    Request,
    Watcher,
    WatchEvent,
    WatchKind,
    describe,
)
from magnetar.metadata.watches import call_watcher
from magnetar.runtime.backoff import Backoff

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


class RelayedStore(BaseStore):
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
        self._under_way: dict[asyncio.Task[None], asyncio.Future[Any]] = {}
        self._armed: dict[int, tuple[asyncio.TimerHandle, Watcher, str]] = {}
        self._armed_so_far = 0
        self._closing = asyncio.Event()
        self._must_sync = False

    # --- requests -----------------------------------------------------------------------------------------------------

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
        self._under_way[task] = answer
        task.add_done_callback(self._under_way.pop)
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

    # --- watches ------------------------------------------------------------------------------------------------------

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

    # --- the end ------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        if self.session.state is SessionState.CLOSED:
            return
        self.session.move(SessionState.CLOSED)
        self._closing.set()
        for number in list(self._armed):
            self._interrupt(number)
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_CLOSE_S_MAX)
        for task in list(self._under_way):
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)


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
