"""CursorHome: where the state of one durable cursor is kept, and how it moves there without ever moving back.

Places:    the last entry of the cursor's ledger; or, in a node that names no ledger, the node.
Store:     append to the ledger. Without a ledger, or when that fails: make a new one that begins with the state, point
           the node to it by compare-and-set, and only then delete the old one. When no ledger can be made, the whole
           state goes into the node, if it is short enough.
Crash:     after any step the node points to the old place, which has the state before, or to the new, which has this
           one. A ledger that nobody points to may be left; it is harmless.
Owner:     a fenced ledger, or a node that somebody else wrote, means that another broker has the topic.
Calls:     one at a time (cursor.py sees to that).
Read next: cursor_node.py, cursor_ledger.py, cursor_info.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from magnetar.errors import (
    CursorExistsError,
    CursorFencedError,
    CursorMissingError,
    CursorNotStoredError,
    LedgerFencedError,
    MagnetarError,
)
from magnetar.topic.cursor_info import (
    NO_LEDGER,
    Snapshot,
    cursor_properties,
    decode_cursor_name,
    node_for_ledger,
    node_with_properties,
    node_with_state,
    state_in_entry,
    state_in_node,
)
from magnetar.topic.cursor_ledger import CursorLedger, CursorParts, delete_quietly, last_state
from magnetar.topic.cursor_node import CursorNode
from magnetar.topic.info_store import info_path
from magnetar.topic.proto.managed_ledger_pb2 import ManagedCursorInfo, PositionInfo

log = logging.getLogger(__name__)

_LEDGER_RETRY_S: Final = 10.0
"""After no ledger could be made or deleted, nobody tries again for so long: each try is slow."""
_OPEN_TRIES_MAX: Final = 5
"""Each time, its old owner has moved the state once more; one that is closing does so once."""
_UNUSED_MAX: Final = 16
"""Old ledgers whose deletion is tried again; beyond that, the oldest are left where they are."""


class CursorHome:
    """Made by `create` or `open`; ended by `close`, `delete`, or `abandon`."""

    def __init__(self, topic: str, encoded_name: str, node: CursorNode, parts: CursorParts) -> None:
        """For `create` and `open` only."""
        self._topic = topic
        self._encoded_name = encoded_name
        self._node = node
        self._parts = parts
        self._ledger: CursorLedger | None = None
        """The one that we write to. One that the node names and somebody else wrote to is only read."""
        self._ledgers_made: list[int] = []
        """Ledgers of this cursor that may exist: all but the node's are to be deleted."""
        self._loop = asyncio.get_running_loop()
        self._no_ledger_before = 0.0
        self._no_deletion_before = 0.0
        if node.info.cursors_ledger_id != NO_LEDGER:
            self._ledgers_made.append(node.info.cursors_ledger_id)

    @classmethod
    async def create(
        cls, topic: str, encoded_name: str, snapshot: Snapshot, properties: Mapping[str, str], parts: CursorParts
    ) -> CursorHome:
        """CursorExistsError."""
        info = node_with_properties(ManagedCursorInfo(cursors_ledger_id=NO_LEDGER), properties)
        node = CursorNode(_path(topic, encoded_name), parts.store, parts.entropy, info)
        try:
            await node.write(node_with_state(info, snapshot))
        except CursorFencedError as error:
            name = decode_cursor_name(encoded_name)
            raise CursorExistsError(f"the topic {topic} has a subscription {name!r} already") from error
        return cls(topic, encoded_name, node, parts)

    @classmethod
    async def open(cls, topic: str, encoded_name: str, parts: CursorParts) -> tuple[CursorHome, PositionInfo]:
        """With the state that was stored last. Whoever wrote to the cursor's ledger is fenced."""
        path = _path(topic, encoded_name)
        for _ in range(_OPEN_TRIES_MAX):
            node = await CursorNode.read(path, parts.store, parts.entropy)
            if node is None:
                name = decode_cursor_name(encoded_name)
                raise CursorMissingError(f"the topic {topic} has no subscription {name!r}")
            state = None
            if node.info.cursors_ledger_id != NO_LEDGER:
                state = await last_state(node.info.cursors_ledger_id, parts.client)
                if state is None and await node.is_outdated():
                    continue  # An owner that was about to go has moved the state, and deleted the ledger behind it.
            info = state_in_node(node.info) if state is None else state_in_entry(state)
            return cls(topic, encoded_name, node, parts), info
        raise CursorFencedError(f"{path} is changed by somebody else again and again: another broker owns the topic")

    @property
    def properties(self) -> dict[str, str]:
        return cursor_properties(self._node.info)

    @property
    def ledger_id(self) -> int:
        return self._node.info.cursors_ledger_id

    @property
    def ledger_last_entry(self) -> int:
        return -1 if self._ledger is None else self._ledger.last_entry

    # --- storing ------------------------------------------------------------------------------------------------------

    async def store(self, snapshot: Snapshot) -> None:
        """Durable when it returns. CursorFencedError; any other error: it may or may not be stored."""
        await self._resolve()
        state = snapshot.info.SerializeToString()
        if self._ledger is None or not await self._append(self._ledger, state):
            await self._move(snapshot, state)
        elif self._ledger.is_due:
            await self._roll(self._ledger, snapshot, state)

    async def _resolve(self) -> None:
        """After a change of the node whose outcome was unknown."""
        await self._node.resolve()
        if self._ledger is not None and self._ledger.ledger_id != self.ledger_id:
            await self._leave_ledger()

    async def _append(self, ledger: CursorLedger, state: bytes) -> bool:
        try:
            await ledger.append(state)
        except LedgerFencedError as error:
            raise CursorFencedError(
                f"the ledger {ledger.ledger_id} of cursor {self._node.path} was taken over by another broker"
            ) from error
        except MagnetarError as error:
            log.warning("a cursor's ledger failed", extra={"ledger_id": ledger.ledger_id, "why": str(error)})
            await self._leave_ledger()
            return False
        return True

    async def _move(self, snapshot: Snapshot, state: bytes) -> None:
        """To a new ledger; or to the node, if there can be none."""
        why: MagnetarError | None = None
        if self._loop.time() >= self._no_ledger_before:
            try:
                ledger = await self._new_ledger(state)
            except MagnetarError as error:
                log.warning("a cursor gets no ledger", extra={"path": self._node.path, "why": str(error)})
                self._no_ledger_before, why = self._loop.time() + _LEDGER_RETRY_S, error
            else:
                await self._move_to_ledger(ledger, snapshot)
                return
        await self._move_to_node(snapshot, why)

    async def _new_ledger(self, state: bytes) -> CursorLedger:
        ledger = await CursorLedger.create(self._topic, self._encoded_name, state, self._parts)
        self._ledgers_made.append(ledger.ledger_id)
        return ledger

    async def _move_to_ledger(self, ledger: CursorLedger, snapshot: Snapshot) -> None:
        try:
            await self._node.write(node_for_ledger(self._node.info, snapshot, ledger.ledger_id))
        except CursorFencedError:
            await ledger.release()
            if not await self._node.may_name(ledger.ledger_id):
                await delete_quietly(ledger.ledger_id, self._parts.client)
            raise
        except BaseException:  # Nobody knows whether the node points there: it must not grow, and must not go.
            await ledger.release()
            raise
        await self._leave_ledger()
        self._ledger = ledger

    async def _move_to_node(self, snapshot: Snapshot, why: MagnetarError | None) -> None:
        if not self._fits_node(snapshot):
            raise CursorNotStoredError(
                f"cursor {self._node.path} has {snapshot.gaps} gaps, too many for its node, and no ledger can be made"
                f"{f' ({why})' if why else ''}: start more bookies, or make read-only ones writable"
            ) from why
        await self._node.write(node_with_state(self._node.info, snapshot))
        await self._leave_ledger()

    def _fits_node(self, snapshot: Snapshot) -> bool:
        return snapshot.gaps <= self._parts.config.ranges_in_metadata_max

    async def _roll(self, ledger: CursorLedger, snapshot: Snapshot, state: bytes) -> None:
        """The state is stored already: that the new ledger cannot be had is no failure, unless we are fenced."""
        try:
            await self._move_to_ledger(await self._new_ledger(state), snapshot)
        except CursorFencedError:
            raise
        except MagnetarError as error:
            log.warning("a cursor's ledger is kept longer", extra={"ledger_id": ledger.ledger_id, "why": str(error)})
            ledger.postpone(_LEDGER_RETRY_S)

    async def _leave_ledger(self) -> None:
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            await ledger.release()

    # --- ledgers that nobody needs any more ---------------------------------------------------------------------------

    @property
    def has_unused_ledgers(self) -> bool:
        """Whether `delete_unused_ledgers` has something to do now."""
        return self._loop.time() >= self._no_deletion_before and bool(self._unused_ledgers())

    def _unused_ledgers(self) -> list[int]:
        if self._node.is_unresolved:
            return []  # Nobody knows which one is used.
        return [ledger for ledger in self._ledgers_made if ledger != self.ledger_id]

    async def delete_unused_ledgers(self) -> None:
        """What cannot be deleted now is tried again later."""
        for ledger_id in self._unused_ledgers():
            if await delete_quietly(ledger_id, self._parts.client):
                self._ledgers_made.remove(ledger_id)
        if self._unused_ledgers():
            self._no_deletion_before = self._loop.time() + _LEDGER_RETRY_S
        del self._ledgers_made[:-_UNUSED_MAX]

    # --- the rest -----------------------------------------------------------------------------------------------------

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        await self._resolve()
        await self._node.write(node_with_properties(self._node.info, properties))

    async def close(self, snapshot: Snapshot, *, is_stored: bool) -> None:
        """Into the node if it is short enough, and the ledger is deleted; else the ledger stays, and is closed."""
        try:
            await self._resolve()
            if is_stored and self._ledger is None:
                return  # As it was found, or in the node already.
            if self._fits_node(snapshot):
                await self._close_in_node(snapshot, is_stored=is_stored)
            else:
                if not is_stored:
                    self._no_ledger_before = 0.0  # There is no later time to try it.
                    await self.store(snapshot)
                if self._ledger is not None:
                    await self._ledger.close()
        finally:
            await self._leave_ledger()
        await self.delete_unused_ledgers()

    async def _close_in_node(self, snapshot: Snapshot, *, is_stored: bool) -> None:
        try:
            await self._node.write(node_with_state(self._node.info, snapshot))
        except CursorFencedError:
            raise
        except MagnetarError:
            if not (is_stored or await self._append_at_last(snapshot)):
                raise
            log.warning("a cursor stays in its ledger", extra={"path": self._node.path, "ledger_id": self.ledger_id})

    async def _append_at_last(self, snapshot: Snapshot) -> bool:
        """The node could not be written: the ledger may still take it, if it is still known to be the right one."""
        if self._node.is_unresolved or self._ledger is None:
            return False
        return await self._append(self._ledger, snapshot.info.SerializeToString())

    async def delete(self) -> None:
        """When it returns the cursor is gone, whatever happens to its ledgers."""
        await self._node.delete()

    async def delete_ledgers(self) -> None:
        """Of a cursor that is gone. One that cannot be deleted is left, and said to be."""
        await self.abandon()
        for ledger_id in self._ledgers_made:
            await delete_quietly(ledger_id, self._parts.client)

    async def abandon(self) -> None:
        """Nothing is stored any more: another broker has the cursor, or it is gone."""
        await self._leave_ledger()


def _path(topic: str, encoded_name: str) -> str:
    return f"{info_path(topic)}/{encoded_name}"
