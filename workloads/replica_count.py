"""Counts every replica of every entry, with a connection of its own to each bookie.

Purpose:   a judge of repairs must not share code with them: no ledger client, no channel, only the protocol's codec.
           It takes the bookies of each entry from the metadata, asks each for the entry, and compares all of it.
Format:    the payload of an entry follows from a seed, the ledger and the entry (`payload_of`), so that nothing has to
           be remembered.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.ledger.metadata import stored_keys
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.quorum.sizes import write_set
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import decode_response, encode_request
from magnetar.wire.bookkeeper.messages import V2, ReadEntry, ReadResponse

_ANSWER_S = 30.0
_NOTED_MAX = 20
_AT_ONCE = 64  # Requests in flight on one connection; a v2 bookie answers them in any order.


def payload_of(seed: int, ledger_id: int, entry_id: int, size: int) -> bytes:
    return random.Random(f"{seed}/{ledger_id}/{entry_id}").randbytes(size)


@dataclass(slots=True)
class ReplicaCount:
    ledgers: int = 0
    entries: int = 0
    replicas: int = 0
    """Those that are well."""
    bytes: int = 0
    wrong: int = 0
    notes: list[str] = field(default_factory=list)
    """The first few that are wrong."""

    def note(self, what: str) -> None:
        self.wrong += 1
        if len(self.notes) < _NOTED_MAX:
            self.notes.append(what)

    def document(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class _Bookie:
    """One connection. A bookie whose id is not host:port cannot be counted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, ledger_id: int, entry_ids: Sequence[int]) -> dict[int, ReadResponse]:
        found: dict[int, ReadResponse] = {}
        for at in range(0, len(entry_ids), _AT_ONCE):
            run = entry_ids[at : at + _AT_ONCE]
            self._writer.write(b"".join(encode_request(ReadEntry(ledger_id, each, version=V2)) for each in run))
            async with asyncio.timeout(_ANSWER_S):
                for _ in run:
                    answer = await self._answer()
                    found[answer.entry_id] = answer
        return found

    async def _answer(self) -> ReadResponse:
        head = await self._reader.readexactly(4)
        frame = head + await self._reader.readexactly(int.from_bytes(head, "big"))
        decoded = decode_response(frame, 0, len(frame), V2)
        assert decoded is not None
        assert isinstance(decoded.response, ReadResponse)
        return decoded.response


async def count_replicas(
    ledgers: LedgerMetadataStore, ids: Sequence[int], seed: int, *, size_of: int, absent: Sequence[str] = ()
) -> ReplicaCount:
    """Counts all replicas of these closed ledgers. `absent`: bookies that no fragment with entries may name."""
    count = ReplicaCount()
    async with AsyncExitStack() as closing:
        connections: dict[str, _Bookie] = {}
        for ledger_id in ids:
            metadata = (await ledgers.read(LedgerId(ledger_id))).value
            count.ledgers += 1
            if not metadata.is_closed:
                count.note(f"ledger {ledger_id} is {metadata.state.name}")
                continue
            count.entries += metadata.last_entry_id + 1
            for bookie, entry_ids in _shares(metadata).items():
                if bookie in absent:
                    count.note(f"ledger {ledger_id} names bookie {bookie}")
                    continue
                if bookie not in connections:
                    connections[bookie] = await _connect(bookie, closing)
                answers = await connections[bookie].read(ledger_id, entry_ids)
                for entry_id in entry_ids:
                    _judge(count, metadata, bookie, answers[entry_id], payload_of(seed, ledger_id, entry_id, size_of))
    return count


async def _connect(bookie: str, closing: AsyncExitStack) -> _Bookie:
    host, _, port = bookie.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    closing.callback(writer.close)
    return _Bookie(reader, writer)


def _shares(metadata: LedgerMetadata) -> dict[BookieId, list[int]]:
    shares: dict[BookieId, list[int]] = {}
    for entry_id in range(metadata.last_entry_id + 1):
        ensemble = metadata.fragment_of(EntryId(entry_id)).ensemble
        for position in write_set(metadata.ensemble_size, metadata.write_quorum, entry_id):
            shares.setdefault(ensemble[position], []).append(entry_id)
    return shares


def _judge(count: ReplicaCount, metadata: LedgerMetadata, bookie: str, answer: ReadResponse, wanted: bytes) -> None:
    where = f"entry {answer.entry_id} of ledger {metadata.ledger_id} on {bookie}"
    if answer.code is not Code.EOK:
        count.note(f"{where}: {answer.code.name}")
        return
    keys = stored_keys(metadata)
    assert keys is not None
    entry = keys.digest.open(metadata.ledger_id, answer.entry_id, answer.body)
    if entry.payload != wanted:
        count.note(f"{where}: another payload")
        return
    count.replicas += 1
    count.bytes += len(wanted)
