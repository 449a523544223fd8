"""Marks of ledgers that lack replicas, where BookKeeper's auto-recovery looks for its work.

Format:    underreplication/LAYOUT, ledgers, locks; a mark is ledgers/hhhh/hhhh/hhhh/hhhh/urL%010d, below the
           ledger's id in hexadecimal. Its value is text and exactly what Apache's nodes parse and write again.
Order:     a ledger that is marked already gets the bookies that its mark does not name yet, by compare-and-set. The
           loop is not that of metadata/compare_and_set.py: only lost races are tried again here; after an unknown
           outcome, the caller may mark once more.
Read next: proto/underreplication.proto
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf import text_format

from magnetar.errors import (
    BadVersionError,
    MalformedMetadataError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    UnsupportedLayoutError,
)
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths, stored_bookie_id
from magnetar.metadata.bookkeeper.proto.underreplication_pb2 import (
    LedgerRereplicationLayoutFormat,
    UnderreplicatedLedgerFormat,
)
from magnetar.metadata.bookkeeper.proto_strings import parse_text
from magnetar.metadata.paths import join
from magnetar.metadata.store import MetadataStore

_LAYOUT_TYPE: Final = "BASIC"
_LAYOUT_VERSION: Final = 1
_TRIES_MAX: Final = 8  # Others may mark the same ledger at the same moment: the auditor, another scrub.


@dataclass(frozen=True, slots=True)
class Mark:
    replicas: tuple[BookieId, ...]
    ctime_ms: int | None = None


def mark_path(paths: BookKeeperPaths, ledger_id: LedgerId) -> str:
    digits = f"{ledger_id:016x}"
    parts = (digits[at : at + 4] for at in range(0, 16, 4))
    return "/".join((join(paths.underreplication, "ledgers"), *parts, f"urL{ledger_id:010d}"))


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
    """Marks ledgers: `prepare` once, then `mark`."""

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
        node = await self._store.get(mark_path(self._paths, ledger_id))
        return None if node is None else decode_mark(node.value)

    async def mark(self, ledger_id: LedgerId, replicas: Sequence[BookieId], now_ms: int) -> bool:
        """Reports whether anything was new. Repeated marks do no harm, so a call whose answer was lost may be
        repeated."""
        path = mark_path(self._paths, ledger_id)
        for _ in range(_TRIES_MAX):
            try:
                return await self._try_mark(path, tuple(replicas), now_ms)
            except (NodeExistsError, NoNodeError, BadVersionError):  # It was marked, repaired or marked again since.
                continue
        raise MetadataError(f"the mark of ledger {ledger_id} changes faster than it can be written: try again")

    async def _try_mark(self, path: str, replicas: tuple[BookieId, ...], now_ms: int) -> bool:
        node = await self._store.get(path)
        if node is None:
            await self._store.create(path, encode_mark(Mark(replicas, now_ms)), make_parents=True)
            return True
        known = decode_mark(node.value).replicas
        added = tuple(replica for replica in replicas if replica not in known)
        if added:
            await self._store.put(path, encode_mark(Mark(known + added, now_ms)), node.version)
        return bool(added)
