"""What auto-recovery is doing, read from the metadata: for operators, whichever process does the work."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from functools import partial
from typing import Any, Final, TypeAlias

from magnetar.errors import MalformedMetadataError, NoNodeError, NoSuchLedgerError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.recovery_nodes import (
    BookieSet,
    MarkNote,
    MarkState,
    RecoveryNotes,
    RecoveryPaths,
    bookies_in,
    decode_delay,
    elected_auditor,
    is_disabled,
)
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks, locks_root, marked_ledger
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.gather import gather_bounded

Document: TypeAlias = dict[str, Any]

NOTES_MAX: Final = 2_000  # Of a cluster with very many marks, the states of the first ones are counted.
_READS_AT_ONCE: Final = 64


class RecoveryStatus:
    def __init__(self, store: MetadataStore, paths: BookKeeperPaths) -> None:
        self._store = store
        self._paths = paths
        self._nodes = RecoveryPaths(paths)
        self._marks = UnderreplicationMarks(store, paths)
        self._notes = RecoveryNotes(store, self._nodes)

    async def read(self) -> Document:
        auditor = await self._auditor_says()  # Before the marks: who is away no longer, has them already.
        marked = [ledger_id async for ledger_id in self._marks.list()]
        notes = await self.notes(marked[:NOTES_MAX])
        states = Counter(note.state.value for note in notes)
        busy = [note for note in notes if note.state is MarkState.REPAIRING and note.seconds > 0]
        return {
            "enabled": not await is_disabled(self._store, self._nodes),
            "auditor": await elected_auditor(self._store, self._nodes),
            "auditor_state": auditor.get("state"),
            "auditor_waits_because": auditor.get("why") or None,
            "lost_bookie_delay_s": await self._delay_s(),
            "writable_bookies": await self._names(self._paths.available),
            "read_only_bookies": await self._names(self._paths.readonly),
            "away": auditor.get("away") or [],
            "lost": await BookieSet(self._store, self._nodes.lost).read(),
            "decommissioning": await BookieSet(self._store, self._nodes.draining).read(),
            "marked_ledgers": len(marked),
            "locked_ledgers": await self._locked(),
            "states": {state.value: states[state.value] for state in MarkState},
            "bytes_per_s": round(sum(note.copied_bytes / note.seconds for note in busy)),
        }

    async def notes(self, ids: list[LedgerId]) -> list[MarkNote]:
        found = await gather_bounded([partial(self._notes.read, ledger_id) for ledger_id in ids], _READS_AT_ONCE)
        return [note or MarkNote() for note in found]

    async def rows(self, limit: int) -> list[Document]:
        """Returns the marked ledgers with their notes."""
        marked = []
        async for ledger_id in self._marks.list():
            marked.append(ledger_id)
            if len(marked) >= limit:
                break
        notes = await self.notes(marked)
        return [_row(ledger_id, note) for ledger_id, note in zip(marked, notes, strict=True)]

    async def explain(self, ledger_id: LedgerId, ledgers: LedgerMetadataStore) -> Document:
        """Returns everything that is known of one ledger's repair."""
        mark = await self._marks.read(ledger_id)
        note = await self._notes.read(ledger_id)
        document: Document = {
            "ledger": ledger_id,
            "marked": mark is not None,
            "marked_bookies": [] if mark is None else list(mark.replicas),
            "marked_ms": None if mark is None else mark.ctime_ms,
            "locked_by": await self._marks.holder(ledger_id),
            "note": None if note is None else asdict(note),
        }
        try:
            metadata = (await ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            return document | {"exists": False, "fragments": []}
        registered = [*await self._names(self._paths.available), *await self._names(self._paths.readonly)]
        draining = await BookieSet(self._store, self._nodes.draining).read()
        starts = [fragment.first_entry_id for fragment in metadata.fragments]
        ends: list[int | None] = [start - 1 for start in starts[1:]]
        ends.append(metadata.last_entry_id if metadata.is_closed else None)
        fragments = [
            {
                "first_entry": fragment.first_entry_id,
                "last_entry": end,
                "bookies": list(fragment.ensemble),
                "away": [bookie for bookie in fragment.ensemble if bookie not in registered],
                "decommissioning": [bookie for bookie in fragment.ensemble if bookie in draining],
            }
            for fragment, end in zip(metadata.fragments, ends, strict=True)
        ]
        return document | {"exists": True, "state": metadata.state.name, "fragments": fragments}

    async def _auditor_says(self) -> Document:
        node = await self._store.get(self._nodes.auditor)
        try:
            found = {} if node is None else json.loads(node.value)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    async def _delay_s(self) -> int | None:
        node = await self._store.get(self._nodes.delay)
        try:
            return None if node is None else decode_delay(node.value)
        except MalformedMetadataError:
            return None

    async def _names(self, path: str) -> list[BookieId]:
        try:
            return bookies_in(await self._store.children(path))
        except NoNodeError:
            return []

    async def _locked(self) -> int:
        try:
            names = await self._store.children(locks_root(self._paths))
        except NoNodeError:
            return 0
        return sum(marked_ledger(name) is not None for name in names)


def _row(ledger_id: LedgerId, note: MarkNote) -> Document:
    return {
        "ledger": ledger_id,
        "state": note.state.value,
        "reasons": dict(note.reasons),
        "marked_ms": note.marked_ms or None,
        "since_ms": note.since_ms or None,
        "why": note.why or None,
        "entries": note.entries or None,
        "worker": note.worker or None,
        "tries": note.tries,
        "copied_entries": note.copied_entries,
        "entries_to_copy": note.entries_to_copy,
        "copied_bytes": note.copied_bytes,
    }
