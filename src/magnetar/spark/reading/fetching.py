"""Entries of ranges, as they are stored: straight from the bookies, or through the topic's broker.

bookie     from the ledger's bookies, digests verified, several chunks ahead (cluster.py)
broker     through the topic's owner (broker_road.py)
auto       from the bookies; where they cannot be reached, the rest of the range comes through the broker, and the log
           says so once for each ledger

Gone:      a range was there when it was planned. If its ledger is listed no more, it was trimmed since, or the topic
           was deleted: a gap. If it is listed, and all who should have an entry do not, or have it damaged: that is
           loss. Without failOnDataLoss what cannot be read is left out, entry by entry, and logged.
Index:     entries that carry none are told theirs; it is asked for only then.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.errors import (
    BookieUnavailableError,
    DataLossError,
    DataTrimmedError,
    EntryAbsentError,
    EntryDamagedError,
    LedgerOffloadedError,
    MagnetarError,
    NoSuchLedgerError,
    TopicNotFoundError,
)
from magnetar.spark.decoding.runs import EntryRun
from magnetar.spark.reading.broker_road import read_through_broker
from magnetar.spark.reading.gaps import deleted, tolerate
from magnetar.spark.reading.options import ReadOptions, ReadVia
from magnetar.spark.reading.ranges import Range
from magnetar.spark.reading.resolving import spot_of
from magnetar.spark.reading.spots import UNKNOWN, Spot
from magnetar.wire.bookkeeper.digests import DigestType
from magnetar.wire.pulsar.entry import BROKER_ENTRY_MAGIC, messages_in, parse_entry

if TYPE_CHECKING:
    from magnetar.spark.cluster import Cluster
    from magnetar.spark.cluster_values import FoundPlace, SegmentLedger, Segments
    from magnetar.wire.pulsar.frames import Buffer

log = logging.getLogger(__name__)

_GONE = (EntryAbsentError, EntryDamagedError, NoSuchLedgerError)
_SKIPPED_MAX: Final = 1_000  # Unreadable entries in a row; behind them, the rest of the ledger is given up.
_MAGIC: Final = BROKER_ENTRY_MAGIC.to_bytes(2, "big")


class EntrySource(Protocol):
    """As much of a `Cluster` as is needed."""

    def read_entries(self, ledger: SegmentLedger, first: int, last: int) -> AsyncIterator[tuple[int, list[Buffer]]]: ...
    async def segments(self, topic: str, from_ledger: int = 0) -> Segments: ...
    async def place(self, topic: str, text: str) -> FoundPlace: ...


async def fetch(cluster: Cluster, ranges: Sequence[Range], options: ReadOptions) -> AsyncIterator[EntryRun]:
    """All entries of these ranges, in order."""
    fetcher = Fetcher(cluster, options)
    for wanted in ranges:
        async for run in fetcher.runs(wanted):
            yield run


class Fetcher:
    def __init__(self, source: EntrySource, options: ReadOptions) -> None:
        self._source = source
        self._options = options
        self._unreachable: set[int] = set()
        """Ledgers whose bookies did not answer: not asked again by this task."""

    async def runs(self, wanted: Range) -> AsyncIterator[EntryRun]:
        rest, failures = wanted, 0
        while rest.entries > 0:
            try:
                async with aclosing(self._road(rest)) as road:
                    async for run in road:
                        yield run
                        rest, failures = _behind(rest, run), 0
                return
            except (BookieUnavailableError, LedgerOffloadedError) as error:
                self._turn_to_broker(rest, error)
            except _GONE as error:
                failures += 1
                rest = await self._without(rest, error, failures)

    def _road(self, wanted: Range) -> AsyncGenerator[EntryRun, None]:
        via_broker = self._options.read_via is ReadVia.BROKER or wanted.ledger.ledger_id in self._unreachable
        return self._through_broker(wanted) if via_broker else self._from_bookies(wanted)

    async def _from_bookies(self, wanted: Range) -> AsyncGenerator[EntryRun, None]:
        ledger = wanted.ledger
        index = wanted.first_index
        async for first, entries in self._source.read_entries(ledger, wanted.first, wanted.last):
            carries_index = bytes(entries[0][:2]) == _MAGIC
            if not carries_index and index is None:
                index = await self._index_at(wanted, first)
            last = first + len(entries) - 1
            yield EntryRun(
                wanted.topic,
                wanted.partition,
                ledger.ledger_id,
                first,
                entries,
                index or 0,
                wanted.skipped if first == wanted.first else 0,
                wanted.stop if last == wanted.last else None,
                is_verified=ledger.digest_type is not DigestType.DUMMY,
            )
            if not carries_index and index is not None:
                index += sum(messages_in(parse_entry(entry).metadata) for entry in entries)

    async def _through_broker(self, wanted: Range) -> AsyncGenerator[EntryRun, None]:
        index = wanted.first_index
        if index is None:
            index = await self._index_at(wanted, wanted.first)
        at = wanted.first
        async for run in read_through_broker(self._options.cluster.service_url, wanted, index):
            yield run
            at = run.first_entry_id + len(run.entries)
        if at <= wanted.last:  # Markers at its end, or it is gone.
            tolerate(await self._trouble(wanted, None), fail_on_data_loss=self._options.fail_on_data_loss)

    async def _index_at(self, wanted: Range, entry_id: int) -> int:
        spot = await spot_of(self._source, wanted.topic, f"{wanted.ledger.ledger_id}:{entry_id}")
        if spot.index == UNKNOWN:
            raise DataLossError(
                f"entry {spot} of {wanted.topic} carries no index, and entries that would tell it are lost: it cannot "
                "be numbered. magnetar pipeline scrub finds all such entries"
            )
        return spot.index

    # --- trouble ------------------------------------------------------------------------------------------------------

    def _turn_to_broker(self, rest: Range, error: MagnetarError) -> None:
        ledger_id = rest.ledger.ledger_id
        if self._options.read_via is not ReadVia.AUTO:
            raise BookieUnavailableError(
                f"{error}. Option readVia is bookie; with auto, entries come through the broker where bookies cannot "
                "be reached from here"
            ) from error
        self._unreachable.add(ledger_id)
        log.warning("ledger %d of %s is read through the broker from here on: %s", ledger_id, rest.topic, error)

    async def _without(self, rest: Range, error: Exception, failures: int) -> Range:
        """What is left to read when its first entry cannot be; raises unless that may be left out."""
        trouble = await self._trouble(rest, error)
        tolerate(trouble, fail_on_data_loss=self._options.fail_on_data_loss)
        following = rest.first + 1
        if isinstance(trouble, DataTrimmedError) or isinstance(error, NoSuchLedgerError):
            following = rest.last + 1
        elif failures > _SKIPPED_MAX and following <= rest.last:
            log.warning(
                "entries %d to %d of ledger %d of %s are left out unseen: %d before them in a row cannot be read",
                following, rest.last, rest.ledger.ledger_id, rest.topic, failures,
            )  # fmt: skip
            following = rest.last + 1
        return replace(rest, first=following, skipped=0)

    async def _trouble(self, rest: Range, error: Exception | None) -> DataLossError | None:
        """What it means that the first entry of a range cannot be read. None: nothing, markers are at its end."""
        ledger_id, spot = rest.ledger.ledger_id, Spot(rest.ledger.ledger_id, rest.first)
        try:
            segments = await self._source.segments(rest.topic)
        except TopicNotFoundError:
            return deleted(rest.topic, spot)
        if all(ledger.ledger_id != ledger_id for ledger in segments.ledgers):
            return DataTrimmedError(
                f"ledger {ledger_id} of {rest.topic} was removed by retention since this batch was planned: entries "
                f"{rest.first} to {rest.last} are gone. They were not lost. Read again; keep messages longer, or hold "
                "them with option subscription. With failOnDataLoss=false they are left out"
            )
        if error is None:
            return None
        return DataLossError(
            f"entry {spot} of {rest.topic} is lost: the topic lists it, and it cannot be read: {error}. "
            "magnetar pipeline scrub finds all such entries. With failOnDataLoss=false they are left out"
        )


def _behind(rest: Range, run: EntryRun) -> Range:
    """What is left of it, which may be nothing."""
    return replace(rest, first=run.first_entry_id + len(run.entries), skipped=0)
