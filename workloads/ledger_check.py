"""Reads a whole stream of ledgers back and holds it against what was acknowledged.

Lost:      acknowledged, and not in its ledger at its place, byte for byte.
Stream:    all ledgers one after the other are messages 0, 1, 2, …: one that comes again is duplicated, one that does
           not follow the one before it is out of order. Messages that were never acknowledged may be there too: those
           that were under way when a writer was killed, and that recovery found.
Copies:    every entry of a closed ledger is on at least Qa bookies of the ensemble that the metadata names for it. This
           finds what reading cannot, as long as all bookies are there: an entry that one more lost disk would take.
Read next: ledger_load.py, ledger_writer.py
"""

from __future__ import annotations

import dataclasses
from contextlib import aclosing
from dataclasses import dataclass

from magnetar.errors import LedgerError, ProcessFailedError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.wire.bookkeeper.availability import decode_availability
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.messages import ListEntries, ListEntriesResponse
from workloads.ledger_load import message_number
from workloads.ledger_writer import Stream, Written

_LIST_TIMEOUT_S = 30.0
_NOTED_MAX = 20
_UNREADABLE_MAX = 100  # Each may cost a timeout. With so many in a ledger, the rest of it counts as lost unread.


@dataclass(slots=True)
class Tally:
    acknowledged: int = 0
    read: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    """Read so, or acknowledged so."""
    damaged: int = 0
    """Not one of our messages."""
    too_few_copies: int = 0
    ledgers: int = 0
    ensemble_changes: int = 0
    """As the metadata has them: fragments beyond the first of each ledger."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """The first few things that were wrong."""

    @property
    def passed(self) -> bool:
        wrong = self.lost + self.duplicated + self.out_of_order + self.damaged + self.too_few_copies
        return wrong == 0 and 0 < self.acknowledged <= self.read

    def note(self, what: str) -> None:
        if len(self.notes) < _NOTED_MAX:
            self.notes.append(what)


async def read_back(client: LedgerClient, stream: Stream, tally: Tally) -> None:
    """Every ledger, in order. One that is still open is recovered."""
    tally.acknowledged, tally.ledgers = stream.acknowledged, len(stream.ledgers)
    tally.out_of_order = len(stream.disorders)
    for disorder in stream.disorders:
        tally.note(disorder)
    order = _Order(tally)
    for written in stream.ledgers:
        reader = await client.open(written.ledger_id)
        tally.ensemble_changes += len(reader.metadata.fragments) - 1
        await _read_ledger(reader, written, order)


class _Order:
    """The stream as it is read: each message once, and each right behind the one before."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._seen: set[int] = set()
        self._last = -1

    def take(self, number: int, where: str) -> None:
        if number in self._seen:
            self.tally.duplicated += 1
            self.tally.note(f"message {number} is there again, as {where}")
        elif number != self._last + 1:
            self.tally.out_of_order += 1
            self.tally.note(f"message {number} follows message {self._last}, as {where}")
        self._seen.add(number)
        self._last = number


async def _read_ledger(reader: LedgerReader, written: Written, order: _Order) -> None:
    tally = order.tally
    in_place = 0
    first = unreadable = 0
    while first <= reader.last_confirmed and unreadable < _UNREADABLE_MAX:
        try:
            async with aclosing(reader.entries(first)) as entries:
                async for entry in entries:
                    first = entry.entry_id + 1
                    number = _read_message(entry, written.ledger_id, order)
                    is_its_own = number == written.first_message + entry.entry_id
                    in_place += is_its_own and entry.entry_id < written.acknowledged
        except LedgerError as error:
            tally.note(str(error))
            unreadable += 1
            first += 1
    if in_place < written.acknowledged:
        tally.lost += written.acknowledged - in_place
        tally.note(
            f"ledger {written.ledger_id}: {written.acknowledged} entries were acknowledged, {in_place} of them are "
            f"there; it ends with entry {reader.last_confirmed}"
        )


def _read_message(entry: Entry, ledger_id: int, order: _Order) -> int | None:
    tally = order.tally
    tally.read += 1
    where = f"entry {entry.entry_id} of ledger {ledger_id}"
    number = message_number(bytes(entry.payload))
    if number is None:
        tally.damaged += 1
        tally.note(f"{where} is none of the messages")
    else:
        order.take(number, where)
    return number


# --- copies -----------------------------------------------------------------------------------------------------------


async def count_copies(client: LedgerClient, stream: Stream, tally: Tally) -> None:
    """For ledgers with E = Qw, whose every bookie has every entry. All bookies must be there."""
    for written in stream.ledgers:
        metadata = await client.metadata(written.ledger_id)
        assert metadata.is_closed, metadata
        assert metadata.ensemble_size == metadata.write_quorum
        bookies = dict.fromkeys(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)
        held = {bookie: await _entries_on(client, metadata, bookie) for bookie in bookies}
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = metadata.fragment_of(EntryId(entry_id)).ensemble
            copies = sum(held[bookie][entry_id] for bookie in ensemble)
            if copies < metadata.ack_quorum:
                tally.too_few_copies += 1
                tally.note(f"entry {entry_id} of ledger {written.ledger_id} is on {copies} of {', '.join(ensemble)}")


async def _entries_on(client: LedgerClient, metadata: LedgerMetadata, bookie: BookieId) -> bytearray:
    """One byte per entry: 1 if the bookie has it."""
    count = metadata.last_entry_id + 1
    held = bytearray(count)
    channel = await client.bookies.channel(bookie)
    answer = await channel.request(ListEntries(metadata.ledger_id), timeout_s=_LIST_TIMEOUT_S)
    assert isinstance(answer, ListEntriesResponse)
    if answer.code in (Code.ENOLEDGER, Code.ENOENTRY):  # It was chosen, and never got anything.
        return held
    if answer.code is not Code.EOK or answer.availability is None:
        raise ProcessFailedError(f"bookie {bookie} did not say what it has of ledger {metadata.ledger_id}: {answer}")
    for group in decode_availability(answer.availability):
        for entry_id in group:
            if entry_id >= count:
                break
            held[entry_id] = 1
    return held
