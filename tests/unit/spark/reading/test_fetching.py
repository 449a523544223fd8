"""Entries of ranges: from bookies, through the broker where those cannot be reached, and what cannot be had at all."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from magnetar.errors import (
    BookieUnavailableError,
    DataLossError,
    DataTrimmedError,
    EntryAbsentError,
    EntryDamagedError,
    TopicRecreatedError,
)
from magnetar.ledger.context import LedgerContext
from magnetar.spark import cluster as cluster_module
from magnetar.spark.cluster import FoundPlace
from magnetar.spark.decoding.inputs import EntryRun
from magnetar.spark.reading import fetching
from magnetar.spark.reading.fetching import Fetcher
from magnetar.spark.reading.ranges import Range
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.pulsar.entry import broker_entry_header
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from tests.unit.spark.reading.topic_world import TOPIC, FakeCluster, ledger, options, segments

LEDGER = ledger(5, 10, first_index=100)


class Source(FakeCluster):
    """Two entries a chunk; some of them cannot be had: an error comes after all entries before it."""

    def __init__(self, failures: dict[int, list[Exception]] | None = None, *, has_index: bool = True) -> None:
        super().__init__(orders=segments(LEDGER))
        self.failures = failures or {}
        self.has_index = has_index

    async def read_entries(self, wanted: Any, first: int, last: int) -> AsyncIterator[Any]:
        for at in range(first, last + 1, 2):
            chunk = range(at, min(at + 2, last + 1))
            failing = next((entry for entry in chunk if self.failures.get(entry)), None)
            if failing is None:
                yield at, [self.entry(entry) for entry in chunk]
                continue
            if failing > at:
                yield at, [self.entry(at)]
            raise self.failures[failing].pop(0)

    def entry(self, number: int) -> bytes:
        return (broker_entry_header(100 + number, 0) if self.has_index else b"") + stored(f"{number}".encode(), number)


def stored(payload: bytes, sequence_id: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1).SerializeToString()
    return len(metadata).to_bytes(4, "big") + metadata + payload


def wanted(first: int = 0, last: int = 9, skipped: int = 0, stop: int | None = None) -> Range:
    return Range(TOPIC, -1, LEDGER, first, last, skipped, stop)


async def fetched(source: Any, asked: Range, **given: str) -> list[EntryRun]:
    return [run async for run in Fetcher(source, options(**given)).runs(asked)]


def ids(runs: list[EntryRun]) -> list[int]:
    return [run.first_entry_id + at for run in runs for at in range(len(run.entries))]


@pytest.fixture
def broker_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What is asked of the broker: first and last entry, index of the first message."""
    asked: list[tuple[int, int, int]] = []

    async def read(service_url: str, rest: Range, first_index: int) -> AsyncIterator[EntryRun]:
        asked.append((rest.first, rest.last, first_index))
        source = Source()
        entries = [source.entry(number) for number in range(rest.first, rest.last + 1)]
        yield EntryRun(rest.topic, -1, rest.ledger.ledger_id, rest.first, entries, first_index, rest.skipped, rest.stop)

    monkeypatch.setattr(fetching, "read_through_broker", read)
    return asked


async def test_entries_come_in_runs_and_the_ends_of_a_range_are_passed_on() -> None:
    runs = await fetched(Source(), wanted(1, 5, skipped=2, stop=7))
    assert ids(runs) == [1, 2, 3, 4, 5]
    assert [(run.first_batch_index, run.end_batch_index) for run in runs] == [(2, None), (0, None), (0, 7)]


async def test_the_index_is_counted_where_entries_carry_none_and_asked_for_in_the_middle_of_a_ledger() -> None:
    source = Source(has_index=False)
    assert [run.first_index for run in await fetched(source, wanted())] == [100, 102, 104, 106, 108]
    assert source.asked == []
    assert [run.first_index for run in await fetched(source, wanted(3, 6))] == [103, 105]
    assert source.asked == ["place 5:3 orders"]


async def test_an_entry_without_an_index_that_nobody_can_tell_is_not_numbered() -> None:
    source = Source(has_index=False)
    asked = replace(wanted(), ledger=replace(LEDGER, first_index=None))
    assert [run.first_index for run in await fetched(source, asked)] == [100, 102, 104, 106, 108]
    assert source.asked == ["place 5:0 orders"]

    async def place(topic: str, text: str) -> FoundPlace:
        return FoundPlace(Position(5, 0), -1, None)

    source.place = place  # type: ignore[method-assign]
    with pytest.raises(DataLossError, match="cannot be numbered"):
        await fetched(source, asked)


async def test_the_broker_takes_over_where_bookies_cannot_be_reached(
    broker_reads: list[tuple[int, int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    source = Source({4: [BookieUnavailableError("no route")]})
    with caplog.at_level(logging.WARNING):
        runs = await fetched(source, wanted())
    assert ids(runs) == list(range(10))
    assert broker_reads == [(4, 9, 104)]
    assert "through the broker" in caplog.text


async def test_with_read_via_bookie_the_error_says_what_else_there_is() -> None:
    with pytest.raises(BookieUnavailableError, match="with auto"):
        await fetched(Source({4: [BookieUnavailableError("no route")]}), wanted(), readVia="bookie")


async def test_with_read_via_broker_no_bookie_is_asked(broker_reads: list[tuple[int, int, int]]) -> None:
    assert ids(await fetched(Source({0: [AssertionError("asked")]}), wanted(2, 3), readVia="broker")) == [2, 3]
    assert broker_reads == [(2, 3, 102)]


async def test_an_entry_that_is_listed_and_nobody_has_is_lost() -> None:
    with pytest.raises(DataLossError, match=r"5:4.*lost.*scrub"):
        await fetched(Source({4: [EntryAbsentError("nobody has it")]}), wanted())


async def test_without_fail_on_data_loss_only_what_is_lost_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    source = Source({4: [EntryDamagedError("damaged"), EntryDamagedError("damaged")], 7: [EntryAbsentError("gone")]})
    with caplog.at_level(logging.WARNING):
        runs = await fetched(source, wanted(), failOnDataLoss="false")
    assert ids(runs) == [0, 1, 2, 3, 5, 6, 8, 9]
    assert "5:4" in caplog.text


class LargePieces(FakeCluster):
    """All entries are of one piece, and some are damaged, in a ledger whose entries are spread over bookies."""

    def __init__(self, entries: int, damaged: set[int]) -> None:
        self.ledger = ledger(5, entries, first_index=100)
        super().__init__(orders=segments(self.ledger))
        self.damaged = damaged

    def read_entries(self, wanted: Any, first: int, last: int) -> AsyncIterator[Any]:
        assert cluster_module.entries_per_piece(wanted) >= last - first
        return cluster_module.read_entries(wanted, first, last, cast("LedgerContext", None))

    async def read_some(self, first: int, last: int) -> list[Entry]:
        damaged = sorted(entry for entry in self.damaged if first <= entry <= last)
        if damaged:
            raise EntryDamagedError(f"entry {damaged[0]} is damaged")
        texts = [(number, stored(b"%d" % number, number)) for number in range(first, last + 1)]
        return [Entry(number, -1, 0, memoryview(broker_entry_header(100 + number, 0) + text)) for number, text in texts]


async def test_damage_in_the_middle_of_a_piece_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LargePieces(1_800, {7, 900, 901, 1_799})
    monkeypatch.setattr(cluster_module, "_open", lambda ledger, context: source)
    whole = Range(TOPIC, -1, source.ledger, 0, 1_799)
    runs = await fetched(source, whole, failOnDataLoss="false")
    assert ids(runs) == [number for number in range(1_800) if number not in source.damaged]
    with pytest.raises(DataLossError, match=r"5:7 .*lost.*entry 7 is damaged"):
        await fetched(source, whole)


async def test_what_is_given_up_behind_too_much_damage_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetching, "_SKIPPED_MAX", 3)
    source = Source({entry: [EntryAbsentError("gone")] for entry in range(2, 8)})
    with caplog.at_level(logging.WARNING):
        assert ids(await fetched(source, wanted(), failOnDataLoss="false")) == [0, 1]
    assert "entries 6 to 9 of ledger 5" in caplog.text


async def test_a_ledger_that_was_trimmed_since_is_a_gap_and_no_loss() -> None:
    source = Source({0: [EntryAbsentError("gone"), EntryAbsentError("gone")]})
    source.set("orders", ledger(8, 3, first_index=110))
    with pytest.raises(DataTrimmedError, match="not lost"):
        await fetched(source, wanted())
    assert await fetched(source, wanted(), failOnDataLoss="false") == []


async def test_a_topic_that_was_deleted_since_says_so() -> None:
    source = Source({0: [EntryAbsentError("gone")]})
    source.topics.clear()
    with pytest.raises(TopicRecreatedError, match="deleted"):
        await fetched(source, wanted())
