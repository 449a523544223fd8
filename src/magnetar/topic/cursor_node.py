"""CursorNode: the node of one cursor in the metadata store, written by compare-and-set.

Path:      {topic's node}/{encoded subscription name} = ManagedCursorInfo
Owner:     every write names the version it replaces; another version than the known one means another owner:
           CursorFencedError.
Unknown:   a write whose answer got lost, or whose caller gave up, is looked for before anything else is done here:
           until then nobody may rely on what the node says.
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
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.entropy import Entropy
from magnetar.topic.cursor_info import decode_node
from magnetar.topic.proto.managed_ledger_pb2 import ManagedCursorInfo

log = logging.getLogger(__name__)

_NO_NODE: Final = -1
_TRIES_MAX: Final = 8  # With the pauses between them, some seconds of a store that cannot be reached.


class CursorNode:
    """`info` is what the node has, unless a write is unresolved."""

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
        """If it raises anything but CursorFencedError, it was not done, or `is_unresolved` says that nobody knows."""
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
            log.info("a cursor's node is tried again", extra={"path": self.path, "why": str(failure)})
            await asyncio.sleep(backoff.next_s())

    @property
    def is_unresolved(self) -> bool:
        return self._unresolved is not None

    async def resolve(self) -> None:
        """Finds out about a write whose outcome is unknown."""
        wanted = self._unresolved
        if wanted is None:
            return
        await self._store.sync()  # Else the read might be behind the write that we look for.
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
        """A node that is gone already is deleted."""
        for _ in range(_TRIES_MAX):
            await self.resolve()
            try:
                return await self._store.delete(self.path, self._version)
            except NoNodeError:
                return None
            except BadVersionError as error:
                raise self._fenced() from error
            except OutcomeUnknownError:
                await self._store.sync()
        raise OutcomeUnknownError(f"{self.path} may or may not be deleted: the store was lost again and again")

    async def is_outdated(self) -> bool:
        """Whether somebody has written the node since."""
        await self._store.sync()
        node = await self._store.get(self.path)
        return node is None or node.version != self._version

    async def may_name(self, ledger_id: int) -> bool:
        """Whether the node, whoever wrote it, names this ledger; also if nobody can tell."""
        if self.is_unresolved:
            return True
        try:
            await self._store.sync()
            node = await self._store.get(self.path)
            return node is not None and decode_node(node.value).cursors_ledger_id == ledger_id
        except MetadataError:
            return True

    def _fenced(self) -> CursorFencedError:
        return CursorFencedError(f"{self.path} was changed by somebody else: another broker owns the topic now")
