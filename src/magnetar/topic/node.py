"""TopicNode: what an owner knows of its topic's node, and the one way to change it.

Owner:     a write that finds another version means that another broker took the topic over: TopicFencedError.
Order:     one change at a time (`change`): it decides on the state that the change before it has left.
Index:     every write also notes the index of the last message, as Pulsar does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.errors import BadVersionError, MetadataError, TopicFencedError
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.info import INDEX_PROPERTY, TopicInfo
from magnetar.topic.info_store import NO_NODE, TopicInfoStore
from magnetar.topic.position import Position


class TopicNode:
    def __init__(self, name: str, infos: TopicInfoStore, info: TopicInfo, version: int) -> None:
        self.name = name
        self.chain = LedgerChain(info.spans)
        """As the node has it, and the entries that were confirmed since."""
        self.properties: dict[str, str] = dict(info.properties)
        self.terminated = info.terminated
        self.next_index = 0
        """Behind the last confirmed message."""
        self.change = asyncio.Lock()
        """Held by whoever decides on a change, until it is written and known here."""
        self.is_new = version == NO_NODE
        """Whether this owner is the first, and makes the node."""
        self._infos = infos
        self._kept = info.kept
        self._version = version

    async def write(
        self,
        spans: Sequence[LedgerSpan],
        *,
        terminated: Position | None = None,
        properties: dict[str, str] | None = None,
    ) -> None:
        """Stores this in place of what was stored by this owner. The caller changes the chain, then."""
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
        async with self.change:
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
