"""LedgerCursorStorage: cursors as Pulsar stores them, each in a ledger of its own and a node that points to it.

The state is the last entry of the cursor's ledger; or it is in the node, if that names no ledger.

Order:     A store appends to the ledger. Without a ledger, or when that fails: make a new one that begins with the
           state, point the node to it by compare-and-set, and only then delete the old one. When no ledger can be made,
           the whole state goes into the node, if it is short enough.
Failure:   After a crash at any step the node points to the old place, which has the previous state, or to the new one,
           which has this state. A ledger that no node points to may be left; it is harmless. A fenced ledger, or a node
           that another broker wrote, means that another broker has the topic.
Read next: storage.py (the interface), node.py, ledger.py, codec.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.errors import (
    CursorExistsError,
    CursorFencedError,
    CursorMissingError,
    CursorNotStoredError,
    LedgerFencedError,
    MagnetarError,
    NoNodeError,
)
from magnetar.topic.cursor.codec import (
    NO_LEDGER,
    Snapshot,
    cursor_properties,
    decode_cursor_name,
    encode_cursor_name,
    node_for_ledger,
    node_with_activity,
    node_with_properties,
    node_with_state,
    state_in_entry,
    state_in_node,
)
from magnetar.topic.cursor.ledger import CursorContext, CursorLedger, delete_quietly, last_state
from magnetar.topic.cursor.node import CursorNode
from magnetar.topic.cursor.storage import CursorStorage, CursorStorages, StoredCursor
from magnetar.topic.log.managed_ledger import managed_ledger_path
from magnetar.topic.proto.managed_ledger_pb2 import ManagedCursorInfo, PositionInfo

log = logging.getLogger(__name__)

_LEDGER_RETRY_S: Final = 10.0
"""No other try is made for this long after a ledger could not be made or deleted, as each try is slow."""
_OPEN_TRIES_MAX: Final = 5
"""Tries to open a cursor whose old owner has moved the state once more; an owner that closes does so once."""
_UNUSED_MAX: Final = 16
"""Old ledgers whose deletion is tried again; beyond that, the oldest are left."""


class LedgerCursorStorages(CursorStorages):
    """Finds and makes the storages of one topic."""

    def __init__(self, topic: str, context: CursorContext) -> None:
        """`topic` is the managed ledger's name, as in `TopicLog.open`."""
        self._topic = topic
        self._context = context

    async def keys(self) -> Sequence[str]:
        """Returns the encoded names."""
        try:
            return await self._context.store.children(managed_ledger_path(self._topic))
        except NoNodeError:
            return []

    async def open(self, key: str) -> StoredCursor:
        storage, state = await LedgerCursorStorage.open(self._topic, key, self._context)
        return StoredCursor(decode_cursor_name(key), state, storage)

    async def create(self, name: str, snapshot: Snapshot, properties: Mapping[str, str]) -> CursorStorage:
        encoded_name = encode_cursor_name(name)
        return await LedgerCursorStorage.create(self._topic, encoded_name, snapshot, properties, self._context)


class LedgerCursorStorage(CursorStorage):
    """Is made by `create` or `open`; ended by `close`, `delete`, or `abandon`."""

    def __init__(self, topic: str, encoded_name: str, node: CursorNode, context: CursorContext) -> None:
        """Is called by `create` and `open` only."""
        self._topic = topic
        self._encoded_name = encoded_name
        self._node = node
        self._context = context
        self._ledger: CursorLedger | None = None
        """The ledger that this owner writes to. A ledger of an earlier owner is only read."""
        self._ledgers_made: list[int] = []
        """Ledgers of this cursor that may exist: all but the node's are to be deleted."""
        self._loop = asyncio.get_running_loop()
        self._no_ledger_before = 0.0
        self._no_deletion_before = 0.0
        if node.info.cursors_ledger_id != NO_LEDGER:
            self._ledgers_made.append(node.info.cursors_ledger_id)

    @classmethod
    async def create(
        cls, topic: str, encoded_name: str, snapshot: Snapshot, properties: Mapping[str, str], context: CursorContext
    ) -> LedgerCursorStorage:
        """Raises CursorExistsError if the node exists."""
        info = node_with_properties(ManagedCursorInfo(cursors_ledger_id=NO_LEDGER), properties)
        node = CursorNode(_path(topic, encoded_name), context.store, context.entropy, info)
        try:
            await node.write(node_with_state(info, snapshot))
        except CursorFencedError as error:
            name = decode_cursor_name(encoded_name)
            raise CursorExistsError(f"the topic {topic} has a subscription {name!r} already") from error
        return cls(topic, encoded_name, node, context)

    @classmethod
    async def open(
        cls, topic: str, encoded_name: str, context: CursorContext
    ) -> tuple[LedgerCursorStorage, PositionInfo]:
        """Returns the storage with the last stored state. A broker that wrote to the cursor's ledger before is
        fenced."""
        path = _path(topic, encoded_name)
        for _ in range(_OPEN_TRIES_MAX):
            node = await CursorNode.read(path, context.store, context.entropy)
            if node is None:
                name = decode_cursor_name(encoded_name)
                raise CursorMissingError(f"the topic {topic} has no subscription {name!r}")
            state = None
            if node.info.cursors_ledger_id != NO_LEDGER:
                state = await last_state(node.info.cursors_ledger_id, context.client)
                if state is None and await node.is_outdated():
                    continue  # An owner that was closing has moved the state, and then deleted the ledger.
            info = state_in_node(node.info) if state is None else state_in_entry(state)
            return cls(topic, encoded_name, node, context), info
        raise CursorFencedError(f"another broker changed {path} again and again: it owns the topic")

    @property
    def properties(self) -> dict[str, str]:
        return cursor_properties(self._node.info)

    @property
    def last_active_ms(self) -> int:
        return self._node.info.last_active

    @property
    def ledger_id(self) -> int:
        return self._node.info.cursors_ledger_id

    @property
    def ledger_last_entry(self) -> int:
        return -1 if self._ledger is None else self._ledger.last_entry

    # --- storing ------------------------------------------------------------------------------------------------------

    async def store(self, snapshot: Snapshot) -> None:
        await self._resolve()
        state = snapshot.info.SerializeToString()
        if self._ledger is None or not await self._append(self._ledger, state):
            await self._move(snapshot, state)
        elif self._ledger.is_due:
            await self._roll(self._ledger, snapshot, state)

    async def _resolve(self) -> None:
        """Finds the outcome of a change of the node that is unknown."""
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
        """Moves the state to a new ledger; or to the node, if none can be made."""
        why: MagnetarError | None = None
        if self._loop.time() >= self._no_ledger_before:
            try:
                ledger = await self._new_ledger(state)
            except MagnetarError as error:
                log.warning("no ledger for a cursor could be made", extra={"path": self._node.path, "why": str(error)})
                self._no_ledger_before, why = self._loop.time() + _LEDGER_RETRY_S, error
            else:
                await self._move_to_ledger(ledger, snapshot)
                return
        await self._move_to_node(snapshot, why)

    async def _new_ledger(self, state: bytes) -> CursorLedger:
        ledger = await CursorLedger.create(self._topic, self._encoded_name, state, self._context)
        self._ledgers_made.append(ledger.ledger_id)
        return ledger

    async def _move_to_ledger(self, ledger: CursorLedger, snapshot: Snapshot) -> None:
        try:
            await self._node.write(node_for_ledger(self._node.info, snapshot, ledger.ledger_id))
        except CursorFencedError:
            await ledger.release()
            if not await self._node.may_name(ledger.ledger_id):
                await delete_quietly(ledger.ledger_id, self._context.client)
            raise
        except BaseException:  # The node may point to it, so it must neither grow nor be deleted.
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
        return snapshot.gaps <= self._context.config.ranges_in_metadata_max

    async def _roll(self, ledger: CursorLedger, snapshot: Snapshot, state: bytes) -> None:
        """Replaces the ledger. The state is stored already, so only being fenced is a failure."""
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

    # --- ledgers that are not needed any more -------------------------------------------------------------------------

    @property
    def needs_cleanup(self) -> bool:
        return self._loop.time() >= self._no_deletion_before and bool(self._unused_ledgers())

    def _unused_ledgers(self) -> list[int]:
        if self._node.is_unresolved:
            return []  # It is unknown which one is used.
        return [ledger for ledger in self._ledgers_made if ledger != self.ledger_id]

    async def clean_up(self) -> None:
        """Deletes ledgers that the node does not name any more."""
        for ledger_id in self._unused_ledgers():
            if await delete_quietly(ledger_id, self._context.client):
                self._ledgers_made.remove(ledger_id)
        if self._unused_ledgers():
            self._no_deletion_before = self._loop.time() + _LEDGER_RETRY_S
        del self._ledgers_made[:-_UNUSED_MAX]

    # --- the rest -----------------------------------------------------------------------------------------------------

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        await self._resolve()
        await self._node.write(node_with_properties(self._node.info, properties))

    async def set_last_active(self, last_active_ms: int) -> None:
        await self._resolve()
        await self._node.write(node_with_activity(self._node.info, last_active_ms))

    async def close(self, snapshot: Snapshot, *, is_stored: bool) -> None:
        """Writes a short state into the node and deletes the ledger; otherwise the ledger stays, and is closed."""
        try:
            await self._resolve()
            if is_stored and self._ledger is None:
                return  # Nothing has changed since it was opened, or the state is in the node already.
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
        await self.clean_up()

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
        """Appends to the ledger if the node could not be written, provided that it is still known to be the right
        ledger."""
        if self._node.is_unresolved or self._ledger is None:
            return False
        return await self._append(self._ledger, snapshot.info.SerializeToString())

    async def delete(self) -> None:
        await self._node.delete()

    async def delete_data(self) -> None:
        await self.abandon()
        for ledger_id in self._ledgers_made:
            await delete_quietly(ledger_id, self._context.client)

    async def abandon(self) -> None:
        await self._leave_ledger()


def _path(topic: str, encoded_name: str) -> str:
    return f"{managed_ledger_path(topic)}/{encoded_name}"
