"""TopicNode: what an owner knows of its topic's node, and the one way to change it.

Owner:     a write that finds another version means that another broker took the topic over: TopicFencedError.
Order:     one change at a time (`change`): it decides on the state that the change before it has left.
End:       a change that has begun goes to its end, whoever waits for it. Cut off halfway, the node's version would be a
           riddle, a topic might be without a ledger to write to, and nobody would delete what the node names no more.
Index:     every write also notes the index of the last message, as Pulsar does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from magnetar.errors import BadVersionError, MetadataError, TopicFencedError
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.info import INDEX_PROPERTY, TopicInfo
from magnetar.topic.info_store import NO_NODE, TopicInfoStore
from magnetar.topic.position import Position

T = TypeVar("T")


class TopicNode:
    def __init__(self, name: str, infos: TopicInfoStore, info: TopicInfo, version: int) -> None:
        self.name = name
        self.chain = LedgerChain(info.spans)
        """As the node has it, and the entries that were confirmed since."""
        self.properties: dict[str, str] = dict(info.properties)
        self.terminated = info.terminated
        self.next_index = 0
        """Behind the last confirmed message."""
        self.is_new = version == NO_NODE
        """Whether this owner is the first, and makes the node."""
        self._infos = infos
        self._kept = info.kept
        self._version = version
        self._turn = asyncio.Lock()
        """Held by the change that is under way, until it is written and known here."""
        self._changing: asyncio.Task[Any] | None = None
        self._is_settled = False

    # --- changes ------------------------------------------------------------------------------------------------------

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """Does this when it is its turn. Whoever is cancelled before that has changed nothing; after that he leaves it
        to itself. TopicFencedError once the node is settled."""
        try:
            await self._turn.acquire()
        except BaseException:
            work.close()
            raise
        if self._is_settled:
            self._turn.release()
            work.close()
            raise self._not_changed()
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(work, name=f"topic-node {self.name}")
        self._changing = task
        task.add_done_callback(self._on_changed)
        await asyncio.wait([task])
        if task.cancelled():
            raise self._not_changed()
        return task.result()

    def _on_changed(self, task: asyncio.Task[Any]) -> None:
        self._changing = None
        self._turn.release()
        if not task.cancelled():
            task.exception()  # Whoever waits has it; if nobody does, nobody wants it.

    async def settle(self, timeout_s: float) -> None:
        """Nothing is changed any more when it returns. What is under way may take so long, and is then given up."""
        self._is_settled = True
        task = self._changing
        if task is not None:
            _, running = await asyncio.wait([task], timeout=timeout_s)
            if running:
                task.cancel()
                await asyncio.wait([task])

    def _not_changed(self) -> TopicFencedError:
        return TopicFencedError(f"topic {self.name} is not served here any more: look it up again")

    async def write(
        self,
        spans: Sequence[LedgerSpan],
        *,
        terminated: Position | None = None,
        properties: dict[str, str] | None = None,
    ) -> None:
        """As a part of a change: stores this in place of what was stored by this owner. The caller changes the chain,
        then."""
        wanted = dict(self.properties if properties is None else properties)
        wanted[INDEX_PROPERTY] = str(self.next_index - 1)
        end = terminated or self.terminated
        info = TopicInfo(tuple(spans), wanted, end, self._kept)
        try:
            self._version = await self._infos.write(self.name, info, self._version)
        except BadVersionError as error:
            raise taken_over(self.name) from error
        self.properties = wanted
        self.terminated = end

    async def check_owner(self) -> None:
        """TopicFencedError if somebody else has written the node since this owner did."""
        await self.change(self._check_version())

    async def _check_version(self) -> None:
        stored = await self._infos.read(self.name)
        if stored is None or stored.version != self._version:
            raise taken_over(self.name)

    async def may_name(self, ledger_id: int) -> bool:
        """Whether this ledger is in the node as it is now; also if nobody can tell."""
        try:
            stored = await self._infos.read(self.name)
        except MetadataError:
            return True
        return stored is not None and any(span.ledger_id == ledger_id for span in stored.value.spans)

    async def delete(self) -> None:
        try:
            await self._infos.delete(self.name, self._version)
        except BadVersionError as error:
            raise taken_over(self.name) from error


def taken_over(name: str) -> TopicFencedError:
    return TopicFencedError(f"another broker took topic {name} over: look it up again")
