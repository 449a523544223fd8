"""How a change of the ensemble becomes the truth: decisions, and the race for the metadata."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.config.metadata import MetadataConfig
from magnetar.errors import BadVersionError, LedgerFencedError, MetadataUnavailableError, NoSuchLedgerError
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.ledger.metadata import ChangeInMemory, CommittedChange, Conflict, MetadataContext, changed, resolve
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.compare_and_set import TRIES_MAX
from magnetar.metadata.memory import MemoryServer
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.system import SystemEntropy
from tests.unit.ledger.writing import SteeredLedgers

pytestmark = pytest.mark.virtual_time

A, B, C, D, X = (BookieId(name) for name in "ABCDX")
NEW: dict[int, BookieId] = {1: D}


def ledger(*fragments: tuple[int, tuple[BookieId, ...]], **fields: Any) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=LedgerId(7),
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        ctime_ms=1,
        stores_ctime=True,
        fragments=tuple(Fragment(EntryId(first), ensemble) for first, ensemble in fragments),
        **fields,
    )


OPEN = ledger((0, (A, B, C)))
TWO = ledger((0, (A, B, C)), (5, (A, B, X)))


def closed_at(metadata: LedgerMetadata, last: int) -> LedgerMetadata:
    return dataclasses.replace(metadata, state=LedgerState.CLOSED, last_entry_id=EntryId(last))


# --- decisions --------------------------------------------------------------------------------------------------------


def test_new_fragment_begins_behind_the_last_confirmed_entry() -> None:
    assert changed(OPEN, 8, (A, D, C)).fragments == ledger((0, (A, B, C)), (8, (A, D, C))).fragments


def test_fragment_without_confirmed_entries_is_replaced_in_place() -> None:
    assert changed(OPEN, 0, (A, D, C)).fragments == ledger((0, (A, D, C))).fragments
    assert changed(TWO, 5, (A, D, X)).fragments == ledger((0, (A, B, C)), (5, (A, D, X))).fragments


def test_confirmed_entries_are_never_moved() -> None:
    with pytest.raises(AssertionError):
        changed(TWO, 4, (A, D, X))


def test_what_a_newer_release_stored_in_a_fragment_is_kept_when_it_is_replaced() -> None:
    strange = dataclasses.replace(OPEN, fragments=(Fragment(EntryId(0), (A, B, C), b"news"),))
    assert changed(strange, 0, (A, D, C)).fragments[0].unknown_fields == b"news"
    assert changed(strange, 3, (A, D, C)).fragments[1].unknown_fields == b""


@pytest.mark.parametrize(
    ("found", "meaning"),
    [
        (TWO, Conflict.MERGE),
        (changed(TWO, 9, (A, D, X)), Conflict.DONE),
        (ledger((0, (A, D, C)), (5, (A, B, X))), Conflict.MERGE),
        (ledger((0, (D, B, C)), (5, (A, B, X)), (9, (A, D, X))), Conflict.DONE),
        (dataclasses.replace(TWO, state=LedgerState.IN_RECOVERY), Conflict.FENCED),
        (closed_at(changed(TWO, 9, (A, D, X)), 8), Conflict.FENCED),
        (ledger((0, (A, B, C)), (5, (A, C, X))), Conflict.FENCED),
        (ledger((0, (A, B, C)), (5, (A, B, X)), (9, (A, C, X))), Conflict.FENCED),
        (OPEN, Conflict.FENCED),
    ],
)
def test_what_is_found_in_place_of_what_we_knew_means(found: LedgerMetadata, meaning: Conflict) -> None:
    assert resolve(TWO, changed(TWO, 9, (A, D, X)), found) is meaning


async def test_change_of_a_recovery_stays_in_memory() -> None:
    change = ChangeInMemory(TWO)
    await change.write(6, {0: D})
    await change.write(6, {2: C})
    assert change.metadata.fragments == ledger((0, (A, B, C)), (5, (A, B, X)), (6, (D, B, C))).fragments
    assert change.ensemble == (D, B, C)


# --- the race ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def ledgers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SteeredLedgers]:
    monkeypatch.setattr(Backoff, "next_s", lambda _: 0.0)
    entropy = SystemEntropy()
    server = MemoryServer(entropy, MetadataConfig(url="memory:"))
    async with server.connect() as store:
        ledgers = SteeredLedgers(store, BookKeeperPaths(), entropy)
        ledgers.context = MetadataContext(ledgers, store, entropy)  # type: ignore[attr-defined]
        yield ledgers
    await server.aclose()


async def change_of(ledgers: SteeredLedgers, metadata: LedgerMetadata) -> CommittedChange:
    return CommittedChange(await ledgers.create(metadata), ledgers.context)  # type: ignore[attr-defined]


async def stored(ledgers: SteeredLedgers) -> LedgerMetadata:
    return (await ledgers.read(LedgerId(7))).value


async def test_change_is_stored_when_it_returns(ledgers: SteeredLedgers) -> None:
    change = await change_of(ledgers, OPEN)
    await change.write(4, NEW)
    assert (await stored(ledgers)).fragments == changed(OPEN, 4, (A, D, C)).fragments
    await change.write(9, {0: X})
    assert await stored(ledgers) == change.metadata
    assert [fragment.first_entry_id for fragment in change.metadata.fragments] == [0, 4, 9]


async def test_bookie_swapped_in_an_older_fragment_is_kept(ledgers: SteeredLedgers) -> None:
    change = await change_of(ledgers, TWO)
    swapped = Fragment(EntryId(0), (A, D, C))
    ledgers.before.append(
        lambda: ledgers.change(7, lambda m: dataclasses.replace(m, fragments=(swapped, *m.fragments[1:])))
    )
    await change.write(9, NEW)
    assert (await stored(ledgers)).fragments == (swapped, TWO.fragments[1], Fragment(EntryId(9), (A, D, X)))


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
async def test_ledger_that_another_took_over_is_not_changed(ledgers: SteeredLedgers, state: LedgerState) -> None:
    change = await change_of(ledgers, OPEN)
    ledgers.before.append(lambda: ledgers.change(7, lambda m: dataclasses.replace(m, state=state)))
    with pytest.raises(LedgerFencedError, match="was taken over"):
        await change.write(4, NEW)
    assert (await stored(ledgers)).fragments == OPEN.fragments


@pytest.mark.parametrize("was_done", [True, False])
async def test_lost_answer_is_resolved_by_looking(ledgers: SteeredLedgers, was_done: bool) -> None:
    change = await change_of(ledgers, OPEN)
    ledgers.lost = [was_done]
    await change.write(4, NEW)
    found = await ledgers.read(LedgerId(7))
    assert found == change.versioned
    assert found.value.fragments == changed(OPEN, 4, (A, D, C)).fragments
    assert found.version == 1


async def test_store_that_cannot_be_reached_is_tried_again(ledgers: SteeredLedgers) -> None:
    change = await change_of(ledgers, OPEN)
    ledgers.errors = [MetadataUnavailableError("away")] * 3
    await change.write(4, NEW)
    assert (await stored(ledgers)).fragments == change.metadata.fragments


async def test_tries_end(ledgers: SteeredLedgers) -> None:
    change = await change_of(ledgers, OPEN)
    ledgers.errors = [MetadataUnavailableError("away")] * (TRIES_MAX + 1)
    with pytest.raises(MetadataUnavailableError):
        await change.write(4, NEW)
    assert len(ledgers.errors) == 1


async def test_unknown_outcome_stays_unknown_when_nobody_can_look(
    ledgers: SteeredLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = await change_of(ledgers, OPEN)
    ledgers.lost = [True]

    async def away(*_: object, **__: object) -> None:
        raise MetadataUnavailableError("away")

    monkeypatch.setattr(ledgers, "read", away)
    with pytest.raises(Exception, match="may or may not") as failed:
        await change.write(4, NEW)
    assert failed.value.outcome_unknown  # type: ignore[attr-defined]


async def test_race_that_is_lost_for_ever_ends(ledgers: SteeredLedgers) -> None:
    change = await change_of(ledgers, OPEN)
    ledgers.before = [
        lambda number=number: ledgers.change(7, lambda m: dataclasses.replace(m, custom_metadata={"n": b"%d" % number}))
        for number in range(TRIES_MAX)
    ]
    with pytest.raises(BadVersionError):
        await change.write(4, NEW)
    assert (await stored(ledgers)).fragments == OPEN.fragments


async def test_deleted_ledger_is_said_so(ledgers: SteeredLedgers) -> None:
    change = await change_of(ledgers, OPEN)
    await ledgers.delete(LedgerId(7), 0)
    with pytest.raises(NoSuchLedgerError):
        await change.write(4, NEW)


def test_pauses_double_up_to_the_bound_and_are_never_longer() -> None:
    backoff = Backoff(SystemEntropy().random, 0.1, 0.5)
    pauses = [backoff.next_s() for _ in range(5)]
    for pause, longest in zip(pauses, (0.1, 0.2, 0.4, 0.5, 0.5), strict=True):
        assert longest / 2 <= pause <= longest


async def test_two_writers_of_one_ledger_cannot_both_change_it(ledgers: SteeredLedgers) -> None:
    one = await change_of(ledgers, OPEN)
    other = CommittedChange(one.versioned, ledgers.context)  # type: ignore[attr-defined]
    found = await asyncio.gather(one.write(4, NEW), other.write(4, {2: X}), return_exceptions=True)
    assert [type(result) for result in found] == [type(None), LedgerFencedError]
    assert (await stored(ledgers)).fragments == one.metadata.fragments
