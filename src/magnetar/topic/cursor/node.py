"""CursorNode: the node of one cursor in the metadata store, written by compare-and-set.

Every write names the version that it replaces; any other version means another owner: CursorFencedError.

Format:    {topic's node}/{encoded subscription name} = ManagedCursorInfo
Failure:   A write whose answer got lost, or whose caller gave up, is looked for before anything else is done here;
           until then the node's content is unknown. The loop differs from metadata/compare_and_set.py: here the node
           itself remembers what is unresolved, over several calls, and a look may resolve it. Then the last error is
           raised, and `is_unresolved` says whether the outcome is known.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from magnetar.errors import (
    BadVersionError,
    CursorFencedError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    SessionExpiredError,
)
from magnetar.metadata.compare_and_set import delete_until_known
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.runtime import Entropy
from magnetar.topic.cursor.codec import decode_node
from magnetar.topic.proto.managed_ledger_pb2 import ManagedCursorInfo

log = logging.getLogger(__name__)

_NO_NODE: Final = -1
_TRIES_MAX: Final = 8  # With the pauses between them, some seconds of a store that cannot be reached.


class CursorNode:
    """Holds the node. `info` is its content, unless a write is unresolved."""

    def __init__(
        self, path: str, store: MetadataStore, entropy: Entropy, info: ManagedCursorInfo, version: int = _NO_NODE
    ) -> None:
        self.path = path
        self.info = info
        self._version = version
        self._store = store
        self._entropy = entropy
        self._unresolved: ManagedCursorInfo | None = None

    @classmethod
    async def read(cls, path: str, store: MetadataStore, entropy: Entropy) -> CursorNode | None:
        node = await store.get(path)
        return None if node is None else cls(path, store, entropy, decode_node(node.value), node.version)

    async def write(self, info: ManagedCursorInfo) -> None:
        """Writes the node. After any error but CursorFencedError it is unwritten, unless `is_unresolved`."""
        backoff = Backoff(self._entropy.random)
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                await self.resolve()
                if self._version != _NO_NODE and self.info == info:
                    return  # It was done, or there is nothing to do.
                self._unresolved = info
                self._version = await self._write_once(info.SerializeToString())
                self.info, self._unresolved = info, None
                return
            except (OutcomeUnknownError, MetadataUnavailableError, SessionExpiredError) as error:
                failure = error
            if not tries_left:
                raise failure
            log.info("the write of a cursor's node is tried again", extra={"path": self.path, "why": str(failure)})
            await asyncio.sleep(backoff.next_s())

    @property
    def is_unresolved(self) -> bool:
        return self._unresolved is not None

    async def resolve(self) -> None:
        """Finds out about a write whose outcome is unknown."""
        wanted = self._unresolved
        if wanted is None:
            return
        await self._store.sync()  # Otherwise the read might return a state from before the write.
        node = await self._store.get(self.path)
        version = _NO_NODE if node is None else node.version
        if version == self._version + 1 and node is not None and decode_node(node.value) == wanted:
            self._version, self.info = version, wanted
        elif version != self._version:
            raise self._fenced()
        self._unresolved = None

    async def _write_once(self, value: bytes) -> int:
        try:
            if self._version != _NO_NODE:
                return await self._store.put(self.path, value, self._version)
            await self._store.create(self.path, value, make_parents=True)
        except MetadataError as error:
            if not error.outcome_unknown:
                self._unresolved = None
            if isinstance(error, (BadVersionError, NodeExistsError, NoNodeError)):
                raise self._fenced() from error
            raise
        return 0

    async def delete(self) -> None:
        """Deletes the node; a missing node is no error."""
        await self.resolve()
        try:
            await delete_until_known(self._store, self.path, self._version, _TRIES_MAX)
        except BadVersionError as error:
            raise self._fenced() from error

    async def is_outdated(self) -> bool:
        """Whether another client has written the node since."""
        await self._store.sync()
        node = await self._store.get(self.path)
        return node is None or node.version != self._version

    async def may_name(self, ledger_id: int) -> bool:
        """Whether the node as it is now names this ledger; True if that cannot be found out."""
        if self.is_unresolved:
            return True
        try:
            await self._store.sync()
            node = await self._store.get(self.path)
            return node is not None and decode_node(node.value).cursors_ledger_id == ledger_id
        except MetadataError:
            return True

    def _fenced(self) -> CursorFencedError:
        return CursorFencedError(f"another broker changed {self.path}: it owns the topic now")
