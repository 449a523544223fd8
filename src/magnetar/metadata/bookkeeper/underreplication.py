"""Marks of ledgers that lack replicas, where BookKeeper's auto-recovery looks for its work; and the locks of workers.

Format:    underreplication/LAYOUT, ledgers, locks; a mark is ledgers/hhhh/hhhh/hhhh/hhhh/urL%010d, below the
           ledger's id in hexadecimal. Its value is text and exactly what Apache's nodes parse and write again.
           A lock is the ephemeral node locks/urL%010d; its value names the worker, for operators.
Order:     a ledger that is marked already gets the bookies that its mark does not name yet, by compare-and-set. The
           loop is not that of metadata/compare_and_set.py: only lost races are tried again here; after an unknown
           outcome, the caller may mark once more.
           A mark is read after its lock was taken, and deleted only at the version that was read: a ledger that is
           marked again in between stays marked. The delete is one transaction with a check that the lock exists, so
           that a worker whose lock was taken away deletes nothing, and with a check of the ledger's own version: what
           a worker has looked at must still be true.
           A mark of a locked ledger is written again even if it names all of the bookies already, for its new version:
           its worker may have looked at a bookie that came back, before it was lost again.
Read next: recovery_nodes.py (what else is below underreplication), proto/underreplication.proto
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf import text_format

from magnetar.errors import (
    BadVersionError,
    MalformedMetadataError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    TransactionFailedError,
    UnsupportedLayoutError,
)
from magnetar.ids import LEDGER_ID_MAX, BookieId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import Versioned
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths, stored_bookie_id
from magnetar.metadata.bookkeeper.proto.underreplication_pb2 import (
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)
from magnetar.metadata.bookkeeper.proto_strings import parse_text
from magnetar.metadata.paths import join, parent_of
from magnetar.metadata.store import Check, CreateMode, Delete, MetadataStore, Node, Operation

_LAYOUT_TYPE: Final = "BASIC"
_LAYOUT_VERSION: Final = 1
_TRIES_MAX: Final = 8  # Others may mark the same ledger at the same moment: the auditor, another scrub.
MARK_DEPTH: Final = 4  # Directories between `ledgers` and a mark.
_LEAF = re.compile(r"urL([0-9]{10,19})")


@dataclass(frozen=True, slots=True)
class Mark:
    replicas: tuple[BookieId, ...]
    ctime_ms: int | None = None


def marks_root(paths: BookKeeperPaths) -> str:
    return join(paths.underreplication, "ledgers")


def locks_root(paths: BookKeeperPaths) -> str:
    return join(paths.underreplication, "locks")


def mark_path(paths: BookKeeperPaths, ledger_id: LedgerId) -> str:
    return path_of_ledger(marks_root(paths), ledger_id)


def path_of_ledger(root: str, ledger_id: LedgerId) -> str:
    """Returns where a ledger's node is in a tree that has the form of the marks'."""
    digits = f"{ledger_id:016x}"
    parts = (digits[at : at + 4] for at in range(0, 16, 4))
    return "/".join((root, *parts, mark_name(ledger_id)))


def lock_path(paths: BookKeeperPaths, ledger_id: LedgerId) -> str:
    return join(locks_root(paths), mark_name(ledger_id))


def mark_name(ledger_id: LedgerId) -> str:
    return f"urL{ledger_id:010d}"


def marked_ledger(name: str) -> LedgerId | None:
    """Returns the ledger of a mark or a lock by the name of its node; None for any other name."""
    found = _LEAF.fullmatch(name)
    value = -1 if found is None else int(found[1])
    return LedgerId(value) if 0 <= value <= LEDGER_ID_MAX else None


def encode_mark(mark: Mark) -> bytes:
    message = UnderreplicatedLedgerFormat(replica=mark.replicas, ctime=mark.ctime_ms)
    return text_format.MessageToString(message).encode()


def decode_mark(value: bytes) -> Mark:
    message = UnderreplicatedLedgerFormat()
    try:
        parse_text(value.decode(), message)
        replicas = tuple(map(stored_bookie_id, message.replica))
    except ValueError as error:
        raise MalformedMetadataError(f"mark of an under-replicated ledger: {error}") from error
    return Mark(replicas, message.ctime if message.HasField("ctime") else None)


class UnderreplicationMarks:
    """Marks ledgers, and locks and clears marks: `prepare` once, then the others."""

    def __init__(self, store: MetadataStore, paths: BookKeeperPaths) -> None:
        self._store = store
        self._paths = paths

    async def prepare(self) -> None:
        """Makes the tree if it is missing. Raises UnsupportedLayoutError if it is of an unknown kind."""
        layout = join(self._paths.underreplication, "LAYOUT")
        wanted = LedgerRereplicationLayoutFormat(type=_LAYOUT_TYPE, version=_LAYOUT_VERSION)
        await self._ensure(layout, text_format.MessageToString(wanted).encode())
        node = await self._store.get(layout)
        found = LedgerRereplicationLayoutFormat()
        parse_text("" if node is None else node.value.decode("utf-8", "replace"), found)
        if (found.type, found.version) != (_LAYOUT_TYPE, _LAYOUT_VERSION):
            raise UnsupportedLayoutError(
                f"{layout} says {found.type} {found.version}; known is {_LAYOUT_TYPE} {_LAYOUT_VERSION} alone"
            )
        for name in ("ledgers", "locks"):
            await self._ensure(join(self._paths.underreplication, name), b"")

    async def _ensure(self, path: str, value: bytes) -> None:
        if await self._store.get(path) is not None:
            return
        try:
            await self._store.create(path, value, make_parents=True)
        except NodeExistsError:
            return

    async def read(self, ledger_id: LedgerId) -> Mark | None:
        found = await self.read_versioned(ledger_id)
        return None if found is None else found.value

    async def read_versioned(self, ledger_id: LedgerId) -> Versioned[Mark] | None:
        node = await self._store.get(mark_path(self._paths, ledger_id))
        return None if node is None else Versioned(decode_mark(node.value), node.version)

    def list(self) -> AsyncIterator[LedgerId]:
        """Yields the marked ledgers in rising order. Marks that come and go meanwhile may be in it or not."""
        return list_tree(self._store, marks_root(self._paths))

    async def lock(self, ledger_id: LedgerId, worker: str) -> bool:
        """Takes the ledger for this session. False: another worker has it.

        OutcomeUnknownError: it may be ours; `unlock` gives it back if it is.
        """
        value = text_format.MessageToString(LockDataFormat(bookieId=worker)).encode()
        try:
            await self._store.create(lock_path(self._paths, ledger_id), value, mode=CreateMode.EPHEMERAL)
        except NodeExistsError:
            return False
        return True

    async def unlock(self, ledger_id: LedgerId) -> None:
        """Gives the ledger back if this session has it."""
        path = lock_path(self._paths, ledger_id)
        node = await self._store.get(path)
        if node is not None and node.owner == self._store.session.id:
            with contextlib.suppress(NoNodeError):
                await self._store.delete(path, node.version)

    async def unlock_all(self) -> None:
        """Gives back what an earlier owner of this session left locked."""
        for name in await self._store.children(locks_root(self._paths)):
            if (ledger_id := marked_ledger(name)) is not None:
                await self.unlock(ledger_id)

    async def holder(self, ledger_id: LedgerId) -> str | None:
        """Returns what the lock says of its worker; None if the ledger is not locked."""
        node = await self._store.get(lock_path(self._paths, ledger_id))
        return None if node is None else _worker_in(node)

    async def clear(self, ledger_id: LedgerId, version: int, ledger_version: int | None = None) -> bool:
        """Deletes a mark that has this version, of a ledger that this session has locked. `ledger_version`: that of the
        metadata which was looked at; None for a ledger that does not exist. False: the ledger was marked again, or has
        changed, or the lock is lost. OutcomeUnknownError: the next look shows whether the mark still exists."""
        path = mark_path(self._paths, ledger_id)
        operations: list[Operation] = [Check(lock_path(self._paths, ledger_id))]
        if ledger_version is not None:
            operations.append(Check(self._paths.ledger(ledger_id), ledger_version))
        try:
            await self._store.transact([*operations, Delete(path, version)])
        except TransactionFailedError as error:
            if not isinstance(error.cause, NoNodeError | BadVersionError):
                raise error.cause from None
            return False
        await delete_empty_parents(self._store, path, marks_root(self._paths))
        return True

    async def mark(self, ledger_id: LedgerId, replicas: Sequence[BookieId], now_ms: int) -> bool:
        """Reports whether anything was new. Repeated marks do no harm, so a call whose answer was lost may be
        repeated."""
        path = mark_path(self._paths, ledger_id)
        for _ in range(_TRIES_MAX):
            try:
                return await self._try_mark(ledger_id, path, tuple(replicas), now_ms)
            except (NodeExistsError, NoNodeError, BadVersionError):  # It was marked, repaired or marked again since.
                continue
        raise MetadataError(f"the mark of ledger {ledger_id} changes faster than it can be written: try again")

    async def _try_mark(self, ledger_id: LedgerId, path: str, replicas: tuple[BookieId, ...], now_ms: int) -> bool:
        node = await self._store.get(path)
        if node is None:
            await self._store.create(path, encode_mark(Mark(replicas, now_ms)), make_parents=True)
            return True
        known = decode_mark(node.value).replicas
        added = tuple(replica for replica in replicas if replica not in known)
        if added:
            await self._store.put(path, encode_mark(Mark(known + added, now_ms)), node.version)
        elif await self._store.get(lock_path(self._paths, ledger_id)) is not None:
            await self._store.put(path, node.value, node.version)
        return bool(added)


def _worker_in(node: Node) -> str:
    message = LockDataFormat()
    try:
        parse_text(node.value.decode("utf-8", "replace"), message)
    except MalformedMetadataError:  # It is for people only.
        return ""
    return message.bookieId


async def list_tree(store: MetadataStore, root: str) -> AsyncIterator[LedgerId]:
    """Yields the ledgers of a tree that has the form of the marks', in rising order."""
    async for ledger_id in _list_below(store, root, MARK_DEPTH):
        yield ledger_id


async def _list_below(store: MetadataStore, path: str, depth: int) -> AsyncIterator[LedgerId]:
    try:
        names = await store.children(path)
    except NoNodeError:  # Its last mark was cleared, and the empty directory with it.
        return
    for name in names:
        if depth > 0:
            async for ledger_id in _list_below(store, join(path, name), depth - 1):
                yield ledger_id
        elif (found := marked_ledger(name)) is not None:
            yield found


async def delete_empty_parents(store: MetadataStore, path: str, root: str) -> None:
    """Deletes directories that became empty, as Apache's workers do. What fails is left: it is only tidying."""
    path = parent_of(path)
    while path != root:
        try:
            await store.delete(path)
        except MetadataError:
            return
        path = parent_of(path)
