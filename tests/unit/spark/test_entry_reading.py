"""Entries straight from bookies: in order, verified, ahead, and with errors that tell which way is left."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import (
    BookieUnavailableError,
    EntryAbsentError,
    EntryDamagedError,
    EntryOutOfRangeError,
    EntryUnavailableError,
    LedgerOffloadedError,
    MagnetarError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    WrongPasswordError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.bookkeeper.ledger_codec import encode
from magnetar.spark import cluster as cluster_module
from magnetar.spark.cluster import SegmentLedger, entries_per_piece, read_entries
from magnetar.testing.cluster import BookieCluster, small_config
from magnetar.wire.bookkeeper.digests import DigestType, Entry

LEDGER = LedgerConfig(read_batch_bytes_max=20_000, connect_timeout_ms=500, read_timeout_ms=500)


class World:
    def __init__(self, bookies: BookieCluster, client: LedgerClient) -> None:
        self.bookies = bookies
        self.client = client

    async def write(self, payloads: list[bytes], *, quorum: int = 1, password: bytes = b"") -> LedgerWriter:
        writer = await self.client.create(
            ensemble_size=max(quorum, 1), write_quorum=quorum, ack_quorum=quorum, password=password
        )
        for payload in payloads:
            await writer.add(payload)
        return writer

    async def segment(self, writer: LedgerWriter, *, password: bytes = b"") -> SegmentLedger:
        metadata = await self.client.metadata(writer.ledger_id)
        return SegmentLedger(
            ledger_id=writer.ledger_id,
            entries=writer.last_confirmed + 1,
            size_bytes=writer.length,
            first_index=0,
            metadata=encode(metadata),
            digest_type=DigestType.CRC32C,
            password=password,
        )

    async def read(self, ledger: SegmentLedger, first: int, last: int) -> list[bytes]:
        found: list[bytes] = []
        await collect(found, ledger, first, last, self.client.context)
        return found


async def collect(found: list[bytes], ledger: SegmentLedger, first: int, last: int, parts: LedgerContext) -> None:
    """Adds what comes, even if an error comes after it."""
    async for at, payloads in read_entries(ledger, first, last, parts):
        assert at == first + len(found)
        found += map(bytes, payloads)


@contextlib.asynccontextmanager
async def world(bookies: int = 1) -> AsyncIterator[World]:
    async with (
        BookieCluster(bookies) as cluster,
        LedgerClient(cluster.store, small_config(ledger=LEDGER), cluster.runtime) as client,
    ):
        yield World(cluster, client)


async def test_a_closed_ledger_is_read_whole_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PIECE_BYTES", 10_000)
    payloads = [b"%d" % number * (1 + number % 7 * 150) for number in range(200)]
    async with world() as here:
        writer = await here.write(payloads)
        await writer.close()
        ledger = await here.segment(writer)
        assert 1 < entries_per_piece(ledger) < 50
        assert await here.read(ledger, 0, 199) == payloads
        assert await here.read(ledger, 17, 30) == payloads[17:31]
        assert await here.read(ledger, 199, 199) == payloads[199:]


async def test_a_piece_that_is_larger_than_expected_comes_in_several_answers() -> None:
    payloads = [b"x"] * 100 + [b"y" * 15_000] * 10
    async with world() as here:
        writer = await here.write(payloads)
        await writer.close()
        assert await here.read(await here.segment(writer), 0, 109) == payloads


async def test_the_confirmed_part_of_an_open_ledger_is_read_and_nothing_behind_it() -> None:
    async with world() as here:
        writer = await here.write([b"a", b"b", b"c"])
        ledger = await here.segment(writer)
        assert await here.read(ledger, 0, 2) == [b"a", b"b", b"c"]
        for first, last in ((0, 3), (2, 1), (-1, 0)):
            with pytest.raises(EntryOutOfRangeError):
                await here.read(ledger, first, last)
        await writer.close()
        assert await here.read(ledger, 1, 2) == [b"b", b"c"]


async def test_entries_spread_over_bookies_are_read_in_order() -> None:
    payloads = [b"%d" % number for number in range(300)]
    async with world(3) as here:
        writer = await here.client.create(ensemble_size=3, write_quorum=2, ack_quorum=2)
        for payload in payloads:
            await writer.add(payload)
        await writer.close()
        assert await here.read(await here.segment(writer), 0, 299) == payloads


async def test_one_bookie_of_two_is_enough() -> None:
    async with world(2) as here:
        writer = await here.write([b"a", b"b"], quorum=2)
        await writer.close()
        ledger = await here.segment(writer)
        await here.bookies.kill(0)
        assert await here.read(ledger, 0, 1) == [b"a", b"b"]


async def test_bookies_that_cannot_be_reached_are_an_error_of_their_own() -> None:
    async with world() as here:
        writer = await here.write([b"a", b"b"])
        await writer.close()
        ledger = await here.segment(writer)
        await here.bookies.kill(0)
        with pytest.raises(BookieUnavailableError):
            await here.read(ledger, 0, 1)


async def test_entries_that_no_bookie_has_are_absent_and_not_unreachable() -> None:
    async with world() as here:
        writer = await here.write([b"a", b"b"])
        ledger = await here.segment(writer)
        gone = SegmentLedger(**{name: getattr(ledger, name) for name in ledger.__slots__} | {"entries": 5})
        with pytest.raises(EntryAbsentError):
            await here.read(gone, 3, 4)


async def test_a_ledger_with_a_password_is_read_with_it() -> None:
    async with world() as here:
        writer = await here.write([b"a"], password=b"secret")
        assert await here.read(await here.segment(writer, password=b"secret"), 0, 0) == [b"a"]
        with pytest.raises(WrongPasswordError):
            await here.read(await here.segment(writer), 0, 0)


async def test_an_offloaded_ledger_says_so_and_one_that_was_deleted_is_gone() -> None:
    async with world() as here:
        ledger = SegmentLedger(7, 3, 30, 0, b"", DigestType.CRC32C, b"", offloaded=True)
        with pytest.raises(LedgerOffloadedError):
            await here.read(ledger, 0, 2)
        with pytest.raises(NoSuchLedgerError):
            await here.read(replace(ledger, offloaded=False), 0, 2)


async def test_who_stops_early_leaves_nothing_under_way() -> None:
    async with world() as here:
        writer = await here.write([bytes(10_000)] * 100)
        await writer.close()
        async with contextlib.aclosing(read_entries(await here.segment(writer), 0, 99, here.client.context)) as chunks:
            async for first, _ in chunks:
                assert first == 0
                break


def test_a_piece_has_at_least_one_entry_and_not_too_many() -> None:
    def ledger(entries: int, size_bytes: int) -> SegmentLedger:
        return SegmentLedger(1, entries, size_bytes, 0, b"", DigestType.CRC32C, b"")

    assert entries_per_piece(ledger(10, 10 * 5 * 2**20)) == 1
    assert entries_per_piece(ledger(1_000_000, 1_000_000)) == cluster_module.PIECE_ENTRIES_MAX
    assert entries_per_piece(ledger(0, 0)) == cluster_module.PIECE_ENTRIES_MAX


@pytest.mark.parametrize(("ensemble", "quorum"), [(1, 1), (3, 2)])
async def test_what_lies_before_an_entry_that_cannot_be_read_comes_before_the_error(ensemble: int, quorum: int) -> None:
    payloads = [b"%d" % number for number in range(20)]
    async with world(ensemble) as here:
        writer = await here.client.create(ensemble_size=ensemble, write_quorum=quorum, ack_quorum=quorum)
        for payload in payloads:
            await writer.add(payload)
        longer = replace(await here.segment(writer), entries=30)
        found: list[bytes] = []
        with pytest.raises(EntryAbsentError, match="entry 20 "):
            await collect(found, longer, 3, 29, here.client.context)
        assert found == payloads[3:]


class Reader:
    """Reads a ledger with entries that cannot be had. With E > Qw, it fails for all that is requested at once."""

    def __init__(self, failures: dict[int, Exception]) -> None:
        self.failures = failures
        self.asked: list[tuple[int, int]] = []

    async def read_some(self, first: int, last: int) -> list[Entry]:
        self.asked.append((first, last))
        for entry_id in range(first, last + 1):
            if entry_id in self.failures:
                raise self.failures[entry_id]
        return [Entry(number, -1, 0, memoryview(b"%d" % number)) for number in range(first, last + 1)]


async def read_with(reader: Reader, monkeypatch: pytest.MonkeyPatch, entries: int) -> tuple[list[int], Exception]:
    """The entries that came, and what came then."""
    monkeypatch.setattr(cluster_module, "_open", lambda ledger, parts: reader)
    ledger = SegmentLedger(7, entries, entries * 10, 0, b"m", DigestType.CRC32C, b"")
    found: list[bytes] = []
    with pytest.raises(MagnetarError) as caught:
        await collect(found, ledger, 0, entries - 1, cast("LedgerContext", None))
    return [int(each) for each in found], caught.value


async def test_a_damaged_entry_in_the_middle_of_a_piece_is_found_in_a_few_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damaged = EntryDamagedError("everywhere")
    reader = Reader({1_500: damaged})
    assert await read_with(reader, monkeypatch, 3_000) == (list(range(1_500)), damaged)
    assert reader.asked[-1] == (1_500, 1_500)
    assert len(reader.asked) < 30


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (EntryDamagedError("everywhere"), EntryDamagedError),
        (EntryUnavailableError("who knows"), BookieUnavailableError),
        (MetadataUnavailableError("nor this"), BookieUnavailableError),
        (NoSuchLedgerError("deleted"), NoSuchLedgerError),
    ],
)
async def test_only_what_the_broker_may_still_have_is_unavailable(
    raised: Exception, seen: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, error = await read_with(Reader({2: raised}), monkeypatch, 3)
    assert type(error) is seen
    assert found == ([0, 1] if isinstance(raised, EntryDamagedError) else [])
