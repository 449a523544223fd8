"""HeldNode: an ephemeral node that this process wants to own: a broker's registration, or the place of the leader.

Order:     One task compares the node with what is wanted, and removes the difference. Everything that may change either
           (the node, the session, a new value) only wakes it, so no order of events is forgotten.
Invariant: `is_held` is true only while the node belongs to the current session, as far as the store has reported.
Failure:   A change that fails is tried again, with pauses. A node of another session that is about ourselves is what
           our former session or process left: no other process can have our HTTP port. It is deleted at its version and
           made anew, as Apache's brokers do. The node of another broker is left alone, and followed until it is
           deleted.
Read next: members.py, leader.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from random import Random

from magnetar.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    SessionExpiredError,
    StoreClosedError,
)
from magnetar.metadata.store import CreateMode, MetadataStore, Node, SessionState, WatchEvent
from magnetar.runtime.backoff import Backoff

log = logging.getLogger(__name__)

_PASSING = (MetadataUnavailableError, SessionExpiredError, OutcomeUnknownError)
_CHANGED_MEANWHILE = (NodeExistsError, NoNodeError, BadVersionError)


class HeldNode:
    """Begun by `start`, ended by `aclose`. Does not own the store."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        value: bytes,
        random: Random,
        *,
        is_about_us: Callable[[bytes], bool],
        timeout_s: float,
    ) -> None:
        """`is_about_us`: whether the value of a node of another session is one that this broker wrote."""
        self.path = path
        self.node: Node | None = None
        """The node as it was last seen, of any owner."""
        self._store = store
        self._value = value
        self._random = random
        self._is_about_us = is_about_us
        self._timeout_s = timeout_s
        self._complaint = ""
        self._wake = asyncio.Event()
        self._seen: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"held-node {self.path}")

    @property
    def is_held(self) -> bool:
        session = self._store.session
        is_alive = session.state not in (SessionState.EXPIRED, SessionState.CLOSED)
        return is_alive and self.node is not None and self.node.owner == session.id

    def set_value(self, value: bytes) -> None:
        """Returns at once; the node follows, if it is held."""
        if value != self._value:
            self._value = value
            self._wake.set()

    async def wait_seen(self) -> None:
        """Returns when the node has been read again. The caller brings the timeout."""
        if self._task is None or self._task.done():
            raise StoreClosedError(f"{self.path} is not followed any more")
        if self._seen is None:
            self._seen = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._seen)

    async def aclose(self) -> None:
        """Deletes the node if it is held. If the store does not answer, the end of the session does it. Repeated calls
        are harmless."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        self._report(StoreClosedError(f"{self.path} is given up"))
        if not self._store.session.state.is_usable:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._delete_own()
        except (MetadataError, TimeoutError) as error:
            log.info("a node stays until the session ends", extra={"path": self.path, "why": str(error)})

    async def _delete_own(self) -> None:
        self.node = None
        node = await self._store.get(self.path)
        if node is not None and node.owner == self._store.session.id:
            with contextlib.suppress(NoNodeError):
                await self._store.delete(self.path, node.version)

    # --- the task -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = Backoff(self._random)
        while await self._store.session.wait_usable_or_closed() is not SessionState.CLOSED:
            self._wake.clear()
            try:
                while not await self._mend():
                    pass
            except StoreClosedError:
                break
            except MetadataError as error:
                self._complain(error)
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            await self._wake.wait()
        self._report(StoreClosedError(f"{self.path}: the metadata store was closed"))

    def _complain(self, error: MetadataError) -> None:
        """Logs what does not pass by itself, once."""
        if not isinstance(error, (*_PASSING, *_CHANGED_MEANWHILE)) and str(error) != self._complaint:
            self._complaint = str(error)
            log.error(
                "a metadata node of this broker cannot be written", extra={"path": self.path, "why": self._complaint}
            )

    async def _mend(self) -> bool:
        """Makes at most one change, and reports whether none was necessary."""
        node = await self._store.get(self.path, watch=self._on_event)
        value = self._value
        self.node = node
        self._report()
        if node is None:
            await self._store.create(self.path, value, mode=CreateMode.EPHEMERAL, make_parents=True)
        elif node.owner == self._store.session.id:
            if node.value == value:
                return True
            await self._store.put(self.path, value, node.version)
        elif self._is_about_us(node.value):
            log.info("a node that a former session left is deleted", extra={"path": self.path})
            await self._store.delete(self.path, node.version)
        else:
            return True
        return False

    def _on_event(self, _event: WatchEvent) -> None:
        self._wake.set()

    def _report(self, error: MetadataError | None = None) -> None:
        seen, self._seen = self._seen, None
        if seen is None:
            return
        if error is None:
            seen.set_result(None)
        else:
            seen.set_exception(error)
            seen.exception()  # Its waiters may have left.
