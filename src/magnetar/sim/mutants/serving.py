"""Bugs of a bookie that serves: a "no" that is wrong, fences that are forgotten, a disk that is not its own; and memory
without a bound, which only a client that breaks the rules brings to light."""

from __future__ import annotations

from typing import Any, Final

from magnetar.bookie.identity import _require_all_stamped
from magnetar.bookie.ledgers import Fencing, LedgerTable
from magnetar.bookie.reads import Reads, to_send
from magnetar.bookie.replay import Replay
from magnetar.runtime.receiving import ReceiveMemory
from magnetar.sim.mutants.planting import Mutant
from magnetar.storage.frames import lent
from magnetar.storage.ledger_storage import LedgerStorage

_HOSTILE: Final[dict[str, Any]] = {"faults": ("hostile",)}

MUTANTS: Final = [
    Mutant(6, "a read error is answered as: no such entry", ("L9",), budget=300).edit(
        Reads.find, "return Found(Code.EIO, entry_id)", "return Found(Code.ENOENTRY, entry_id)"
    ),
    Mutant(16, "a fence is not journaled", ("L8", "L9"), budget=500).edit(
        Fencing._begin,
        "self._journal.submit(RecordKind.FENCE, (encode_fence(Fence(ledger.id, master_key)),), ledger.fencing)",
        "ledger.fencing.set_result(None)",
    ),
    Mutant(18, "a second fence is answered before the first is durable", ("L8", "L9"), budget=500).edit(
        Fencing.fence,
        "if ledger.fencing is not None:",
        "elif True:\n        return Code.EOK\n    if ledger.fencing is not None:",
    ),
    Mutant(19, "a fence is dropped when the ledger leaves the table in memory", ("L8",), budget=500).edit(
        LedgerTable._let_one_go,
        "self._let_go[ledger_id] = ledger\n",
        "self._storage.set_flags(ledger_id, dataclasses.replace(ledger.flags, fenced=False))\n",
    ),
    Mutant(20, "a fence is dropped when the ledger is deleted", ("L8",), budget=500)
    .edit(LedgerStorage.delete_ledger, "if flags is not None and flags.fenced:\n", "if False:\n")
    .edit(
        LedgerStorage.delete_ledger,
        "if late is not None and late.fenced and",
        "if flags is None and late is not None and",
    ),
    Mutant(21, "a bookie whose disk is empty serves", ("B7",), budget=500).edit(
        _require_all_stamped, "if lost:", "if False:"
    ),
    Mutant(24, "replay skips fences", ("B2",), budget=1_000).edit(
        Replay.deliver, "case RecordKind.FENCE:", "case RecordKind.FENCE if False:"
    ),
    Mutant(90, "answers keep whole chunks of the read cache in memory", ("M1",), budget=100)
    .edit(Reads._serve_some, "lend(parts, settled)  # The caches may let go of these chunks meanwhile.\n", "pass\n")
    .edit(
        to_send,
        "if sum(map(len, parts)) <= _JOIN_BYTES_MAX * len(parts):",
        "if True:\n        return parts\n    if parts:",
    )
    .edit(lent, "if len(entry) * KEPT_PER_BYTE >= _chunk_bytes(entry) else bytes(entry)", ""),
    Mutant(91, "unfinished frames take as much memory as clients send", ("M1",), budget=50, options=_HOSTILE).edit(
        ReceiveMemory.may_take, "if self.kept_bytes + more_bytes <= self.bytes_max:", "if True:"
    ),
    Mutant(92, "a frame that does not continue keeps its connection", ("M1",), budget=50, options=_HOSTILE).edit(
        ReceiveMemory._look_at, "if owner.is_excused or", "if True or owner.is_excused or"
    ),
    Mutant(93, "each combination of flag bits is a context of its own", ("M1",), budget=50, options=_HOSTILE).edit(
        LedgerTable.admit, "and not flags & ~Flag.ALL", ""
    ),
]
