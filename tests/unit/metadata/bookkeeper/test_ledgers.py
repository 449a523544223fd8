"""Ledgers in the store: creation over lost connections, compare-and-set, deletion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from interop.metadata.samples import FULL
from magnetar.errors import (
    BadVersionError,
    LedgerExistsError,
    MalformedMetadataError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from magnetar.ids import EntryId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import FormatVersion, LedgerState
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.local import Fate
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import Create, MetadataStore, Sync, WatchEvent, WatchKind
from magnetar.runtime.system import SystemEntropy

OPEN = replace(FULL, ledger_id=LedgerId(7), state=LedgerState.OPEN, last_entry_id=EntryId(-1), length=0, c_token=0)


def ledgers_of(store: MetadataStore, paths: BookKeeperPaths) -> LedgerMetadataStore:
    return LedgerMetadataStore(store, paths, SystemEntropy())


@pytest.fixture
async def ledgers(store: MetadataStore, paths: BookKeeperPaths) -> LedgerMetadataStore:
    await store.create("/ledgers/00/0000", make_parents=True)  # So that the next create is the ledger's own node.
    return ledgers_of(store, paths)


async def test_a_created_ledger_is_read_as_it_was_with_a_token_of_its_own(ledgers: LedgerMetadataStore) -> None:
    created = await ledgers.create(OPEN)
    stored = await ledgers.read(LedgerId(7))
    assert stored == created
    assert stored.version == 0
    assert stored.value.c_token != 0
    assert replace(stored.value, c_token=0) == OPEN
    other = await ledgers.create(replace(OPEN, ledger_id=LedgerId(8)))
    assert other.value.c_token != created.value.c_token


async def test_a_second_create_of_the_same_ledger_is_refused(ledgers: LedgerMetadataStore) -> None:
    await ledgers.create(OPEN)
    with pytest.raises(LedgerExistsError, match="ledger 7"):
        await ledgers.create(OPEN)


async def test_a_create_whose_answer_was_lost_is_recognised_as_our_own(
    ledgers: LedgerMetadataStore, breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    created = await ledgers_of(breaking(Create, Fate.ANSWER_LOST), paths).create(OPEN)
    assert created == await ledgers.read(LedgerId(7))


async def test_a_create_that_never_arrived_is_done_again(
    ledgers: LedgerMetadataStore, breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    created = await ledgers_of(breaking(Create, Fate.REQUEST_LOST, Fate.ANSWER_LOST), paths).create(OPEN)
    assert created == await ledgers.read(LedgerId(7))


async def test_anothers_ledger_is_not_taken_for_ours_after_a_lost_connection(
    ledgers: LedgerMetadataStore, breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    await ledgers.create(OPEN)
    with pytest.raises(LedgerExistsError, match="another client"):
        await ledgers_of(breaking(Create, Fate.REQUEST_LOST), paths).create(OPEN)


async def test_a_damaged_value_in_the_place_of_our_ledger_is_not_ours(
    ledgers: LedgerMetadataStore, store: MetadataStore, breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    await store.create(paths.ledger(LedgerId(7)), b"garbage")
    with pytest.raises(LedgerExistsError):
        await ledgers_of(breaking(Create, Fate.REQUEST_LOST), paths).create(OPEN)


async def test_a_create_that_stays_unknown_says_so(
    ledgers: LedgerMetadataStore, breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    with pytest.raises(OutcomeUnknownError):
        await ledgers_of(breaking(Create, *[Fate.REQUEST_LOST] * 9), paths).create(OPEN)


async def test_a_create_that_cannot_be_looked_after_is_unknown_and_not_failed(
    ledgers: LedgerMetadataStore, breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    store = breaking((Create, Sync), Fate.ANSWER_LOST, Fate.ANSWER_LOST)
    with pytest.raises(OutcomeUnknownError):
        await ledgers_of(store, paths).create(OPEN)
    assert (await ledgers.read(LedgerId(7))).value.ledger_id == 7


async def test_a_create_without_a_token_stays_unknown_after_a_lost_connection(
    ledgers: LedgerMetadataStore, breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    old = replace(OPEN, format_version=FormatVersion.TEXT_PROTOBUF)
    with pytest.raises(OutcomeUnknownError):
        await ledgers_of(breaking(Create, Fate.ANSWER_LOST), paths).create(old)
    with pytest.raises(LedgerExistsError):
        await ledgers.create(old)


@pytest.mark.parametrize("version", FormatVersion)
async def test_an_update_keeps_the_format_version(ledgers: LedgerMetadataStore, version: FormatVersion) -> None:
    await ledgers.create(replace(OPEN, format_version=version))
    stored = await ledgers.read(LedgerId(7))
    closed = replace(stored.value, state=LedgerState.CLOSED, last_entry_id=EntryId(99), length=1_000)
    assert (await ledgers.update(closed, stored.version)).version == 1
    assert (await ledgers.read(LedgerId(7))).value == closed
    assert closed.format_version is version


async def test_an_update_that_lost_the_race_is_refused(ledgers: LedgerMetadataStore) -> None:
    created = await ledgers.create(OPEN)
    recovering = replace(created.value, state=LedgerState.IN_RECOVERY)
    await ledgers.update(recovering, created.version)
    with pytest.raises(BadVersionError):
        await ledgers.update(created.value, created.version)
    assert (await ledgers.read(LedgerId(7))).value == recovering


async def test_a_ledger_that_does_not_exist_is_a_named_error(ledgers: LedgerMetadataStore) -> None:
    with pytest.raises(NoSuchLedgerError, match="ledger 9"):
        await ledgers.read(LedgerId(9))
    with pytest.raises(NoSuchLedgerError):
        await ledgers.update(replace(OPEN, ledger_id=LedgerId(9)), 0)
    with pytest.raises(NoSuchLedgerError):
        await ledgers.delete(LedgerId(9), 0)


async def test_a_damaged_value_is_a_named_error(
    ledgers: LedgerMetadataStore, store: MetadataStore, paths: BookKeeperPaths
) -> None:
    await store.create(paths.ledger(LedgerId(7)), b"garbage")
    with pytest.raises(MalformedMetadataError, match="ledger 7"):
        await ledgers.read(LedgerId(7))


async def test_a_deleted_ledger_takes_its_empty_directories_along(
    ledgers: LedgerMetadataStore, store: MetadataStore
) -> None:
    for ledger_id in (7, 8, 2**40):
        await ledgers.create(replace(OPEN, ledger_id=LedgerId(ledger_id)))
    await ledgers.delete(LedgerId(2**40), 0)
    await ledgers.delete(LedgerId(7), 0)
    assert await store.children("/ledgers") == ["00"]
    await ledgers.delete(LedgerId(8), 0)
    assert await store.children("/ledgers") == []


async def test_a_ledger_that_changed_is_not_deleted(ledgers: LedgerMetadataStore) -> None:
    created = await ledgers.create(OPEN)
    await ledgers.update(created.value, 0)
    with pytest.raises(BadVersionError):
        await ledgers.delete(LedgerId(7), 0)
    assert [ledger_id async for ledger_id in ledgers.list()] == [7]


async def test_a_watcher_hears_of_the_next_change(server: MemoryServer, ledgers: LedgerMetadataStore) -> None:
    created = await ledgers.create(OPEN)
    heard: list[WatchEvent] = []
    await ledgers.read(LedgerId(7), watch=heard.append)
    await ledgers.update(created.value, 0)
    assert [event.kind for event in heard] == [WatchKind.CHANGED]
