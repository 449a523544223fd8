"""OwnedNode: a topic's node in the metadata store, as its owner knows it, and the one way to change it.

Opening reads the node and recovers the topic's last ledger, which fences the broker that owned it before. The first
write of the node makes this broker the owner: of two brokers that open a topic at the same moment one fails there, and
a broker that was only slow fails at its ledger or at the node. Every write also stores the index of the last message,
as Pulsar does.

Order:     One change at a time (`change`): it decides on the state that the change before it has left.
Failure:   A write that finds another version means that another broker took the topic over: TopicFencedError. A change
           that has begun runs to its end, even if its caller is cancelled. If it were interrupted, the node's version
           would be unknown, the topic might have no open ledger, and dropped ledgers would never be deleted.
Read next: managed_ledger.py, ledger_roller.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from magnetar.errors import BadVersionError, MetadataError, NoSuchLedgerError, TopicFencedError, TopicNotFoundError
from magnetar.runtime.uncancelled import UncancelledTasks
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.log.context import LogContext
from magnetar.topic.log.managed_ledger import INDEX_PROPERTY, NO_NODE, ManagedLedger, ManagedLedgerStore, is_offloaded
from magnetar.topic.position import Position

log = logging.getLogger(__name__)

T = TypeVar("T")


class OwnedNode:
    def __init__(self, name: str, store: ManagedLedgerStore, managed_ledger: ManagedLedger, version: int) -> None:
        self.name = name
        self.chain = LedgerChain(managed_ledger.spans)
        """The chain in the node, with the entries that were confirmed since."""
        self.properties: dict[str, str] = dict(managed_ledger.properties)
        self.terminated = managed_ledger.terminated
        self.next_index = 0
        """The index after the last confirmed message."""
        self.is_new = version == NO_NODE
        """Whether this owner is the first, and makes the node."""
        self._store = store
        self._kept = managed_ledger.kept
        self._version = version
        self._turn = asyncio.Lock()
        """Is held by the change in progress, until it is written and known here."""
        self._changes = UncancelledTasks(self._not_changed)
        self._is_settled = False

    @classmethod
    async def open(cls, name: str, context: LogContext, *, create: bool) -> Self:
        """Reads the node and recovers the last ledger, without writing. Raises TopicNotFoundError without `create`."""
        store = ManagedLedgerStore(context.store, context.entropy)
        stored = await store.read(name)
        if stored is None:
            if not create:
                raise TopicNotFoundError(
                    f"topic {name} does not exist: create it first, or allow topics to be created by their first use"
                )
            return cls(name, store, ManagedLedger(), NO_NODE)
        spans = await _with_last_recovered(name, stored.value.spans, context)
        return cls(name, store, replace(stored.value, spans=spans), stored.version)

    # --- changes ------------------------------------------------------------------------------------------------------

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs this work when its turn comes. Raises TopicFencedError once the node is settled.

        A caller that is cancelled before that has changed nothing; later, the work continues without the caller.
        """
        try:
            await self._turn.acquire()
        except BaseException:
            work.close()
            raise
        if self._is_settled:
            self._turn.release()
            work.close()
            raise self._not_changed()
        task = self._changes.begin(work, name=f"topic-node {self.name}")
        task.add_done_callback(lambda _: self._turn.release())
        return await self._changes.result_of(task)

    async def settle(self, timeout_s: float) -> None:
        """Ends all changes: what is in progress may take this long, and is then cancelled."""
        self._is_settled = True
        await self._changes.wait(timeout_s)
        await self._changes.give_up()

    def _not_changed(self) -> TopicFencedError:
        return TopicFencedError(f"topic {self.name} is not served here any more: look it up again")

    async def write(
        self,
        spans: Sequence[LedgerSpan],
        *,
        terminated: Position | None = None,
        properties: dict[str, str] | None = None,
    ) -> None:
        """Stores this in place of what this owner stored before.

        It is for work that `change` runs, and which changes the chain afterwards.
        """
        wanted = dict(self.properties if properties is None else properties)
        wanted[INDEX_PROPERTY] = str(self.next_index - 1)
        end = terminated or self.terminated
        managed_ledger = ManagedLedger(tuple(spans), wanted, end, self._kept)
        try:
            self._version = await self._store.write(self.name, managed_ledger, self._version)
        except BadVersionError as error:
            raise taken_over(self.name) from error
        self.properties = wanted
        self.terminated = end

    async def check_owner(self) -> None:
        """Raises TopicFencedError if another broker has written the node since this owner did."""
        await self.change(self._check_version())

    async def _check_version(self) -> None:
        stored = await self._store.read(self.name)
        if stored is None or stored.version != self._version:
            raise taken_over(self.name)

    async def may_name(self, ledger_id: int) -> bool:
        """Whether the node as it is now names this ledger; True if that cannot be found out."""
        try:
            stored = await self._store.read(self.name)
        except MetadataError:
            return True
        return stored is not None and any(span.ledger_id == ledger_id for span in stored.value.spans)

    async def delete(self) -> None:
        try:
            await self._store.delete(self.name, self._version)
        except BadVersionError as error:
            raise taken_over(self.name) from error


def taken_over(name: str) -> TopicFencedError:
    return TopicFencedError(f"another broker took topic {name} over: look it up again")


async def _with_last_recovered(name: str, spans: tuple[LedgerSpan, ...], context: LogContext) -> tuple[LedgerSpan, ...]:
    if not spans or is_offloaded(spans[-1]):
        return spans
    *others, last = spans
    try:
        metadata = await context.client.recover(last.ledger_id)
    except NoSuchLedgerError:  # Deleted when it was found empty, by a broker that went down before it wrote the node.
        log.warning(
            "the last ledger of a topic does not exist any more", extra={"topic": name, "ledger_id": last.ledger_id}
        )
        return tuple(others)
    closed_ms = last.closed_ms or context.entropy.wall_ms()
    return (*others, replace(last, entries=metadata.last_entry_id + 1, size_bytes=metadata.length, closed_ms=closed_ms))
