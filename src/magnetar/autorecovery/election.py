"""Election: one process of the cluster is the auditor. The places, values and rule are those of BookKeeper's elector.

Format:    each candidate has an ephemeral node auditorelection/V_%010d. The lowest number is the auditor; every other
           candidate watches the one before it, so that the end of one wakes one other. The auditor also writes its name
           into the parent, for operators.
Order:     vote → look → watch → look again. A vote that exists for this session already is used: the answer to its
           creation may have been lost.
Failure:   A lost session takes the vote with it, and the duty with it: what the auditor does is cancelled. For a moment
           two may believe that they are elected. Neither does harm: marks are repeatable.
Read next: auditor.py, metadata/bookkeeper/recovery_nodes.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from magnetar.autorecovery.worker import PASSING
from magnetar.errors import MetadataError, NodeExistsError, NoNodeError, StoreClosedError
from magnetar.metadata.bookkeeper.recovery_nodes import RecoveryPaths, encode_vote, vote_number
from magnetar.metadata.paths import join
from magnetar.metadata.store import CreateMode, MetadataStore, SessionState, WatchEvent
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.gather import cancel_all

log = logging.getLogger(__name__)

_TIDY_S = 2.0  # At the end: the session's own end deletes the vote, too.


class Election:
    """`run` is a task of its owner; `duty` is what the elected process does."""

    def __init__(
        self,
        store: MetadataStore,
        paths: RecoveryPaths,
        name: str,
        random: Random,
        duty: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._store = store
        self._paths = paths
        self._name = name
        self._random = random
        self._duty = duty
        self._changed = asyncio.Event()
        self._on_duty: asyncio.Task[None] | None = None

    @property
    def is_elected(self) -> bool:
        return self._on_duty is not None

    async def run(self) -> None:
        """Takes part until it is cancelled. Raises what the duty raises."""
        backoff = Backoff(self._random)
        unlisten = self._store.session.listen(self._on_session)
        try:
            while await self._store.session.wait_usable_or_closed() is not SessionState.CLOSED:
                self._changed.clear()
                try:
                    await self._look()
                except (*PASSING, NodeExistsError, NoNodeError) as error:
                    log.debug("the election of the auditor is tried again: %s", error)
                    await asyncio.sleep(backoff.next_s())
                    continue
                backoff.reset()
                await self._wait_changed()
            raise StoreClosedError("the metadata store was closed")
        finally:
            unlisten()
            await self._resign()

    async def _wait_changed(self) -> None:
        """Returns when the votes or the session may have changed; raises if the duty fails."""
        changed = asyncio.ensure_future(self._changed.wait())
        waits: list[asyncio.Future[Any]] = [changed]
        if self._on_duty is not None:
            waits.append(self._on_duty)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if self._on_duty is not None and self._on_duty.done():
            duty, self._on_duty = self._on_duty, None
            if not duty.cancelled():  # Otherwise the session was lost.
                duty.result()
                raise MetadataError("the auditor has ended by itself")

    def _on_session(self, state: SessionState) -> None:
        if state in (SessionState.EXPIRED, SessionState.CLOSED) and self._on_duty is not None:
            self._on_duty.cancel()
        self._changed.set()

    def _on_event(self, _event: WatchEvent) -> None:
        self._changed.set()

    async def _look(self) -> None:
        """Votes if necessary, and begins or ends the duty by the order of the votes."""
        if self._on_duty is not None and self._on_duty.cancelled():  # The session was lost, and the vote with it.
            self._on_duty = None
        votes, ours = await self._votes()
        if ours is None:
            path = join(self._paths.election, "V_")
            value = encode_vote(self._name)
            await self._store.create(path, value, mode=CreateMode.EPHEMERAL_SEQUENTIAL, make_parents=True)
            votes, ours = await self._votes()
        if ours is None:
            raise NoNodeError("the vote is missing right after it was given")
        place = votes.index(ours)
        watched = votes[place] if place == 0 else votes[place - 1]
        if await self._store.get(join(self._paths.election, watched), watch=self._on_event) is None:
            self._changed.set()
            return
        if place == 0:
            await self._begin_duty()
        else:
            await self._end_duty()

    async def _votes(self) -> tuple[list[str], str | None]:
        """Returns the votes by number, and which one is this session's."""
        try:
            names = await self._store.children(self._paths.election)
        except NoNodeError:
            return [], None
        numbered = sorted((number, name) for name in names if (number := vote_number(name)) is not None)
        votes = [name for _, name in numbered]
        value = encode_vote(self._name)
        for name in votes:
            node = await self._store.get(join(self._paths.election, name))
            if node is not None and node.owner == self._store.session.id and node.value == value:
                return votes, name
        return votes, None

    async def _begin_duty(self) -> None:
        if self._on_duty is not None:
            return
        log.info("this process is the auditor", extra={"auditor": self._name})
        self._on_duty = asyncio.get_running_loop().create_task(self._duty(), name="auditor")
        await self._store.put(self._paths.election, encode_vote(self._name))

    async def _end_duty(self) -> None:
        duty, self._on_duty = self._on_duty, None
        if duty is not None:
            log.info("this process is no longer the auditor", extra={"auditor": self._name})
            await cancel_all([duty])

    async def _resign(self) -> None:
        await self._end_duty()
        if not self._store.session.state.is_usable:
            return
        with contextlib.suppress(MetadataError, TimeoutError):
            async with asyncio.timeout(_TIDY_S):
                _, ours = await self._votes()
                if ours is not None:
                    await self._store.delete(join(self._paths.election, ours))
