"""Where cursors are stored, as Pulsar does it: each in a ledger of its own and a node that points to it.

The state is the last entry of the cursor's ledger, one whole state per entry; or it is in the node, if that names no
ledger.

Invariant: What is stored never moves back: a storage that another owner uses refuses to store (CursorFencedError). A
           ledger begins with a first state, so a node never points to one that knows less than the node.
Order:     A store appends to the ledger. Without a ledger, or when that fails: make a new one that begins with the
           state, point the node to it by compare-and-set, and only then delete the old one. When no ledger can be made,
           the whole state goes into the node, if it is short enough. flusher.py makes one call at a time.
Format:    {topic's node}/{encoded subscription name} = ManagedCursorInfo. The metadata of a ledger has the words of
           Pulsar's, so that Pulsar's tools recognise it.
Failure:   After a crash at any step the node points to the old place, which has the previous state, or to the new one,
           which has this state. A ledger that no node points to may be left; it is harmless. A fenced ledger, or a node
           with another version than the one that a write names, means that another broker has the topic.
Read next: codec.py, flusher.py, cursors.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.config.topic import CursorConfig
from magnetar.errors import (
    BadVersionError,
    CursorExistsError,
    CursorFencedError,
    CursorMissingError,
    CursorNotStoredError,
    EntryAbsentError,
    EntryDamagedError,
    LedgerFencedError,
    MagnetarError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    OutcomeUnknownError,
    SessionExpiredError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.compare_and_set import delete_until_known
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.runtime import Entropy
from magnetar.topic.cursor.codec import (
    NO_LEDGER,
    Snapshot,
    cursor_properties,
    decode_cursor_name,
    decode_node,
    node_for_ledger,
    node_with_activity,
    node_with_properties,
    node_with_state,
    state_in_entry,
    state_in_node,
)
from magnetar.topic.log.managed_ledger import managed_ledger_path
from magnetar.topic.proto.managed_ledger_pb2 import ManagedCursorInfo, PositionInfo

log = logging.getLogger(__name__)

_NO_NODE: Final = -1
_NODE_TRIES_MAX: Final = 8  # With the pauses between them, some seconds of a store that cannot be reached.


class CursorNode:
    """Holds the node. `info` is its content, unless a write is unresolved.

    A write whose answer got lost, or whose caller gave up, is looked for before anything else is done here. The loop
    differs from metadata/compare_and_set.py: the node itself remembers what is unresolved, over several calls, and a
    look may resolve it. Then the last error is raised, and `is_unresolved` says whether the outcome is known.
    """

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
        for tries_left in reversed(range(_NODE_TRIES_MAX)):
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
            await delete_until_known(self._store, self.path, self._version, _NODE_TRIES_MAX)
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


@dataclass(frozen=True, slots=True)
class CursorContext:
    """Is shared by the cursors of a topic; they own none of it."""

    client: LedgerClient
    store: MetadataStore
    entropy: Entropy
    sizes: QuorumSizes
    """The same quorums as the topic's own ledgers."""
    config: CursorConfig


class CursorLedger:
    """The ledger that a cursor's states are appended to. Is made by `create`; ended by `close`, or by `release` without
    closing it."""

    def __init__(self, writer: LedgerWriter, config: CursorConfig) -> None:
        """Is called by `create` only."""
        self._writer = writer
        self._entries_max = config.ledger_entries_max
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + config.ledger_minutes_max * 60
        self._not_before = 0.0

    @classmethod
    async def create(cls, topic: str, cursor: str, state: bytes, context: CursorContext) -> CursorLedger:
        """Makes a ledger. `cursor` is its encoded name. If it raises, no ledger is left, or one that no node names."""
        sizes = context.sizes
        writer = await context.client.create(
            ensemble_size=sizes.ensemble,
            write_quorum=sizes.write,
            ack_quorum=sizes.ack,
            custom_metadata={
                "application": b"pulsar",
                "component": b"managed-ledger",
                "pulsar/managed-ledger": topic.encode(),
                "pulsar/cursor": cursor.encode(),
            },
        )
        try:
            await writer.add(state)
        except BaseException:
            await writer.release()
            await delete_quietly(writer.ledger_id, context.client)
            raise
        return cls(writer, context.config)

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def last_entry(self) -> int:
        return self._writer.last_confirmed

    @property
    def is_due(self) -> bool:
        """Whether it should be replaced, because it is long or old."""
        now = self._loop.time()
        return (self.last_entry + 1 >= self._entries_max or now >= self._due_at) and now >= self._not_before

    def postpone(self, seconds: float) -> None:
        """Delays the replacement, after one that failed."""
        self._not_before = self._loop.time() + seconds

    async def append(self, state: bytes) -> None:
        await self._writer.add(state)

    async def close(self) -> None:
        await self._writer.close()

    async def release(self) -> None:
        await self._writer.release()


async def last_state(ledger_id: int, client: LedgerClient) -> bytes | None:
    """Takes the ledger from its writer. Returns None if it is lost or empty; raises if it may come back."""
    try:
        reader = await client.open(ledger_id)
        last = reader.last_confirmed
        if last < 0:
            log.warning("a cursor's ledger is empty", extra={"ledger_id": ledger_id})
            return None
        return bytes((await reader.read(last, last))[0].payload)
    except (NoSuchLedgerError, EntryAbsentError, EntryDamagedError) as error:
        log.error("a cursor's ledger is lost", extra={"ledger_id": ledger_id, "why": str(error)})
        return None


async def delete_quietly(ledger_id: int, client: LedgerClient) -> bool:
    """Returns whether the ledger is deleted."""
    try:
        await client.delete(ledger_id)
    except NoSuchLedgerError:
        return True
    except MagnetarError as error:
        log.warning("a cursor's old ledger was not deleted", extra={"ledger_id": ledger_id, "why": str(error)})
        return False
    return True


_LEDGER_RETRY_S: Final = 10.0
"""No other try is made for this long after a ledger could not be made or deleted, as each try is slow."""
_OPEN_TRIES_MAX: Final = 5
"""Tries to open a cursor whose old owner has moved the state once more; an owner that closes does so once."""
_UNUSED_MAX: Final = 16
"""Old ledgers whose deletion is tried again; beyond that, the oldest are left."""


async def stored_cursors(topic: str, context: CursorContext) -> Sequence[str]:
    """Returns the encoded names. `topic` is the managed ledger's name, as in `TopicLog.open`."""
    try:
        return await context.store.children(managed_ledger_path(topic))
    except NoNodeError:
        return []


class LedgerCursorStorage:
    """Stores one cursor. Is made by `create` or `open`; ended by `close`, `delete`, or `abandon`."""

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
        """The subscription's properties, as they are stored."""
        return cursor_properties(self._node.info)

    @property
    def last_active_ms(self) -> int:
        """When the subscription was last used, as far as that is stored; 0 if unknown."""
        return self._node.info.last_active

    @property
    def ledger_id(self) -> int:
        """The ledger that has the state, or -1."""
        return self._node.info.cursors_ledger_id

    @property
    def ledger_last_entry(self) -> int:
        """The last entry that this owner wrote to that ledger, or -1."""
        return -1 if self._ledger is None else self._ledger.last_entry

    # --- storing ------------------------------------------------------------------------------------------------------

    async def store(self, snapshot: Snapshot) -> None:
        """Is durable when it returns. CursorFencedError; after any other error the state may or may not be stored."""
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
        """Whether `clean_up` has something to do now."""
        return self._loop.time() >= self._no_deletion_before and bool(self._unused_ledgers())

    def _unused_ledgers(self) -> list[int]:
        if self._node.is_unresolved:
            return []  # It is unknown which one is used.
        return [ledger for ledger in self._ledgers_made if ledger != self.ledger_id]

    async def clean_up(self) -> None:
        """Deletes ledgers that the node does not name any more. What cannot be deleted now is tried again later."""
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
        """Ends the storage, also if it raises. Writes a short state into the node and deletes the ledger; otherwise the
        ledger stays, and is closed. `is_stored`: the state is stored already. Parts of batches stay in a ledger:
        brokers of Apache up to 4.2.4 do not read them from the node."""
        has_batches = bool(snapshot.info.batched_entry_deletion_index_info)
        try:
            await self._resolve()
            if is_stored and self._ledger is None and not (has_batches and self.ledger_id == NO_LEDGER):
                return  # Nothing has changed since it was opened, or the state is in the node already.
            if self._fits_node(snapshot) and not has_batches:
                await self._close_in_node(snapshot, is_stored=is_stored)
            else:
                await self._close_in_ledger(snapshot, is_stored=is_stored)
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

    async def _close_in_ledger(self, snapshot: Snapshot, *, is_stored: bool) -> None:
        if self._ledger is None or not is_stored:
            self._no_ledger_before = 0.0  # There is no later time to try it.
            try:
                await self.store(snapshot)
            except CursorFencedError:
                raise
            except MagnetarError as error:
                if not is_stored:
                    raise
                extra = {"path": self._node.path, "why": str(error)}
                log.warning("a cursor stays in its node", extra=extra)
        if self._ledger is not None:
            await self._ledger.close()

    async def _append_at_last(self, snapshot: Snapshot) -> bool:
        """Appends to the ledger if the node could not be written, provided that it is still known to be the right
        ledger."""
        if self._node.is_unresolved or self._ledger is None:
            return False
        return await self._append(self._ledger, snapshot.info.SerializeToString())

    async def delete(self) -> None:
        """Ends the cursor's existence; its ledgers may still exist when it returns."""
        await self._node.delete()

    async def delete_data(self) -> None:
        """Deletes what `delete` has left. Ledgers that cannot be deleted are logged and left."""
        await self.abandon()
        for ledger_id in self._ledgers_made:
            await delete_quietly(ledger_id, self._context.client)

    async def abandon(self) -> None:
        """Ends the storage without storing anything: another broker has the cursor, or it is deleted."""
        await self._leave_ledger()


def _path(topic: str, encoded_name: str) -> str:
    return f"{managed_ledger_path(topic)}/{encoded_name}"
