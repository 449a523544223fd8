"""Reads every replica of a range from its own bookie, and verifies it.

Purpose:   a reader of a ledger is content with any copy, and silently asks the next bookie. Here each copy counts, so
           each bookie is asked for its own.
Order:     missing, damaged or unanswered entries are asked for again, after a pause and with the ledger's metadata read
           anew: an add may have been in flight, a bookie replaced or restarted, the ledger deleted. Only lasting faults
           are reported.
Limits:    memory for two runs per range: one being verified, the next in flight.
Format:    a range is entries first … last of one ledger at one position of its ensemble, as far as that position holds
           them: one bookie's work, in the order in which its disk has it. It is cut to a size that a task reads in a
           second or so. What is found is reported in ranges, too.
Invariant: the end is a closed ledger's last entry; for an open one, the last that was confirmed when the plan was made.
           The bookie follows from metadata and position. A bookie that is replaced is replaced at its position, so a
           range stays right when the metadata changes.
Read next: ledger/channels/answers.py
"""

from __future__ import annotations

import asyncio
import enum
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.errors import DigestMismatchError, MagnetarError, NoSuchLedgerError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.channels.answers import Answer, interpret_bodies
from magnetar.ledger.channels.answers import Finding as Said
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.channels.pending_requests import PendingReads
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerKeys, ledger_keys
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.quorum.sizes import each_held_entry, held_entries
from magnetar.wire.bookkeeper.codes import Code, code_of_number
from magnetar.wire.bookkeeper.digests import DigestType
from magnetar.wire.bookkeeper.frames import Buffer

_RUN_BYTES: Final = 2 * 2**20
_RUN_ENTRIES_MAX: Final = 1_000  # Below what any bookie takes from one reader at once.
_PAUSES_S: Final = (0.5, 2.0)  # Before suspects are asked for again. An add in flight arrives within these.
_PATIENCE_S: Final = 30.0  # For one run: a disk that is read from end to end answers late, and that is not damage.
_OK: Final = int(Code.EOK)


class ReplicaReads:
    """Verifies the ranges of one process, which share what is known of bookies that do not answer."""

    def __init__(self, client: LedgerClient, pauses_s: Sequence[float] = _PAUSES_S) -> None:
        self._client = client
        self._pauses_s = pauses_s
        self._timeout_s = max(client.context.config.read_timeout_ms / 1000, _PATIENCE_S)
        self._silent: set[BookieId] = set()

    async def verify(self, wanted: ReplicaRange, metadata: LedgerMetadata) -> list[Finding]:
        """Returns what was verified and what is wrong: every replica of the range, unless the ledger was deleted."""
        work = _Work(keys_of(metadata))
        held = metadata.ensemble_size, metadata.write_quorum, wanted.position, wanted.first_entry, wanted.last_entry
        await self._read(work, wanted, metadata, list(each_held_entry(*held)))
        for pause_s in self._pauses_s:
            if not work.suspects or self._is_hopeless(work):
                break
            await asyncio.sleep(pause_s)
            again = await self._current(wanted.ledger_id)
            if again is None:
                return []
            metadata = again
            await self._read(work, wanted, metadata, sorted(work.suspects))
        self._silent -= work.answered  # A bookie that answers again is waited for again.
        self._silent.update(bookie for bookie, answer in work.suspects.values() if answer.finding is Said.UNREACHABLE)
        return _findings_of(wanted, metadata, work)

    def _is_hopeless(self, work: _Work) -> bool:
        """Reports whether only bookies are left for whose answers other ranges have waited already."""
        return all(
            answer.finding is Said.UNREACHABLE and bookie in self._silent for bookie, answer in work.suspects.values()
        )

    async def _current(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return await self._client.metadata(ledger_id)
        except NoSuchLedgerError:
            return None

    async def _read(
        self, work: _Work, wanted: ReplicaRange, metadata: LedgerMetadata, entry_ids: Sequence[int]
    ) -> None:
        """Reads runs of entries of one bookie; the next is asked for while one is verified."""
        begun: _Run | None = None
        try:
            for bookie, ids in _runs(wanted, metadata, entry_ids):
                following = await self._begin(work, bookie, ids)
                if begun is not None:
                    await begun.done
                begun = following
            if begun is not None:
                await begun.done
        finally:
            if begun is not None:
                begun.cancel()

    async def _begin(self, work: _Work, bookie: BookieId, entry_ids: Sequence[int]) -> _Run:
        run = _Run(work, bookie, len(entry_ids))
        try:
            channel = await self._client.bookies.channel(bookie)
            run.ticket = channel.send_reads(work.keys.ledger_id, entry_ids, run, timeout_s=self._timeout_s)
        except MagnetarError as error:  # The bookie is away, or has no room: these are asked for again.
            run.fail(entry_ids, error)
        return run


@dataclass(slots=True)
class _Work:
    keys: LedgerKeys
    verified: int = 0
    size_bytes: int = 0
    suspects: dict[int, tuple[BookieId, Answer]] = field(default_factory=dict)
    answered: set[BookieId] = field(default_factory=set)

    def on_verified(self, entry_id: int, size_bytes: int) -> None:
        self.verified += 1
        self.size_bytes += size_bytes
        if self.suspects:
            self.suspects.pop(entry_id, None)


class _Run:
    """A `ReadListener` of one bookie's answers. An error that is not the bookie's is raised through `done`."""

    def __init__(self, work: _Work, bookie: BookieId, count: int) -> None:
        self._work = work
        self._bookie = bookie
        self._left = count
        self.ticket: PendingReads | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_read_answers(
        self,
        channel: Channel,  # noqa: ARG002
        entry_ids: Sequence[int],
        codes: Sequence[int],
        bodies: Sequence[Buffer],
    ) -> None:
        work, keys = self._work, self._work.keys
        work.answered.add(self._bookie)
        open_entry, ledger_id = keys.digest.open, keys.ledger_id
        for entry_id, code, body in zip(entry_ids, codes, bodies, strict=True):
            if code != _OK:
                self._suspect(entry_id, code)
                continue
            try:
                open_entry(ledger_id, entry_id, body)
            except DigestMismatchError as error:
                work.suspects[entry_id] = (self._bookie, Answer(Said.DAMAGED, why=str(error)))
            else:
                work.on_verified(entry_id, len(body))
        self._count(len(entry_ids))

    def _suspect(self, entry_id: int, number: int) -> None:
        try:
            answer = interpret_bodies(self._work.keys, entry_id, code_of_number(number), ())
        except MagnetarError as error:  # The bookie does not accept the key: it counts as refused.
            answer = Answer(Said.REFUSED, why=str(error))
        self._work.suspects[entry_id] = (self._bookie, answer)

    def on_reads_failed(self, channel: Channel, entry_ids: Sequence[int], error: MagnetarError) -> None:  # noqa: ARG002
        self.fail(entry_ids, error)

    def fail(self, entry_ids: Sequence[int], error: MagnetarError) -> None:
        answer = Answer(Said.UNREACHABLE, why=str(error))
        for entry_id in entry_ids:
            self._work.suspects[entry_id] = (self._bookie, answer)
        self._count(len(entry_ids))

    def _count(self, answered: int) -> None:
        self._left -= answered
        if self._left <= 0 and not self.done.done():
            self.done.set_result(None)

    def cancel(self) -> None:
        if self.ticket is not None and not self.done.done():
            self.ticket.cancel()


def keys_of(metadata: LedgerMetadata) -> LedgerKeys:
    """Returns the keys of the ledger's own password, which its metadata has."""
    return ledger_keys(metadata, metadata.password or b"", DigestType.CRC32C)


def _runs(
    wanted: ReplicaRange, metadata: LedgerMetadata, entry_ids: Sequence[int]
) -> Iterator[tuple[BookieId, Sequence[int]]]:
    """Yields runs of one bookie each: the entries of a range may lie in several fragments after a bookie was
    replaced."""
    step = max(1, min(_RUN_ENTRIES_MAX, _RUN_BYTES // max(1, wanted.entry_bytes)))
    starts = [fragment.first_entry_id for fragment in metadata.fragments]
    at = 0
    while at < len(entry_ids):
        following = bisect_right(starts, entry_ids[at])
        in_fragment = bisect_left(entry_ids, starts[following]) if following < len(starts) else len(entry_ids)
        end = min(at + step, in_fragment)
        yield metadata.fragments[following - 1].ensemble[wanted.position], entry_ids[at:end]
        at = end


def _findings_of(wanted: ReplicaRange, metadata: LedgerMetadata, work: _Work) -> list[Finding]:
    found = list(findings_of(wanted.ledger_id, dict(sorted(work.suspects.items()))))
    if work.verified:
        bookie = bookie_of(metadata, wanted.position, wanted.last_entry)
        whole = wanted.ledger_id, wanted.first_entry, wanted.last_entry
        found.append(Finding(*whole, bookie, What.VERIFIED, work.verified, work.size_bytes))
    return found


RANGE_BYTES: Final = 64 * 2**20
RANGE_ENTRIES_MAX: Final = 200_000
_ENTRY_BYTES_GUESSED: Final = 4096  # For a ledger that is still written: its metadata has no length yet.


@dataclass(frozen=True, slots=True)
class ReplicaRange:
    ledger_id: int
    position: int
    first_entry: int
    last_entry: int
    entries: int
    """The number of them that this position holds."""
    entry_bytes: int
    """The size of one entry, as far as it is known before it is read."""

    @property
    def size_bytes(self) -> int:
        return self.entries * self.entry_bytes


def replica_ranges(metadata: LedgerMetadata, last_entry: int, range_bytes: int = RANGE_BYTES) -> Iterator[ReplicaRange]:
    """Yields all of a ledger up to this entry, fragment by fragment."""
    entry_bytes = max(1, metadata.length // (last_entry + 1)) if metadata.is_closed else _ENTRY_BYTES_GUESSED
    step = min(RANGE_ENTRIES_MAX, max(1, range_bytes // entry_bytes))
    starts = [fragment.first_entry_id for fragment in metadata.fragments]
    ends = [start - 1 for start in starts[1:]] + [last_entry]
    for start, end in zip(starts, ends, strict=True):
        for position in range(metadata.ensemble_size):
            for first in range(start, min(end, last_entry) + 1, step):
                last = min(first + step - 1, end, last_entry)
                held = held_entries(metadata.ensemble_size, metadata.write_quorum, position, first, last)
                if held is not None:
                    yield ReplicaRange(metadata.ledger_id, position, held.first, held.last, held.count, entry_bytes)


def bookie_of(metadata: LedgerMetadata, position: int, entry_id: int) -> BookieId:
    return metadata.fragment_of(EntryId(entry_id)).ensemble[position]


class What(enum.StrEnum):
    VERIFIED = "verified"
    MISSING = "missing"
    DAMAGED = "damaged"
    LIMBO = "limbo"
    """The bookie may have lost entries of the ledger, and does not know which."""
    UNREACHABLE = "unreachable"
    REFUSED = "refused"

    @property
    def is_fault(self) -> bool:
        """Reports whether the replica must be made again; other troubles leave that open."""
        return self in (What.MISSING, What.DAMAGED, What.LIMBO)


_WHAT = {
    Said.PRESENT: What.VERIFIED,
    Said.ABSENT: What.MISSING,
    Said.DAMAGED: What.DAMAGED,
    Said.LIMBO: What.LIMBO,
    Said.UNREACHABLE: What.UNREACHABLE,
    Said.REFUSED: What.REFUSED,
}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Neighbouring entries of one bookie, all in the same state."""

    ledger_id: int
    first_entry: int
    last_entry: int
    bookie: str
    what: What
    entries: int
    size_bytes: int = 0
    """Read and verified."""
    why: str = ""

    def document(self) -> dict[str, object]:
        return {
            "ledger": self.ledger_id,
            "firstEntry": self.first_entry,
            "lastEntry": self.last_entry,
            "entries": self.entries,
            "bookie": self.bookie,
            "what": self.what.value,
            "why": self.why,
        }


def findings_of(ledger_id: int, suspects: Mapping[int, tuple[BookieId, Answer]]) -> Iterator[Finding]:
    """Takes entries by rising id. A range has no gaps, so its first and last entry describe it."""
    begun: Finding | None = None
    for entry_id, (bookie, answer) in suspects.items():
        what = _WHAT[answer.finding]
        state = (entry_id - 1, bookie, what, answer.why)
        if begun and (begun.last_entry, begun.bookie, begun.what, begun.why) == state:
            begun = Finding(ledger_id, begun.first_entry, entry_id, bookie, what, begun.entries + 1, why=answer.why)
            continue
        if begun:
            yield begun
        begun = Finding(ledger_id, entry_id, entry_id, bookie, what, 1, why=answer.why)
    if begun:
        yield begun


@dataclass(frozen=True, slots=True)
class Skipped:
    """A ledger that could not be scrubbed, or not wholly."""

    ledger_id: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubResult:
    ledgers: int
    replicas: int
    """Verified ones."""
    size_bytes: int
    seconds: float
    findings: tuple[Finding, ...]
    """The faults, by ledger and entry."""
    skipped: tuple[Skipped, ...]
    marked: int
    """Ledgers that were marked, or whose marks name more bookies now."""

    @property
    def is_clean(self) -> bool:
        """Reports whether every replica of every ledger was verified."""
        return not self.findings and not self.skipped

    @property
    def bytes_per_second(self) -> float:
        return self.size_bytes / self.seconds if self.seconds else 0.0

    def count(self, what: What) -> int:
        return sum(finding.entries for finding in self.findings if finding.what is what)

    def document(self) -> dict[str, Any]:
        return {
            "clean": self.is_clean,
            "ledgers": self.ledgers,
            "verified": self.replicas,
            **{what.value: self.count(what) for what in What if what is not What.VERIFIED},
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "bytesPerSecond": round(self.bytes_per_second),
            "findings": [finding.document() for finding in self.findings],
            "skipped": [{"ledger": skipped.ledger_id, "why": skipped.why} for skipped in self.skipped],
            "marked": self.marked,
        }
